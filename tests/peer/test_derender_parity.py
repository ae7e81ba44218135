"""The derender routes' bodies, answered by us and by the reference: its derender, and its coupled server.

The first half asks the reference's derender about what its own chat templates wrote, for each of its parser pairs that
has a real tokenizer here. The second lets the reference generate, derenders its tokens, and compares with what its
coupled server answered to the same request. `KNOWN` and `COUPLED` list the wanted differences with their reasons; where
the two references differ, the coupled server is right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.protocol.base import JsonObject
from tests.peer.reference import Frontend
from tests.peer.test_render_parity import MODELS, Model, model_folder, profile_of, server_of
from tests.peer.test_template_parity import TURNS, request_of, written
from workers.derender.answers import derender_request
from workers.models.catalog import ModelProfile

# Llama 2 has no chat template.
PAIRS = [
    m
    for m in MODELS
    if not m.mistral and m.tokenizer is None and (m.tool_parser or m.reasoning_parser) and m.name != "llama2"
]


@dataclass(frozen=True)
class Variant:
    """One way to ask about a turn: what the request says, and what the engine's answer has."""

    name: str
    turn: str
    fields: tuple[tuple[str, Any], ...] = ()
    choices: int = 1
    candidates: int | None = None
    """Candidates for each position; None for no log-probabilities."""
    finish: str = "stop"


VARIANTS = [
    Variant("an answer", "an answer"),
    Variant("reasoning and a call", "reasoning and a call"),
    Variant("three choices", "reasoning", choices=3),
    Variant("calls", "calls", (("tool_choice", "auto"),)),
    Variant("tools not wanted", "a call", (("tool_choice", "none"),)),
    Variant("reasoning hidden", "all of it", (("include_reasoning", False), ("return_token_ids", True)), candidates=1),
    Variant("token ids", "an answer", (("return_token_ids", True),)),
    Variant("no candidates", "an answer", (("logprobs", True), ("top_logprobs", 0)), candidates=0),
    Variant("three candidates", "reasoning", (("logprobs", True), ("top_logprobs", 3)), candidates=4),
    Variant("twenty candidates", "an answer", (("logprobs", True), ("top_logprobs", 20)), candidates=20),
    Variant("a stop string", "an answer", (("stop", ["sunny"]),)),
    Variant("cut", "an answer", finish="length"),
    Variant("nothing", "nothing"),
]

EMPTY = "no output is an empty answer, as the coupled server gives it"
STRIPPED = (
    "white space around reasoning and calls goes in one of its two ways, whole and streamed, and stays in the other"
)
LOST = "what a model writes although no tools were wanted is text, and is not lost"
MARKERS = "streamed, the reference takes reasoning and its markers for text"
COUNTED = "tokens behind the stop string, which no engine that stops by itself would give, do not count"

KNOWN: dict[tuple[str, str, str], str] = {
    ("*", "nothing", "status"): EMPTY,
    ("*", "a stop string", "usage"): COUNTED,
    ("gpt-oss", "a stop string", "content"): "it reads this format from the tokens, which have not been cut",
    **{
        (name, "tools not wanted", "content"): LOST
        for name in ("deepseek-v4", "glm-4.5v", "glm-5.2", "gpt-oss", "qwen3.5")
    },
    **{(name, "reasoning hidden", "content"): STRIPPED for name in ("glm-4.5v", "minimax", "qwen3.5")},
    ("qwen3", "reasoning and a call, streamed", "content"): STRIPPED,
    **{
        ("minimax-m3", f"{variant}, streamed", field): MARKERS
        for variant, field in (
            ("reasoning and a call", "content"),
            ("reasoning and a call", "reasoning"),
            ("three candidates", "content"),
            ("three candidates", "reasoning"),
            ("cut", "content"),
        )
    },
}
"""(model or "*", variant or "*", field) → why it differs; a model's own row that no case needs is wrong."""


def candidates_of(token_id: int, count: int) -> list[JsonObject]:
    others = [other for other in range(1000, 1000 + count + 1) if other != token_id]
    return [
        {"token_id": i, "logprob": -0.25 * (rank + 1), "rank": rank + 1}
        for rank, i in enumerate([token_id, *others][:count])
    ]


def choice_of(index: int, ids: list[int], variant: Variant) -> JsonObject:
    choice: JsonObject = {"index": index, "token_ids": ids, "finish_reason": variant.finish}
    if variant.candidates is not None:
        choice["logprobs"] = {
            "content": [
                {"token_id": i, "logprob": -0.25, "rank": 1, "top_logprobs": candidates_of(i, variant.candidates)}
                for i in ids
            ]
        }
    return choice


def body_of(profile: ModelProfile, variant: Variant) -> JsonObject | None:
    """The one-shot body; None where the model's template does not write the turn."""
    turn = next((turn for turn in TURNS if turn.name == variant.turn), None)
    made = written(profile, turn) if turn else (written(profile, TURNS[0]) or ([1, 2], []))
    if made is None:
        return None
    prompt, ids = made
    if turn is None:
        ids = []
    # Choices of different lengths; each ends in the middle of what the first one says.
    outputs = [ids[: max(1, len(ids) - 3 * k)] if ids else [] for k in range(variant.choices)]
    return {
        "model": "m",
        "generate_response": {
            "request_id": "generate-tokens-chatcmpl-7",
            "choices": [choice_of(k, output, variant) for k, output in enumerate(outputs)],
        },
        "prompt_token_ids": prompt,
        "prompt_tokens": len(prompt),
        "chat_request": {**request_of(), **dict(variant.fields)},
    }


def fields_of(answer: JsonObject) -> JsonObject:
    """An answer's fields by name, calls without their ids, arguments as values."""
    # The id is that of the request, and reasoning tokens are counted, as by the coupled server.
    usage = {name: value for name, value in answer["usage"].items() if name != "completion_tokens_details"}
    shared = {"keys": sorted(answer), "id": answer["id"].removeprefix("generate-tokens-"), "usage": usage}
    out: JsonObject = {name: [value] for name, value in shared.items()}
    for choice in answer["choices"]:
        message = choice["message"]
        calls = [
            (call["function"]["name"], _value(call["function"]["arguments"])) for call in message.get("tool_calls", ())
        ]
        for name, value in {
            "keys of choices": sorted(choice),
            "keys of messages": sorted(message),
            "content": message["content"],
            "reasoning": message["reasoning"],
            "calls": calls,
            **{name: choice[name] for name in ("finish_reason", "stop_reason", "token_ids", "logprobs")},
        }.items():
            out.setdefault(name, []).append(value)
    return out


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def differences(ours: JsonObject, theirs: JsonObject) -> dict[str, tuple[Any, Any]]:
    return {
        name: (ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    }


@pytest.mark.parametrize("model", PAIRS, ids=lambda model: model.name)
def test_a_body_is_answered_as_by_the_reference(frontend: Frontend, model: Model, tmp_path: Path) -> None:
    if not model.folder.exists():
        pytest.skip("the tokenizer is not there")
    profile = profile_of(model)
    server = server_of(model, model_folder(model, tmp_path))
    wrong = compare_whole(frontend, server, model, profile) + compare_streams(frontend, server, model, profile)
    assert not wrong, "\n".join(wrong)


def compare_whole(frontend: Frontend, server: JsonObject, model: Model, profile: ModelProfile) -> list[str]:
    wrong = []
    for variant in VARIANTS:
        body = body_of(profile, variant)
        if body is None:
            continue
        theirs = frontend.ask(server, body)
        ours = fields_of(derender_request(profile, "openai_chat", body, created=1))
        others = fields_of(theirs["body"]) if theirs["status"] == 200 else {"status": theirs["status"], **ours}
        wrong += surprises(model, variant.name, ours, others)
    return wrong


def surprises(model: Model, variant: str, ours: JsonObject, theirs: JsonObject) -> list[str]:
    """Differences without a row, and rows of this model's own without a difference."""
    found = differences(ours, theirs)
    wrong = [
        f"{variant}: {name}: ours {mine!r}, theirs {other!r}"
        for name, (mine, other) in found.items()
        if (model.name, variant, name) not in KNOWN and ("*", variant, name) not in KNOWN
    ]
    rows = [name for of, about, name in KNOWN if (of, about) == (model.name, variant)]
    return wrong + [f"{variant}: {name}: differs no more" for name in rows if name not in found]


STREAMED = ("reasoning and a call", "three candidates", "cut")


def compare_streams(frontend: Frontend, server: JsonObject, model: Model, profile: ModelProfile) -> list[str]:
    """One token a call; the client's request and the prompt go to us with the first call alone."""
    wrong = []
    for variant in VARIANTS:
        body = body_of(profile, variant) if variant.name in STREAMED else None
        if body is None:
            continue
        events = events_of(body)
        context = {name: body[name] for name in ("prompt_token_ids", "prompt_tokens", "chat_request")}
        state, told = None, []
        for event in events:
            asked = {"model": "m", "stream": True, "generate_chunk": event}
            asked |= {"stream_state": state} if state else context
            answer = derender_request(profile, "openai_chat", json.loads(json.dumps(asked)), created=1)
            state = answer["stream_state"]
            told.append(answer["chunk"])
            assert len(json.dumps(state)) < 2_048 + len(json.dumps(context["chat_request"]["tools"]))
        state, theirs = None, []
        for event in events:
            asked = {"model": "m", "stream": True, "generate_chunk": event, **context, "stream_state": state}
            answered = frontend.ask(server, asked)
            assert answered["status"] == 200, answered
            state = answered["body"]["stream_state"]
            theirs.append(answered["body"]["chunk"])
        wrong += surprises(model, f"{variant.name}, streamed", summed(told), summed(theirs))
    return wrong


def events_of(body: JsonObject) -> list[JsonObject]:
    """The first choice of a whole answer as the engine's events, one token each."""
    (choice, *_) = body["generate_response"]["choices"]
    last = len(choice["token_ids"]) - 1
    events = []
    for at, token_id in enumerate(choice["token_ids"]):
        part = {"index": 0, "token_ids": [token_id], "finish_reason": choice["finish_reason"] if at == last else None}
        if "logprobs" in choice:
            part["logprobs"] = {"content": choice["logprobs"]["content"][at : at + 1]}
        events.append({"request_id": "generate-tokens-chatcmpl-7", "choices": [part]})
    return events


def summed(chunks: list[JsonObject]) -> JsonObject:
    """What all chunks of a stream of one choice add up to."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.get("tool_calls") or ():
            made = calls.setdefault(call["index"], ["", ""])
            made[0] += (call.get("function") or {}).get("name") or ""
            made[1] += (call.get("function") or {}).get("arguments") or ""
    return {
        "keys": sorted({tuple(sorted(chunk)) for chunk in chunks}),
        "keys of choices": sorted({tuple(sorted(choice)) for choice in choices}),
        "roles": [delta.get("role") for delta in deltas],
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning": "".join(delta.get("reasoning") or "" for delta in deltas),
        "calls": [(name, _value(arguments)) for name, arguments in calls.values()],
        "finish_reason": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "stop_reason": [choice["stop_reason"] for choice in choices if choice["stop_reason"]],
        "logprobs": [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content", ())],
        "token_ids": [token_id for choice in choices for token_id in choice.get("token_ids") or ()],
    }
