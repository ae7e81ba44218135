"""Answers to `/v1/responses`, whole and event by event, against vLLM's own server, made from its own tokens.

The reference's answers are recorded (`recordings.py`). `KNOWN` lists the wanted differences, each with its reason.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.tokens import GenerateRequest, TokenChunk
from tasks.settings import EngineSettings, ModelSettings
from tests.contract.test_engine import collect
from tests.peer.recordings import Recording
from tests.peer.reference import TOKENIZERS
from tests.peer.serving import answering_vllm
from tests.peer.test_yard_parity import QWEN3, SMOLLM2
from tests.peer.test_yard_parity import WEATHER as CHAT_TOOL
from workers.derender import fold
from workers.generate.engines.registry import create_engine
from workers.models.catalog import ModelProfile, load_model
from workers.render.prompts import prepare
from workers.surfaces.openai_responses_answers import Completer

MODELS: dict[str, tuple[Path, Path, dict[str, Any], tuple[str, ...]]] = {
    "smollm2": (SMOLLM2, SMOLLM2, {}, ()),
    "qwen3": (
        QWEN3,
        TOKENIZERS / "qwen3",
        {"tool_parser": "hermes", "reasoning_parser": "qwen3"},
        ("--tool-call-parser=hermes", "--reasoning-parser=qwen3", "--enable-auto-tool-choice"),
    ),
}
"""Folder, the tokenizer's, parsers, and the reference's flags for them."""
MAX_MODEL_LEN = 2048

WEATHER: JsonObject = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": CHAT_TOOL["function"]["parameters"],
}
LOGPROBS = {"include": ["message.output_text.logprobs"]}
NO_THINKING: JsonObject = {"chat_template_kwargs": {"enable_thinking": False}}

# Random weights say anything, even a marker letter by letter: biases make them write what a trained model would, and
# the penalty makes them go on.
YES, THOUGHT, CALL, CALLED, END = "9454", "151668", "151657", "151658", "151645"
SPELLED = (198, 4913, 606, 788, 330, 455, 69364, 497, 16370, 5212, 8926, 77118, 2072, 13778, 18, 92)
"""`{"name": "get_weather", "arguments": {"city": "Kyoto", "days": 3}}`"""
BIAS: JsonObject = {CALL: 40, END: 39, CALLED: 30, **{str(token_id): 30 for token_id in SPELLED}}
THINKING: JsonObject = {"logit_bias": {YES: 3, THOUGHT: 2}, "frequency_penalty": 2}
CALLING: JsonObject = {
    "tools": [WEATHER],
    "tool_choice": "required",
    "max_output_tokens": 100,
    "logit_bias": BIAS,
    "frequency_penalty": 2,
}

CASES: dict[str, dict[str, JsonObject]] = {
    "smollm2": {
        "plain": {"input": "What is the capital of France?"},
        "instructions": {"input": "Who are you?", "instructions": "You answer in one word.", "max_output_tokens": 12},
        "stop string": {"input": "Count from one to ten.", "stop": ["5."]},
        "stop string kept": {"input": "Count from one to ten.", "stop": "5.", "include_stop_str_in_output": True},
        "one token": {"input": "Write a poem about rain.", "max_output_tokens": 1},
        "no text": {"input": "What is the capital of France?", "stop_token_ids": [504]},
        "log-probabilities": {"input": "What is the capital of France?", "top_logprobs": 2, **LOGPROBS},
        "history": {
            "input": [
                {"role": "user", "content": "My name is Ada."},
                {"role": "assistant", "content": "Nice to meet you, Ada."},
                {"role": "user", "content": "What is my name?"},
            ],
            "metadata": {"a": "b"},
            "user": "ada",
            "truncation": "auto",
            "service_tier": "flex",
            "prompt_cache_key": "k",
            "top_p": 0.5,
            "presence_penalty": 0.3,
            "max_output_tokens": 8,
        },
        "schema": {
            "input": "Weather?",
            "text": {"format": {"type": "json_schema", "name": "weather", "schema": WEATHER["parameters"]}},
        },
    },
    "qwen3": {
        "reasoning cut off": {"input": "Think.", "reasoning": {"effort": "low"}, "max_output_tokens": 8},
        "reasoning and text": {"input": "Think.", "max_output_tokens": 8, **THINKING},
        "reasoning and a call": {"input": "Kyoto?", **CALLING, "logit_bias": {**BIAS, YES: 60, THOUGHT: 59}},
        "hidden reasoning": {"input": "Think.", "max_output_tokens": 8, "include_reasoning": False, **THINKING},
        "reasoning and log-probabilities": {"input": "Think.", "max_output_tokens": 8, **THINKING, **LOGPROBS},
        "text": {"input": "Weather?", "max_output_tokens": 8, **NO_THINKING, **LOGPROBS},
        "a call if it wants": {"input": "Kyoto?", **CALLING, "tool_choice": "auto", **NO_THINKING},
        "no call": {"input": "Kyoto?", "tools": [WEATHER], "max_output_tokens": 8, **NO_THINKING},
        "a call that must be": {"input": "Zürich for 3 days?", **CALLING, **NO_THINKING},
        "a named call": {
            "input": "Kyoto?",
            **CALLING,
            "tool_choice": {"type": "function", "name": "get_weather"},
            **NO_THINKING,
        },
        "a call cut off": {"input": "Kyoto?", **CALLING, "max_output_tokens": 14, **NO_THINKING},
        "two calls": {"input": "Kyoto?", **CALLING, "logit_bias": {**BIAS, CALL: 42}, **NO_THINKING},
        "one call of two": {
            "input": "Kyoto?",
            **CALLING,
            "logit_bias": {**BIAS, CALL: 42},
            "parallel_tool_calls": False,
            **NO_THINKING,
        },
    },
}

_STATUS = "they leave a whole answer's reasoning without a status, and a streamed one's not: we say it in both"
_BYTES = "we tell a token's bytes with each delta as well: a client may put the message together of what it has had"
_SHARED = f"reasoning's tokens that share a chunk with the text come with its delta, as time has it; and {_BYTES}"
_LOST = "streamed, they lose the log-probabilities of a token without text, as of the one that ends the turn"
_EMPTY = "no text: without parsers, their whole answer has a message with nothing in it, and their stream has none"
_CUT = "a call that was cut off is no call, and its markup no text for anybody"
_WRITTEN = "arguments are as the model wrote them; they write them again in whole answers, and not in streams"
_REASONED = ("reasoning cut off", "reasoning and text", "reasoning and a call", "reasoning and log-probabilities")
_COUNTED = ("log-probabilities", "text")
_CALLED = (
    *("reasoning and a call", "a call if it wants", "a call that must be", "a named call"),
    *("two calls", "one call of two"),
)
KNOWN: dict[tuple[str, str], str] = {
    **{(case, "whole.output.reasoning.status"): _STATUS for case in _REASONED},
    **{(case, "stream.response.output_text.delta.logprobs.*.bytes"): _BYTES for case in _COUNTED},
    **{(case, "whole.output.function_call.arguments"): _WRITTEN for case in _CALLED},
    ("log-probabilities", "stream.*.logprobs.types"): _LOST,
    ("reasoning and log-probabilities", "stream.*logprobs*"): _SHARED,
    ("no text", "whole.output.types"): _EMPTY,
    ("a call cut off", "whole.output.types"): _CUT,
}
"""(case, place) → why we differ there. A place is `whole` or `stream` and a path, or a pattern of them."""


def asked(url: str, body: JsonObject) -> str:
    request = urllib.request.Request(
        f"{url}/v1/responses", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(reply.read().decode())


def theirs(url: str, body: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """The reference's answer, whole and as events."""
    whole = json.loads(asked(url, body))
    lines = asked(url, {**body, "stream": True}).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert [line for line in lines if line.startswith("event: ")] == [f"event: {event['type']}" for event in events]
    return whole, events


def tokens(url: str, name: str, body: JsonObject, profile: ModelProfile) -> tuple[Any, Any, list[TokenChunk]]:
    """The request, its prompt, and the tokens that the reference's token engine makes of our rendering of it."""
    prepared = prepare(profile, "openai_responses", body)
    (prompt,) = prepared.prompts
    fields = {**prompt.fields, "token_ids": list(prompt.token_ids), "request_id": "r", "model": name}

    async def generate() -> list[TokenChunk]:
        engine = create_engine(EngineSettings(kind="vllm", urls=(url,), model=name))
        try:
            return await collect(engine, GenerateRequest.model_validate(fields))
        finally:
            await engine.close()

    return prepared.request, prompt, asyncio.run(generate())


def ours(
    profile: ModelProfile, request: Any, prompt: Any, chunks: list[TokenChunk]
) -> tuple[JsonObject, list[JsonObject]]:
    """Our answer, whole and as events."""

    def context(stream: bool) -> DerenderContext:
        return fold.describe(
            profile,
            "openai_responses",
            request.model_copy(update={"stream": stream}),
            response_id=f"resp_{'0' * 16}",
            created=1,
            prompt_token_ids=prompt.token_ids,
            sampling=prompt.fields["sampling_params"],
        )

    whole = fold.respond(profile, context(False), prompt.token_ids, chunks)
    about = context(True)
    state = fold.start(profile, about, prompt.token_ids)
    completer, events = Completer(), []
    for chunk in chunks:
        state, told, _ = fold.step(profile, about, state, chunk)
        events += told
    events += fold.finish(profile, about, state).chunks
    return whole, [completer.add(event) for event in events]


ID = re.compile(r"(resp_|msg_|rs_|fc_|chatcmpl-tool-)[0-9a-f]{16}")


def comparable(value: Any, ids: dict[str, str] | None = None) -> Any:
    """The value with its ids numbered, and without what is null: absent and null say the same."""
    ids = {} if ids is None else ids
    if isinstance(value, dict):
        return {
            key: 0 if key == "created_at" else comparable(item, ids)
            for key, item in sorted(value.items())
            if item is not None
        }
    if isinstance(value, list):
        return [comparable(item, ids) for item in value]
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, str) and (match := ID.fullmatch(value)):
        return ids.setdefault(value, f"{match[1]}{len(ids)}")
    return value


def merged(events: list[JsonObject]) -> list[JsonObject]:
    """The events with each item's deltas in one: how many there are is a matter of time."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    out: list[JsonObject] = []
    for event in events:
        event = {name: value for name, value in event.items() if name != "sequence_number"}
        if "delta" in event and out[-1]["type"] == event["type"]:
            out[-1]["delta"] += event["delta"]
            if "logprobs" in event:
                out[-1]["logprobs"] = out[-1]["logprobs"] + event["logprobs"]
        else:
            out.append(event)
    return out


def differences(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """(path, ours, theirs) of all that differs; an event's place is its type."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if key not in a or key not in b:
                yield f"{path}.{key}", a.get(key), b.get(key)
            else:
                yield from differences(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list):
        kinds = [[item.get("type") if isinstance(item, dict) else None for item in items] for items in (a, b)]
        if kinds[0] != kinds[1]:
            yield f"{path}.types", kinds[0], kinds[1]
        if any(kinds[0]) and kinds[0] != kinds[1]:
            return
        for left, right, kind in zip(a, b, kinds[0], strict=False):
            yield from differences(left, right, f"{path}.{kind or '*'}")
    elif a != b:
        yield path, a, b


def compare(
    mine: tuple[JsonObject, list[JsonObject]], reference: tuple[JsonObject, list[JsonObject]]
) -> list[tuple[str, Any, Any]]:
    found = list(differences(comparable(mine[0]), comparable(reference[0]), "whole"))
    pair = [comparable(merged(events)) for events in (mine[1], reference[1])]
    return found + list(differences(pair[0], pair[1], "stream"))


@pytest.mark.parametrize("name", sorted(CASES))
def test_responses_are_the_reference_s(recording: Recording, name: str, tmp_path: Path) -> None:
    folder, tokenizer, parsers, flags = MODELS[name]
    if not tokenizer.is_dir():
        pytest.skip("the tokenizer is not there")
    flags = (*flags, "--enable-scale-out", "--no-enable-prefix-caching")
    wrong: dict[str, Any] = {}
    with answering_vllm(recording, tmp_path, folder, name, *flags, max_model_len=MAX_MODEL_LEN) as url:
        profile = load_model(ModelSettings(name=name, tokenizer=str(tokenizer), max_model_len=MAX_MODEL_LEN, **parsers))
        for case, fields in CASES[name].items():
            body = {"model": name, "temperature": 0, "max_output_tokens": 40, **fields}
            request, prompt, chunks = tokens(url, name, body, profile)
            found = compare(ours(profile, request, prompt, chunks), theirs(url, body))
            known = [place for row, place in KNOWN if row == case]
            unknown = [row for row in found if not any(fnmatchcase(row[0], place) for place in known)]
            missing = [place for place in known if not any(fnmatchcase(row[0], place) for row in found)]
            if unknown or missing:
                wrong[case] = unknown, [f"{place} is listed as known, but there is no difference" for place in missing]
    assert not wrong
