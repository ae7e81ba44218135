"""Rendering gives what the reference gives: token ids, sampling parameters, and all that goes with them.

Every request of `render_cases` goes to every tokenizer that is installed. `KNOWN` lists the wanted differences, each
with its reason. Parameters that have their default value may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import TokenyardError
from tasks.protocol.base import JsonObject
from tasks.settings import ModelSettings
from tests.peer.reference import TOKENIZERS as REAL
from tests.peer.reference import Frontend
from tests.peer.render_cases import (
    BAD,
    CHATS,
    COMPLETIONS,
    LONG,
    MESSAGES,
    MISTRAL,
    RESPONSES,
    SAMPLING,
    TRUSTED,
    TUNED,
    USER,
    Body,
)
from tests.workers.renderers.mistral_files import write_tekken
from workers.models.catalog import ModelProfile, load_model
from workers.render.prompts import prepare

MAX_MODEL_LEN = 2048


@dataclass(frozen=True, eq=False)
class Model:
    """A tokenizer with the parsers that it is served with."""

    name: str
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    renderer: str = "jinja"
    file: str | None = None
    """A tokenizer of Mistral's own."""
    tokenizer: str | None = None
    """The real tokenizer's folder, where `name` is another."""
    max_model_len: int = MAX_MODEL_LEN
    settings: tuple[tuple[str, Any], ...] = ()
    """Of `ModelSettings`, where they differ from what a model has by itself."""
    extra_flags: tuple[str, ...] = ()
    """The reference's, for the same."""
    version: str | None = None
    """Of a small tokenizer of Mistral's, which the test writes.

    The reference holds all answers of these versions to a grammar, which decides on other fields as well. We leave them
    free: token ids alone are compared.
    """

    @property
    def mistral(self) -> bool:
        return self.renderer == "mistral"

    @property
    def folder(self) -> Path:
        """Where the tokenizer is: a folder, or the file that is Mistral's."""
        assert self.version is None, "it is written for a test"
        return REAL / (self.tokenizer or self.name) if self.file is None else REAL / "mistral-common" / self.file

    @property
    def flags(self) -> list[str]:
        own = [] if self.renderer in ("jinja", "harmony") else ["--tokenizer-mode", self.renderer]
        return ["--max-model-len", str(self.max_model_len), *own, *self.extra_flags]


MODELS = [
    Model("deepseek-r1", "deepseek_v3", "deepseek_r1"),
    Model("deepseek-v3", "deepseek_v3"),
    Model("deepseek-v3.1", "deepseek_v31", "deepseek_v3"),
    Model("deepseek-v3.2", "deepseek_v32", "deepseek_v3", renderer="deepseek_v32"),
    Model("deepseek-v4", "deepseek_v4", "deepseek_v4", renderer="deepseek_v4"),
    Model("gemma3", "pythonic"),
    Model("glm-4.5v", "glm45", "glm45"),
    Model("glm-4.7-flash", "glm47", "glm45"),
    Model("glm-5", "glm47", "glm45"),
    Model("glm-5.2", "glm47", "glm45"),
    Model("gpt-oss", "openai", "openai_gptoss", renderer="harmony"),
    Model("llama2", "pythonic"),
    Model("llama3.1", "llama3_json"),
    Model("minimax", "minimax_m2", "minimax_m2"),
    Model("minimax-m3", "minimax_m3", "minimax_m3"),
    Model("mistral-v1", renderer="mistral", file="tokenizer.model.v1"),
    Model("mistral-v3", "mistral", renderer="mistral", file="mistral_instruct_tokenizer_240323.model.v3"),
    Model("mistral-v7", "mistral", renderer="mistral", file="mistral_instruct_tokenizer_241114.model.v7"),
    Model("mistral-tekken", "mistral", renderer="mistral", file="tekken_240911.json"),
    *(Model(f"mistral-{v}", "mistral", renderer="mistral", version=v) for v in ("v11", "v13", "v15")),
    Model("qwen3", "hermes", "qwen3"),
    Model("qwen3.5", "qwen3_coder", "qwen3"),
    Model("r1-distill-llama", "hermes", "deepseek_r1"),
    Model("qwen3-long", "hermes", "qwen3", tokenizer="qwen3", max_model_len=32_768),
    Model("deepseek-v3-long", tokenizer="deepseek-v3", max_model_len=32_768),
    Model(
        "qwen3-trusting",
        "hermes",
        "qwen3",
        tokenizer="qwen3",
        settings=(
            ("trust_request_chat_template", True),
            ("default_template_arguments", {"enable_thinking": False, "cohere_format": "cmd4"}),
        ),
        extra_flags=("--trust-request-chat-template", "--default-chat-template-kwargs", '{"enable_thinking": false}'),
    ),
    Model(
        "qwen3-tuned",
        tokenizer="qwen3",
        settings=(
            ("generation_defaults", {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}),
            ("max_output_tokens", 50),
        ),
        extra_flags=(
            "--override-generation-config",
            '{"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1, "max_new_tokens": 50}',
        ),
    ),
]

MISTRAL_CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 131072,
}

MISREAD = {"LlamaTokenizerFast"}
"""Classes that the reference's transformers reads as SentencePiece whatever their files say (fixed upstream since)."""

_OFFSETS = "the reference gives offsets for prompts from templates alone"
_UNTOLD = "a prompt cut to pieces without a marker: we say what the format's first token means, they say no"
_ROOM = "the reference reckons with the truncated prompt, and does not truncate it"
_DEVELOPER = "mistral-common has learned of developers since the reference's version: they are systems"
_EFFORTS = "mistral-common has learned of more efforts since the reference's version; this one has no say in the prompt"
_IDS = (
    "mistral-common has learned since the reference's version that ids of calls are free from v13 on: none is written"
)
_NO_CALLS = "tools without a tool parser: we refuse them for every tokenizer, they do for others than Mistral's"
_ARGUMENTS = "template arguments: we refuse them on every surface, they ignore them on this one"
_AS_TEXT = "the template puts arguments between other text: we give it text, they an object, and it fails"
_NO_CONTENT = (
    "the template writes calls where there is no content: we give it none, and a text in a message of its own before "
    "them; they give it an empty text, and the calls are lost"
)
_CALLS = (
    *("history of calls", "calls without tools", "two calls", "two calls alone", "a text and a call"),
    *("malformed arguments", "reasoning before a call"),
)
_UNFORCED = "they hold a call that must be made to a list in JSON; we leave it to the model to write it in its own form"
KNOWN: dict[tuple[str, str], str] = {
    **{
        (f"mistral-{version}", case): reason
        for version in ("v1", "v3", "v7", "tekken", "v11", "v13", "v15")
        for case, reason in (("developer", _DEVELOPER), ("low effort", _EFFORTS))
        if (version, case) != ("v15", "low effort")
    },
    **{(f"mistral-{version}", case): _IDS for version in ("v13", "v15") for case in _CALLS},
    **{(model, case): _AS_TEXT for model in ("deepseek-r1", "deepseek-v3.1") for case in _CALLS},
    **{(model, case): _NO_CONTENT for model in ("deepseek-v3", "r1-distill-llama") for case in _CALLS},
    **{
        ("mistral-v1", case): _NO_CALLS
        for case in ("tools", "tools that must be called", "a tool that must be called", "strict tools")
        + ("strict tools and a schema", "forty tools")
    },
    **{
        (f"mistral-{version}", case): _UNFORCED
        for version in ("v3", "v7", "tekken")
        for case in ("tools that must be called", "a tool that must be called")
    },
    ("mistral-v3", "completions: offsets"): _OFFSETS,
    ("mistral-tekken", "completions: offsets"): _OFFSETS,
    ("mistral-tekken", "messages: one tool"): _UNFORCED,
    ("mistral-tekken", "messages: no thinking"): _EFFORTS,
    ("mistral-tekken", "responses: sampling"): _ARGUMENTS,
    ("deepseek-v3.2", "offsets"): _OFFSETS,
    ("deepseek-v4", "offsets"): _OFFSETS,
    **{
        ("minimax-m3", case): _UNTOLD
        for case in ("special tokens added", "truncated", "truncated right", "truncated to what fits")
    },
    **{
        ("gpt-oss", case): _ROOM
        for case in ("special tokens added", "truncated", "truncated right", "truncated to what fits")
    },
}
"""(model, case) → why we differ there."""

PARAMS: dict[str, str] = {
    "custom call": "theirs is the path in a union of types",
}
"""Bad request → why our error names another field than the reference's does."""

DEFAULTS: dict[str, Any] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "max_tokens": 16,
    "extra_args": {},
}
ENGINE_ONLY = {"output_kind", "skip_clone", "skip_reading_prefix_cache"}
"""What the engine's own server sets again for every request."""
NOT_COMPARED = {"request_id", "model", "output_mode"}


def model_folder(model: Model, scratch: Path) -> Path:
    """The model's folder, or a copy that says what its tokenizer is."""
    copy = scratch / model.name
    if model.mistral:
        copy.mkdir()
        if model.version is not None:
            write_tekken(copy, model.version)
        else:
            name = "tekken.json" if model.folder.suffix == ".json" else f"tokenizer.model{model.folder.suffix}"
            (copy / name).symlink_to(model.folder)
        (copy / "config.json").write_text(json.dumps(MISTRAL_CONFIG))
        return copy
    config = json.loads((model.folder / "tokenizer_config.json").read_text())
    if config.get("tokenizer_class") not in MISREAD:
        return model.folder
    copy.mkdir()
    for path in model.folder.iterdir():
        if path.name != "tokenizer_config.json":
            (copy / path.name).symlink_to(path)
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}))
    return copy


PATHS = {
    "chat": "/v1/chat/completions/render",
    "completions": "/v1/completions/render",
    "messages": "/v1/messages/render",
    "responses": "/v1/responses/render",
}


def cases_of(model: Model) -> Iterator[tuple[str, str, Body]]:
    """(surface, name, body) of every request to a model."""
    if model.tokenizer is not None:
        cases = LONG if model.name.endswith("-long") else TRUSTED if model.name == "qwen3-trusting" else TUNED
        yield from (("chat", name, body) for name, body in cases.items())
        return
    yield from (("chat", name, body) for name, body in CHATS.items())
    if model.mistral:
        yield from (("chat", f"mistral: {name}", body) for name, body in MISTRAL.items())
    if model.name in ("qwen3", "gemma3", "llama2", "llama3.1", "mistral-v3", "mistral-tekken"):
        yield from (("completions", f"completions: {name}", body) for name, body in COMPLETIONS.items())
    if model.name in ("qwen3", "gemma3", "glm-5", "mistral-tekken"):
        defaults = {"max_tokens": 64}
        yield from (("messages", f"messages: {name}", {**defaults, **body}) for name, body in MESSAGES.items())
        yield from (("responses", f"responses: {name}", body) for name, body in RESPONSES.items())
    if model.name == "qwen3":
        for group, bodies in (("sampling", SAMPLING), ("bad", BAD)):
            yield from (("chat", f"{group}: {name}", {"messages": [USER], **body}) for name, body in bodies.items())


def server_of(model: Model, folder: Path) -> JsonObject:
    """The reference's settings for a model in a folder."""
    parsers = (("tool_call", model.tool_parser), ("reasoning", model.reasoning_parser))
    return {
        "model": str(folder),
        "flags": model.flags,
        **{f"{kind}_parser": name for kind, name in parsers if name},
    }


SURFACES = {
    "chat": "openai_chat",
    "completions": "openai_completions",
    "messages": "anthropic",
    "responses": "openai_responses",
}


@cache
def profile_of(model: Model) -> ModelProfile:
    """A model with a real tokenizer as a worker serves it."""
    return load_profile(model, model.folder)


def load_profile(model: Model, tokenizer: Path) -> ModelProfile:
    settings: dict[str, Any] = {
        "default_template_arguments": {"cohere_format": "cmd4"},  # the reference's only default
        **dict(model.settings),
    }
    return load_model(
        ModelSettings(
            name="m",
            tokenizer=str(tokenizer),
            tool_parser=model.tool_parser or "none",
            reasoning_parser=model.reasoning_parser or "none",
            renderer=model.renderer,
            max_model_len=model.max_model_len,
            **settings,
        )
    )


def render(profile: ModelProfile, surface: str, body: Body) -> list[Body]:
    """Our answer, as the render stage makes it: one request for each prompt."""
    prepared = prepare(profile, SURFACES[surface], {"model": "m", **body})
    return [{"token_ids": list(prompt.token_ids), **prompt.fields} for prompt in prepared.prompts]


def comparable(body: Body) -> Body:
    """The answer without what is default, internal to the engine, or random."""
    out = {name: value for name, value in body.items() if value is not None and name not in NOT_COMPARED}
    out["sampling_params"] = {
        name: value
        for name, value in body["sampling_params"].items()
        if name not in ENGINE_ONLY and DEFAULTS.get(name, "none") != value
    }
    if constraint := out["sampling_params"].get("structured_outputs"):
        given = {k: v for k, v in constraint.items() if v not in (None, False) and not k.startswith("_")}
        if "structural_tag" in given:
            given["structural_tag"] = json.loads(given["structural_tag"])
        out["sampling_params"]["structured_outputs"] = given
    if "stream_options" in out:
        out["stream_options"] = {k: v for k, v in out["stream_options"].items() if v}
    for name, default in (("priority", 0), ("stream", False)):
        if out.get(name) == default:
            del out[name]
    restored: Body = json.loads(json.dumps(out))
    return restored


def differences(ours: Body, theirs: Body) -> dict[str, tuple[Any, Any]]:
    ours, theirs = comparable(ours), comparable(theirs)
    return {
        name: (ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    }


def compare(model: Model, profile: ModelProfile, surface: str, name: str, body: Body, theirs: Any) -> str | None:
    """What differs, in a line; None for nothing."""
    try:
        ours = render(profile, surface, body)
    except TokenyardError as error:
        if theirs["status"] != error.status:
            return f"we refuse: {error.message}; they answer {theirs['status']}: {str(theirs['body'])[:200]}"
        param = (theirs["body"]["error"].get("param") or "").removeprefix("body.").split(".")[0]
        if (
            param not in ("", "body")
            and name.removeprefix("bad: ") not in PARAMS
            and param != (error.param or "").split(".")[0]
        ):
            return f"our error names {error.param!r}, theirs {param!r}"
        return None
    if theirs["status"] != 200:
        return f"they refuse: {str(theirs['body'])[:200]}"
    answers = theirs["body"] if isinstance(theirs["body"], list) else [theirs["body"]]
    if len(ours) != len(answers):
        return f"we make {len(ours)} requests, they make {len(answers)}"
    found = {name: pair for a, b in zip(ours, answers, strict=True) for name, pair in differences(a, b).items()}
    if model.version is not None:
        found = {name: pair for name, pair in found.items() if name == "token_ids"}
    return "; ".join(f"{field}: {str(a)[-300:]} | {str(b)[-300:]}" for field, (a, b) in found.items()) or None


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_rendering_is_the_reference_s(frontend: Frontend, model: Model, tmp_path: Path) -> None:
    if model.version is None and not model.folder.exists():
        pytest.skip("the tokenizer is not there")
    folder = model_folder(model, tmp_path)
    profile = profile_of(model) if model.version is None else load_profile(model, folder / "tekken.json")
    server = server_of(model, folder)
    wrong = {}
    for surface, name, body in cases_of(model):
        theirs = frontend.ask(server, {"model": "m", **body}, PATHS[surface])
        difference = compare(model, profile, surface, name, body, theirs)
        known = (model.name, name) in KNOWN
        if difference and not known:
            wrong[name] = difference
        if known and not difference:
            wrong[name] = "listed as known, but there is no difference"
    assert not wrong, "\n".join(f"{name}: {difference}" for name, difference in wrong.items())
