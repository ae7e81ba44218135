"""Invariants of every format, tested on outputs drawn from its own table."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tasks.protocol.events import CallArguments, CallEnd, CallStart, ParseEvent, Reasoning, Text
from tests.workers.parsing import walks
from workers.parsing import (
    Format,
    ParseContext,
    Parser,
    ParserState,
    bind,
    finish,
    load_format,
    merge,
    parse,
    start,
    step,
)
from workers.parsing.registry import REASONING, TOOLS
from workers.text.pieces import Piece

WALKS = int(os.environ.get("TOKENYARD_WALKS", "12"))
"""Outputs drawn for each pair of names; more find rarer bugs."""

Pair = tuple[str | None, str | None]


def _pairs() -> list[Pair]:
    """Every name alone, and with one name of the other kind; names that share a table count once."""
    tools = sorted({where: name for name, where in sorted(TOOLS.items(), reverse=True)}.values())
    reasonings = sorted({where: name for name, where in sorted(REASONING.items(), reverse=True)}.values())
    pairs: list[Pair] = [(None, None)]
    pairs += [(name, None) for name in tools]
    pairs += [(None, name) for name in reasonings]
    pairs += [(name, name if name in REASONING else "deepseek_r1") for name in tools]
    pairs += [("hermes", name) for name in reasonings]
    return pairs


PAIRS = _pairs()


def _format(pair: Pair) -> Format:
    return load_format(*pair)


def context(**changes: object) -> ParseContext:
    return ParseContext(**{"tools": walks.TOOLS, **changes})  # type: ignore[arg-type]


def streamed(
    parser: Parser, given: ParseContext, chunks: Sequence[Sequence[Piece]], reason: str
) -> tuple[list[ParseEvent], str]:
    """The events of the chunks, with the state saved and restored through JSON before each."""
    saved = json.dumps(start(parser, given, []).dump())
    events: list[ParseEvent] = []
    for chunk in chunks:
        state, more = step(parser, ParserState.load(json.loads(saved)), chunk)
        saved = json.dumps(state.dump())
        events += more
    rest, reason = finish(parser, ParserState.load(json.loads(saved)), reason)
    return merge([*events, *rest]), reason


def check_calls(events: Sequence[ParseEvent], *, complete: bool) -> None:
    """Calls are in order and well formed; a closed call is valid JSON; with `complete`, every call is closed."""
    open_index, fragments, following = None, "", 0
    for event in events:
        if isinstance(event, CallStart):
            assert event.index >= following and event.name == event.name.strip() != ""
            open_index, fragments, following = event.index, "", event.index + 1
        elif isinstance(event, CallArguments):
            assert event.index == open_index
            fragments += event.fragment
        elif isinstance(event, CallEnd):
            assert event.index == open_index
            assert isinstance(json.loads(fragments), dict)
            open_index = None
        elif complete:
            assert open_index is None
    assert not (complete and open_index is not None)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_any_split_and_any_restore_gives_the_same_events(pair: Pair) -> None:
    table = _format(pair)
    rng = random.Random(f"{pair}")
    literals = sorted(set(table.markers.values()))
    added = {literal: 1000 + at for at, literal in enumerate(literals)}
    parsers = [(bind(table, {}), {}), (bind(table, added), added)]
    for _ in range(WALKS):
        parts = walks.draw(table, rng)
        reason = rng.choice(["stop", "length"])
        choice = rng.choice(["auto", "auto", "auto", "none", "required", {"name": "ping"}])
        given = context(
            tool_choice=choice,
            tool_arguments=rng.choice(["stream", "complete"]),
            parallel_tool_calls=rng.random() < 0.8,
        )
        for parser, vocabulary in parsers:
            special = frozenset(literal for literal in vocabulary if rng.random() < 0.5)
            pieces = walks.pieces_of(parts, vocabulary, special)
            want = parse(parser, given, [], pieces, reason)
            check_calls(want[0], complete=given.tool_arguments == "complete")
            splits = [walks.cut_pieces(pieces, rng) for _ in range(2)]
            if not vocabulary:
                splits += [[[char] for char in "".join(parts)], walks.split_text(parts, rng)]
            for chunks in splits:
                assert streamed(parser, given, chunks, reason) == want, (parts, chunks, special, given, reason)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_text_without_markup_is_not_touched(pair: Pair) -> None:
    parser = bind(_format(pair), {})
    text = "  It is 3 < 4, é🙂.\n\n* one\n* two \n"
    for given in (context(), context(tool_choice="none"), ParseContext()):
        given = replace(given, template_arguments=dict.fromkeys(THINKING_OFF, False))
        events, reason = parse(parser, given, [], [text], "stop")
        got = "".join(event.text for event in events if isinstance(event, Text | Reasoning))
        assert got == _format(pair).prologue + text
        assert reason == "stop"


THINKING_OFF = ("enable_thinking", "thinking")


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_no_word_for_the_reader_is_lost(pair: Pair) -> None:
    """Words before, between and after calls, valid or malformed, come out once and in order."""
    table = _format(pair)
    parser = bind(table, {})
    rng = random.Random(f"words {pair}")
    for _ in range(WALKS):
        words: list[str] = []
        text = "".join(walks.draw(table, rng, 14, words))
        events, _ = parse(parser, context(tool_arguments="complete"), [], [text], "stop")
        content = " ".join(_content(event) for event in events)
        places = [content.find(word) for word in words]
        assert -1 not in places, (text, events)
        assert places == sorted(places), (text, events)
        assert all(content.count(word) == 1 for word in words), (text, events)


def _content(event: ParseEvent) -> str:
    """An event's text, arguments or name; words inside an unfinished body come out as one of the latter."""
    if isinstance(event, Text | Reasoning):
        return event.text
    if isinstance(event, CallArguments):
        return event.fragment
    return event.name if isinstance(event, CallStart) else ""


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_state_does_not_grow_with_the_output(pair: Pair) -> None:
    table = _format(pair)
    parser = bind(table, {})
    sizes = []
    state = start(parser, context(), [])
    base = len(json.dumps(state.dump()))
    for _ in range(400):
        state, _ = step(parser, state, ["The weather is <fine> in Oslo, 3 < 4.\n "])
        sizes.append(len(json.dumps(state.dump())))
    assert max(sizes) - base < 400
    assert max(sizes[-200:]) <= max(sizes[:200])


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_malformed_and_unfinished_markup_never_ends_as_a_call(pair: Pair) -> None:
    """Cut an output at every character: only calls that closed before the cut may be closed."""
    table = _format(pair)
    parser = bind(table, {})
    rng = random.Random(f"cut {pair}")
    for _ in range(max(3, WALKS // 6)):
        text = "".join(walks.draw(table, rng, 6))
        whole, _ = parse(parser, context(), [], [text], "length")
        ends = sum(isinstance(event, CallEnd) for event in whole)
        closed = 0
        for size in range(len(text) + 1):
            for mode in ("stream", "complete"):
                events, reason = parse(parser, context(tool_arguments=mode), [], [text[:size]], "length")
                check_calls(events, complete=mode == "complete")
                assert reason == "length"
            now = sum(isinstance(event, CallEnd) for event in events)
            assert closed <= now <= ends
            closed = now
