"""Invariants of every client protocol: its state survives JSON, and its answer depends only on the parse events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.errors import InvalidRequest, InvalidState
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext, context_from_json, context_to_json
from tasks.protocol.events import CallArguments, CallEnd, CallStart, Event, Finish, Reasoning, Text
from workers.surfaces.base import SURFACES, AnswerFacts, ChoiceDelta, Surface, load_surface

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
BODIES: dict[str, JsonObject] = {
    "anthropic": {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
    },
    "generate": {
        "token_ids": [1, 2, 3],
        "sampling_params": {"n": 2},
        "output_mode": "derender",
        "parse_context": {"tools": TOOLS, "tool_choice": "auto"},
    },
    "openai_chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "n": 2, "tools": TOOLS},
    "openai_completions": {"model": "m", "prompt": "Hi", "n": 2},
    "openai_responses": {"model": "m", "input": "Hi", "tools": [{"type": "function", "name": "look"}]},
}
FACTS = AnswerFacts("m", "id-1", 7, (1, 2, 3), tool_parser=True, reasoning_parser=True)

texts = st.text("ab é🙂\n", min_size=1, max_size=3)
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
calls = st.lists(st.sampled_from(['{"a"', ": ", "1", "}"]), max_size=3)


@st.composite
def choice_events(draw: st.DrawFn) -> list[Event]:
    """One choice's events in a legal order."""
    events: list[Event] = []
    index = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=5)):
        if kind == "call":
            events += [CallStart(index, "look"), *(CallArguments(index, part) for part in draw(calls)), CallEnd(index)]
            index += 1
        else:
            events.append(Text(draw(texts)) if kind == "text" else Reasoning(draw(texts)))
    return [*events, Finish(draw(st.sampled_from(["stop", "length"])))]


def grouped(index: int, events: list[Event], cuts: list[int]) -> Iterator[ChoiceDelta]:
    """The events as deltas, split at `cuts`; a delta has as many tokens as events."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(events)}), len(events)]
    for start, end in pairwise(bounds):
        yield ChoiceDelta(index, tuple(events[start:end]), tuple(range(start, end)), end)


def answered(
    surface: Surface, context: DerenderContext, deltas: list[ChoiceDelta], through_json: bool
) -> list[JsonObject]:
    state = surface.start(context)
    chunks: list[JsonObject] = []
    for delta in deltas:
        if through_json:
            state = surface.load(json.loads(json.dumps(surface.dump(state))), context.n)
        state, more = surface.step(context, state, delta)
        chunks += more
    _, last = surface.finish(context, state)
    return chunks + last


@pytest.fixture(params=sorted(SURFACES), scope="module")
def named(request: pytest.FixtureRequest) -> tuple[str, Surface]:
    return request.param, load_surface(request.param)


def about(named: tuple[str, Surface], **fields: Any) -> DerenderContext:
    name, surface = named
    return surface.describe(surface.read(BODIES[name] | fields), FACTS)


@unhurried
@given(st.data())
def test_the_same_events_make_the_same_answer_however_they_are_grouped(
    named: tuple[str, Surface], data: st.DataObject
) -> None:
    surface, context = named[1], about(named)
    whole: list[ChoiceDelta] = []
    cut: list[ChoiceDelta] = []
    for index in range(context.n):
        events = data.draw(choice_events())
        whole += grouped(index, events, [])
        cut += grouped(index, events, data.draw(st.lists(st.integers(0, 12), max_size=6)))
    expected = surface.fold(context, answered(surface, context, whole, through_json=False))
    assert surface.fold(context, answered(surface, context, cut, through_json=True)) == expected


@unhurried
@given(st.data())
def test_saving_the_state_changes_no_chunk(named: tuple[str, Surface], data: st.DataObject) -> None:
    surface, context = named[1], about(named, stream=True)
    deltas = [
        delta for index in reversed(range(context.n)) for delta in grouped(index, data.draw(choice_events()), [1, 2, 3])
    ]
    kept = answered(surface, context, deltas, through_json=False)
    assert answered(surface, context, deltas, through_json=True) == kept
    assert json.loads(json.dumps(kept)) == kept


def test_the_state_does_not_grow_with_the_answer(named: tuple[str, Surface]) -> None:
    surface, context = named[1], about(named, stream=True)
    state = surface.start(context)
    for count in range(1, 1000):
        state, _ = surface.step(context, state, ChoiceDelta(0, (Text("word "),), (count,), count))
    assert len(json.dumps(surface.dump(state))) < 1000


def test_the_context_survives_json(named: tuple[str, Surface]) -> None:
    context = about(named)
    assert context_from_json(json.loads(json.dumps(context_to_json(context)))) == context
    assert context.surface == named[0]


def test_what_is_no_request_or_state_is_refused(named: tuple[str, Surface]) -> None:
    surface = named[1]
    with pytest.raises(InvalidRequest) as caught:
        surface.read({"messages": 5, "prompt": 5, "input": 5})
    assert caught.value.param
    data: Any
    for data in (None, [], {}, {"choices": None}, "state"):
        with pytest.raises(InvalidState):
            surface.load(data, 2)


def test_an_unknown_surface_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        load_surface("telegraph")
