"""Every recorded case, as a whole and in pieces, with calls streamed and with calls complete."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.protocol.events import CallArguments, CallEnd, CallStart, ParseEvent, Reasoning, Text
from workers.parsing import ParseContext, bind, finish, load_format, merge, parse, start, step
from workers.parsing.registry import REASONING, TOOLS

GOLDEN = Path(__file__).parents[2] / "golden"
OFFERED = tuple(json.loads((GOLDEN / "offered.json").read_text(encoding="utf-8")))


def meaning(events: Sequence[ParseEvent]) -> list[list[Any]]:
    """Events as the recorded cases write them; a call that did not close does not count."""
    out: list[list[Any]] = []
    name, call_id, fragments = "", None, ""
    for event in events:
        if isinstance(event, Text | Reasoning):
            kind = "text" if isinstance(event, Text) else "reasoning"
            if out and out[-1][0] == kind:
                out[-1][1] += event.text
            else:
                out.append([kind, event.text])
        elif isinstance(event, CallStart):
            name, call_id, fragments = event.name, event.call_id, ""
        elif isinstance(event, CallArguments):
            fragments += event.fragment
        elif isinstance(event, CallEnd):
            out.append(["call", name, json.loads(fragments), *([call_id] if call_id else [])])
    return out


def cases(kind: str, name: str) -> list[dict[str, Any]]:
    path = GOLDEN / name / f"{kind}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["cases"])


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_recorded_cases_after_reasoning(name: str) -> None:
    table = load_format(name, "deepseek_r1")
    if load_format(name, None).plain is not None:
        pytest.skip("one format parses both reasoning and calls")
    parser = bind(table, {})
    for case in cases("tools", name):
        context = ParseContext.from_json({"tools": OFFERED, "tool_arguments": "complete", **case.get("context", {})})
        text = f"hm</think>{case['text']}"
        for pieces in ([text], list(text)):
            events, reason = parse(parser, context, [], pieces, case["finish_reason"])
            assert meaning(events) == [["reasoning", "hm"], *case["events"]], case["case"]
            assert reason == case["reason"]


NAMED = [("tools", name) for name in sorted(TOOLS)] + [("reasoning", name) for name in sorted(REASONING)]


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_recorded_cases(kind: str, name: str) -> None:
    table = load_format(name, None) if kind == "tools" else load_format(None, name)
    recorded = cases(kind, name)
    assert len(recorded) >= 12
    parser = bind(table, {})
    rng = random.Random(name)
    for case in recorded:
        for mode in ("complete", "stream"):
            tools = OFFERED if kind == "tools" else ()
            context = ParseContext.from_json({"tools": tools, "tool_arguments": mode, **case.get("context", {})})
            events, reason = parse(parser, context, [], [case["text"]], case["finish_reason"])
            assert meaning(events) == case["events"], (case["case"], mode)
            assert reason == case["reason"], (case["case"], mode)
            if mode == "complete":
                assert sum(isinstance(e, CallStart) for e in events) == sum(isinstance(e, CallEnd) for e in events)
            state, got = start(parser, context, []), []
            at = 0
            while at < len(case["text"]):
                size = rng.choice([1, 2, 5, 19])
                state, more = step(parser, state, [case["text"][at : at + size]])
                got += more
                at += size
            more, reason = finish(parser, state, case["finish_reason"])
            assert (merge([*got, *more]), reason) == (events, case["reason"]), (case["case"], mode)
