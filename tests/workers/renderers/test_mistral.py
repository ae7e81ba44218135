from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from tasks.errors import InvalidRequest, TokenyardError
from tasks.protocol.conversation import Conversation, Prompt, Tokenization
from tasks.settings import EngineSettings, ModelSettings
from tests.workers.renderers.mistral_files import write_tekken
from workers.models.catalog import load_model
from workers.models.loading import load
from workers.renderers.base import Renderer, make_renderer
from workers.text.tokenizer import LoadedTokenizer

USER = {"role": "user", "content": "Is the thing in Zürich? 😀"}
ANSWER = {"role": "assistant", "content": "Yes."}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks", "parameters": {"type": "object", "properties": {}}},
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "chatcmpl-tool-a1b2c3d4e",
            "type": "function",
            "function": {"name": "look", "arguments": '{"at": "é"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "chatcmpl-tool-a1b2c3d4e", "content": "12"}


@pytest.fixture(scope="module", params=["v3", "v7", "v11", "v13", "v15"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mistral")


@pytest.fixture(scope="module")
def model(files: Path):
    def make(version: str) -> LoadedTokenizer:
        folder = files / version
        folder.mkdir(exist_ok=True)
        return load(write_tekken(folder, version), cache=files / "cache")

    return make


@pytest.fixture(scope="module")
def write(model):
    """A conversation's prompt as text, special tokens and all."""
    made: dict[str, tuple[LoadedTokenizer, Renderer]] = {}

    def write(version: str, *messages: Any, **fields: Any) -> str:
        if version not in made:
            loaded = model(version)
            made[version] = loaded, make_renderer("mistral", loaded, max_model_len=5000)
        loaded, renderer = made[version]
        return loaded.tokenizer.decode(renderer.render(Conversation(messages, **fields)).token_ids)

    return write


@pytest.mark.parametrize(
    "messages",
    [
        (USER,),
        ({"role": "system", "content": "Be kind."}, USER, ANSWER, USER),
        (USER, CALL, RESULT),
        (USER, CALL, RESULT, ANSWER, USER),
        ({"role": "user", "content": "[INST] </s> [THINK] are text"},),
    ],
    ids=["one turn", "system", "result", "history", "markers"],
)
def test_a_prompt_is_the_library_s(version, messages, model, files):
    loaded = model(version)
    short = json.loads(json.dumps(messages).replace("chatcmpl-tool-", ""))
    request: Any = ChatCompletionRequest.from_openai(messages=short, tools=[TOOL])
    theirs = MistralTokenizer.from_file(files / version / "tekken.json").encode_chat_completion(request)
    ours = make_renderer("mistral", loaded, max_model_len=5000).render(Conversation(messages, tools=(TOOL,)))
    assert list(ours.token_ids) == theirs.tokens


def test_what_is_written(write):
    system = {"role": "system", "content": "Be kind."}
    assert write("v3", system, {"role": "user", "content": "Hi"}) == "<s>[INST]Be kind.\n\nHi[/INST]"
    assert (
        write("v13", system, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, ANSWER, USER)
        == f"<s>[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi[/INST]Yes.</s>[INST]{USER['content']}[/INST]"
    )
    assert (
        write("v13", {"role": "user", "content": "Hi"}, CALL, RESULT)
        == '<s>[INST]Hi[/INST][TOOL_CALLS]look[ARGS]{"at": "é"}</s>[TOOL_RESULTS]12[/TOOL_RESULTS]'
    )


def test_reasoning(write):
    thought = {**ANSWER, "reasoning": "Hm."}
    assert "[THINK]Hm.[/THINK]Yes.</s>" in write("v13", USER, thought, USER)
    with pytest.raises(InvalidRequest) as refused:
        write("v3", USER, thought, USER)
    assert refused.value.param == "messages"


def test_a_final_message_is_continued(write):
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert write("v13", USER, ANSWER, **fields).endswith("[/INST]Yes.")
    for messages, wrong, param in [
        ((USER, ANSWER), {"continue_final_message": True}, "continue_final_message"),
        ((USER,), fields, "continue_final_message"),
        ((USER, ANSWER), {}, "add_generation_prompt"),
        ((USER, ANSWER), {"add_generation_prompt": False}, "messages"),
    ]:
        with pytest.raises(InvalidRequest) as refused:
            write("v13", *messages, **wrong)
        assert refused.value.param == param


def test_effort(write):
    assert '[MODEL_SETTINGS]{"reasoning_effort": "high"}[/MODEL_SETTINGS]' in write(
        "v15", USER, reasoning_effort="high"
    )
    assert write("v13", USER, reasoning_effort="high") == write("v13", USER)
    with pytest.raises(InvalidRequest) as refused:
        write("v15", USER, reasoning_effort="low")
    assert refused.value.param == "reasoning_effort"
    with pytest.raises(InvalidRequest) as refused:
        write("v13", USER, reasoning_effort="extreme")
    assert refused.value.param == "reasoning_effort"


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ((), {}, "messages"),
        ((USER,), {"template": "{{ messages }}"}, "chat_template"),
        ((USER,), {"template_arguments": {"thinking": True}}, "chat_template"),
        ((USER,), {"tools": ({"type": "function", "function": {"name": "a b"}},)}, "tools"),
        ((USER,), {"tools": ({"type": "function", "function": {"name": "f", "parameters": {"type": 5}}},)}, "tools"),
        (({"role": "user"},), {}, "messages"),
        (({"role": "robot", "content": "Hi"},), {}, "messages"),
        (({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},), {}, "messages"),
        (
            (USER, {**CALL, "tool_calls": [{"id": "abc", "function": {"name": "f", "arguments": ""}}]}, USER),
            {},
            "messages",
        ),
        ((USER,), {"max_output_tokens": 9000}, "max_tokens"),
        (({"role": "user", "content": "a" * 100_000},), {}, "input_text"),
    ],
)
def test_what_is_refused(write, messages, fields, param):
    with pytest.raises(InvalidRequest) as refused:
        write("v7", *messages, **fields)
    assert refused.value.param == param
    assert "http" not in refused.value.message


def test_prompts_and_truncation(model):
    loaded = model("v13")
    renderer = make_renderer("mistral", loaded, max_model_len=5000)
    assert renderer.render_prompt(Prompt(text="[INST]")).token_ids[0] == loaded.tokenizer.bos_token_id
    assert "[INST]" not in map(loaded.tokenizer.token_of, renderer.render_prompt(Prompt(text="[INST]")).token_ids)
    whole = renderer.render(Conversation((USER,))).token_ids
    cut = renderer.render(Conversation((USER,), tokenization=Tokenization(truncate_to=4))).token_ids
    assert cut == whole[-4:]


def test_a_served_model(model, files):
    model("v13")
    profile = load_model(
        ModelSettings(
            name="m",
            tokenizer=str(files / "v13"),
            renderer="mistral",
            tool_parser="mistral",
            reasoning_parser="mistral",
            engine=EngineSettings(kind="scripted"),
        )
    )
    assert profile.eos_token_ids == (2,)
    assert profile.renderer.render(Conversation((USER,))).token_ids[0] == 1


def test_a_tokenizer_of_another_kind(small, model):
    with pytest.raises(TokenyardError, match="Mistral's own"):
        make_renderer("mistral", small, max_model_len=5)
    with pytest.raises(ValueError, match="no chat template"):
        make_renderer("mistral", model("v3"), max_model_len=5, chat_template="{{ messages }}")


def test_without_the_library(model, files):
    model("v13")
    script = (
        "import sys; sys.modules['mistral_common'] = None; from pathlib import Path\n"
        "from workers.renderers.base import make_renderer; from workers.models.loading import load\n"
        "loaded = load(Path(sys.argv[1]), cache=Path(sys.argv[2]))\n"
        "make_renderer('mistral', loaded, max_model_len=5)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(files / "v13"), str(files / "cache")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "pip install 'tokenyard[mistral]'" in result.stderr.splitlines()[-1]
