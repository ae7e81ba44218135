"""Answers to `/v1/messages`, whole and event by event, against vLLM's own server, made from its own tokens.

The reference's answers are recorded (`recordings.py`). `KNOWN` lists the wanted differences, each with its reason.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any, NamedTuple

import pytest

from tasks.protocol.base import JsonObject
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
from workers.render.prompts import Prepared, prepare

FOLDERS = {
    "smollm2": SMOLLM2,
    "qwen3": QWEN3,
}
TOKENIZER_FOLDERS = {**FOLDERS, "qwen3": TOKENIZERS / "qwen3"}
PARSERS: dict[str, JsonObject] = {"smollm2": {}, "qwen3": {"tool_parser": "hermes", "reasoning_parser": "qwen3"}}
MAX_MODEL_LEN = 2048

WEATHER: JsonObject = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "input_schema": CHAT_TOOL["function"]["parameters"],
}
ANY: JsonObject = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 200}
NAMED: JsonObject = ANY | {"tool_choice": {"type": "tool", "name": "get_weather"}}
QUIET: JsonObject = {"thinking": {"type": "disabled"}}


def _user(text: str, **more: Any) -> JsonObject:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 40, "temperature": 0, **more}


CASES: dict[str, dict[str, JsonObject]] = {
    "smollm2": {
        "plain": _user("What is the capital of France?"),
        "system": _user("What animal barks?", system="You answer in one word.", max_tokens=16),
        "history": _user("", max_tokens=20)
        | {
            "messages": [
                {"role": "user", "content": "My name is Ada."},
                {"role": "assistant", "content": [{"type": "text", "text": "Nice to meet you, Ada."}]},
                {"role": "user", "content": "What is my name?"},
            ]
        },
        "stop sequence": _user("Count from one to ten.", stop_sequences=["five", "5."]),
        "stop sequence at once": _user("What is the capital of France?", stop_sequences=["The"]),
        "one token": _user("Write a poem about rain.", max_tokens=1),
        "characters of many tokens": _user("Say hello in Japanese: こんにちは 🙂"),
        "schema": _user(
            "Weather?", output_config={"format": {"type": "json_schema", "schema": WEATHER["input_schema"]}}
        ),
    },
    "qwen3": {
        "thinking cut off": _user("Think.", max_tokens=12),
        "no thinking": _user("Hello", **QUIET),
        "a call if it wants": _user("Weather in Kyoto?", tools=[WEATHER], **QUIET),
        "a call that must be": _user("Weather in Zürich for 3 days?") | ANY | QUIET,
        "one call that must be": _user("Weather in Kyoto?")
        | ANY
        | QUIET
        | {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        "a named call": _user("Weather in Kyoto?") | NAMED | QUIET,
        "a call cut off": _user("Weather in Kyoto?") | ANY | QUIET | {"max_tokens": 12},
        "a call and a stop sequence": _user("Weather in Kyoto?") | ANY | QUIET | {"stop_sequences": ["days"]},
    },
}
NAMES = frozenset(name for cases in CASES.values() for name in cases)


class Known(NamedTuple):
    """A wanted difference: the cases that have it, and why."""

    cases: frozenset[str]
    reason: str


_STOPPED = frozenset({"stop sequence", "stop sequence at once", "a call and a stop sequence"})
_CALLED = frozenset(
    {
        "a call that must be",
        "one call that must be",
        "a named call",
        "a call cut off",
        "a call and a stop sequence",
    }
)
_CREATED = "their engine does not tell its token streams what it has written to its cache"
KNOWN: dict[str, Known] = {
    "stream.[1-9].*": Known(
        _CALLED, "held to a grammar, random weights spell <tool_call> in ordinary tokens, which is text and no marker"
    ),
    "whole.stop_sequence": Known(
        NAMES - (_STOPPED - _CALLED),
        "the vendor's messages always have it; they leave out what is null, though not in streams",
    ),
    "whole.usage.cache_creation_input_tokens": Known(NAMES, _CREATED),
    "stream.*.usage.cache_creation_input_tokens": Known(NAMES, _CREATED),
    "stream.1.content_block.signature": Known(
        frozenset({"thinking cut off"}),
        "the vendor's clients refuse a thinking block without a signature; they send none before its end",
    ),
}
"""Place, a pattern → what differs there; a case that no longer differs there fails as well."""


class Served(NamedTuple):
    """A vLLM, and its model as a worker serves it."""

    url: str
    profile: ModelProfile


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, recording: Recording, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    name: str = request.param
    tokenizer = TOKENIZER_FOLDERS[name]
    if not tokenizer.is_dir():
        pytest.skip("the tokenizer is not there")
    flags = ["--enable-scale-out", "--no-enable-prefix-caching", "--enable-prompt-tokens-details"]
    if PARSERS[name]:
        flags += ["--tool-call-parser=hermes", "--reasoning-parser=qwen3", "--enable-auto-tool-choice"]
    scratch = tmp_path_factory.mktemp("vllm")
    with answering_vllm(recording, scratch, FOLDERS[name], name, *flags, max_model_len=MAX_MODEL_LEN) as url:
        model = ModelSettings(name=name, tokenizer=str(tokenizer), max_model_len=MAX_MODEL_LEN, **PARSERS[name])
        yield Served(url, load_model(model))


def asked(url: str, body: JsonObject) -> str:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(reply.read().decode())


def theirs(url: str, body: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """The reference's answer, whole and as events."""
    lines = asked(url, body | {"stream": True}).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert [line for line in lines if line.startswith("event: ")] == [f"event: {event['type']}" for event in events]
    return json.loads(asked(url, body)), events


def generated(served: Served, prepared: Prepared) -> list[TokenChunk]:
    """What the reference's token engine makes of our prompt."""
    (prompt,) = prepared.prompts
    fields = {**prompt.fields, "token_ids": list(prompt.token_ids), "request_id": "r", "model": served.profile.name}

    async def generate() -> list[TokenChunk]:
        engine = create_engine(EngineSettings(kind="vllm", urls=(served.url,), model=served.profile.name))
        try:
            return await collect(engine, GenerateRequest.model_validate(fields))
        finally:
            await engine.close()

    return asyncio.run(generate())


def ours(served: Served, body: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Our answer, whole and as events."""
    prepared = prepare(served.profile, "anthropic", body)
    prompt = prepared.prompts[0].token_ids
    chunks = generated(served, prepared)
    whole, streamed = (
        fold.describe(
            served.profile,
            "anthropic",
            prepared.request.model_copy(update={"stream": stream}),
            response_id="msg_1",
            created=1,
            prompt_token_ids=prompt,
        )
        for stream in (False, True)
    )
    state, events = fold.start(served.profile, streamed, prompt), []
    for chunk in chunks:
        state, told, _ = fold.step(served.profile, streamed, state, chunk)
        events += told
    events += fold.finish(served.profile, streamed, state).chunks
    return fold.respond(served.profile, whole, prompt, chunks), events


RANDOM = re.compile(r"chatcmpl-(tool-)?[0-9a-f]{16}|msg_1|[0-9a-f]{32}")


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(place, value) of all that is in it, empty objects and lists included; random ids by their shape alone."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not children:
        yield path, "(random)" if isinstance(value, str) and RANDOM.fullmatch(value) else value
    for key, child in children:
        yield from leaves(child, f"{path}.{key}")


def merged(events: list[JsonObject]) -> list[JsonObject]:
    """The events with a block's deltas of one type in one: how many there are is a matter of time."""
    out: list[JsonObject] = []
    for event in events:
        delta = event.get("delta", {})
        last = out[-1].get("delta", {}) if out else {}
        if "type" in delta and last.get("type") == delta["type"] and out[-1]["index"] == event["index"]:
            joined = {name: last[name] + delta[name] for name in delta if name != "type"}
            out[-1] = {**out[-1], "delta": {**last, **joined}}
        else:
            out.append(event)
    return out


def differences(
    mine: tuple[JsonObject, list[JsonObject]], reference: tuple[JsonObject, list[JsonObject]]
) -> dict[str, tuple[Any, Any]]:
    """Place → (ours, theirs) of all that differs."""
    a, b = ({**dict(leaves(w, "whole")), **dict(leaves(merged(e), "stream"))} for w, e in (mine, reference))
    places = sorted(a.keys() | b.keys())
    return {
        p: (a.get(p, "(absent)"), b.get(p, "(absent)")) for p in places if a.get(p, "(absent)") != b.get(p, "(absent)")
    }


PARAMETERS = [pytest.param(model, name, id=name) for model, cases in CASES.items() for name in cases]


@pytest.mark.parametrize(("served", "name"), PARAMETERS, indirect=["served"], scope="module")
def test_a_message_is_the_same(served: Served, name: str) -> None:
    body = {"model": served.profile.name, **CASES[served.profile.name][name]}
    found = differences(ours(served, body), theirs(served.url, body))
    expected = [place for place, known in KNOWN.items() if name in known.cases]
    surprises = {place: pair for place, pair in found.items() if not any(fnmatch(place, e) for e in expected)}
    assert not surprises, "\n".join(f"{place}: ours, theirs {pair}" for place, pair in surprises.items())
    assert [e for e in expected if not any(fnmatch(place, e) for place in found)] == []
