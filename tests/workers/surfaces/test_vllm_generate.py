"""The generate route makes texts and messages from parse events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Finish,
    Logprobs,
    Reasoning,
    Text,
    TokenLogprobs,
    TopLogprob,
)
from workers.surfaces.base import AnswerFacts, ChoiceDelta
from workers.surfaces.vllm_generate import GENERATE

FACTS = AnswerFacts("m", "generate-tokens-1", 7, (1, 2, 3))
PARSED = replace(FACTS, tool_parser=True, reasoning_parser=True)
CONTEXT = {"tools": [{"type": "function", "function": {"name": "look"}}], "tool_choice": "auto"}
CANDIDATES = tuple(TopLogprob(at, f"t{at}", -float(at), (116, 48 + at), at + 1) for at in range(3))
ODDS = Logprobs((TokenLogprobs(CANDIDATES[0], CANDIDATES),))
DELTAS = [
    ChoiceDelta(0, (Reasoning("Hm."), ODDS), (0,), 1, 1),
    ChoiceDelta(0, (Text("I look."), CallStart(0, "look"), CallArguments(0, "{}")), (5, 6), 3, 1),
    ChoiceDelta(0, (CallEnd(0), Finish("tool_calls")), (7,), 4, 1),
]


def about(mode: str, facts: AnswerFacts = PARSED, params: Any = None, **changes: Any) -> DerenderContext:
    body = {"token_ids": [1, 2, 3], "sampling_params": params or {}, "output_mode": mode, **changes}
    return GENERATE.describe(GENERATE.read(body), facts)


def events_of(context: DerenderContext, deltas: list[ChoiceDelta]) -> list[JsonObject]:
    state, events = GENERATE.start(context), []
    for delta in deltas:
        state, more = GENERATE.step(context, GENERATE.load(GENERATE.dump(state), context.n), delta)
        events += more
    return events + GENERATE.finish(context, state)[1]


def whole(context: DerenderContext, deltas: list[ChoiceDelta]) -> JsonObject:
    answer = GENERATE.fold(context, events_of(context, deltas))
    (choice,) = answer["choices"]
    return {**choice, "mode": answer["output_mode"]}


def test_a_message() -> None:
    choice = whole(about("derender", parse_context=CONTEXT, params={"logprobs": 2}), DELTAS)
    message = choice["message"]
    assert (message["role"], message["content"], message["reasoning"]) == ("assistant", "I look.", "Hm.")
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls" and choice["token_ids"] == [0, 5, 6, 7]
    (position,) = choice["logprobs"]["content"]
    assert position["token"] == "t0" and [top["token"] for top in position["top_logprobs"]] == ["t0", "t1"]
    assert choice["mode"] == "derender" and "text" not in choice


def test_a_streamed_message() -> None:
    events = events_of(about("derender", parse_context=CONTEXT, stream=True), DELTAS)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "reasoning": "Hm."}
    assert deltas[1]["content"] == "I look." and deltas[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert deltas[2] == {} and events[2]["choices"][0]["finish_reason"] == "tool_calls"


def test_hidden_reasoning_gives_no_tokens_away() -> None:
    context = about("derender", parse_context={**CONTEXT, "include_reasoning": False}, params={"logprobs": 2})
    masked = [replace(delta, extra={"sampling_mask": [[1]]}) for delta in DELTAS]
    choice = whole(context, masked)
    assert choice["message"]["reasoning"] is None and choice["message"]["content"] == "I look."
    assert choice["token_ids"] is None and choice["logprobs"] is None and choice["sampling_mask"] is None
    streamed = events_of(replace(context, stream=True), masked)
    assert all(event["choices"][0]["token_ids"] is None for event in streamed)
    assert len(streamed) == 2, "hidden reasoning makes no event"


def test_a_text() -> None:
    deltas = [
        ChoiceDelta(0, (ODDS,), (0,), 1),
        ChoiceDelta(0, (Text("It is"),), (5,), 2),
        ChoiceDelta(0, (Finish("stop", "so"),), (6,), 3),
    ]
    context = about("text", params={"logprobs": 1, "stop": "so"})
    assert not context.parsed and context.stops == ("so",)
    choice = whole(context, deltas)
    assert choice["text"] == "It is" and choice["token_ids"] == [0, 5, 6] and choice["stop_reason"] == "so"
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 3, "a text's candidates are not cut"
    streamed = events_of(replace(context, stream=True), deltas)
    assert [event["choices"][0]["text"] for event in streamed] == ["", "It is", ""]


def test_a_model_without_parsers_answers_plain_messages() -> None:
    context = about("derender", FACTS, parse_context={**CONTEXT, "include_reasoning": False})
    assert not context.parsed and not context.hides_tokens
    assert whole(context, [ChoiceDelta(0, (Text("Hi"), Finish("stop")), (5,), 1)])["message"]["content"] == "Hi"


def test_a_parser_needs_its_context() -> None:
    with pytest.raises(InvalidRequest) as caught:
        about("derender")
    assert caught.value.param == "parse_context"
    assert about("text").parse == {}
    reasoning = about("derender", replace(FACTS, reasoning_parser=True), parse_context=CONTEXT)
    assert reasoning.parse["tool_choice"] == "none"


def test_which_candidates_are_shown() -> None:
    for mode, params, expected in (
        ("tokens", {"logprobs": 2}, -1),
        ("text", {"logprobs": 2}, -1),
        ("text", {"logprob_token_ids": [1]}, None),
        ("derender", {"logprobs": 2}, 2),
        ("derender", {"logprobs": -1}, -1),
        ("derender", {"logprob_token_ids": [1]}, -1),
        ("derender", {}, None),
    ):
        assert about(mode, FACTS, params).logprobs == expected, (mode, params)
