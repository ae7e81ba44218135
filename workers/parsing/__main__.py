"""Shows what a format makes of an output: `python -m workers.parsing NAME --tools tools.json < output.txt`.

NAME is a tool parser, a reasoning parser, or both as TOOLS+REASONING (`hermes+qwen3`, `+qwen3`). With `--chunk` the output
is read in pieces, with the state saved and restored between them, and the events must come out the same.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.protocol.events import CallArguments, CallEnd, CallStart, ParseEvent, Reasoning
from workers.parsing.binding import Parser, bind
from workers.parsing.context import ParseContext
from workers.parsing.machine import finish, parse, start, step
from workers.parsing.registry import REASONING, TOOLS, load_format
from workers.parsing.run import merge
from workers.parsing.spec import Format
from workers.parsing.state import ParserState


def named_format(name: str) -> Format:
    """The format of a name, or of two joined by a plus."""
    tools, plus, reasoning = name.partition("+")
    if plus:
        return load_format(tools or None, reasoning or None)
    if name in REASONING and name not in TOOLS:
        return load_format(None, name)
    return load_format(name, name if name in REASONING else None)


def cut(text: str, how: str) -> list[str]:
    """The text in chunks: "N" characters each, or "random:SEED".

    Raises:
        ValueError: neither a number nor random:SEED.
    """
    if not how.startswith("random:"):
        size = int(how)
        return [text[at : at + size] for at in range(0, len(text), size)]
    rng = random.Random(how.removeprefix("random:"))
    chunks = []
    while text:
        size = rng.choice([1, 1, 2, 3, 5, 8, 21])
        chunks.append(text[:size])
        text = text[size:]
    return chunks


def read_in_chunks(
    parser: Parser, context: ParseContext, chunks: Sequence[str], reason: str
) -> tuple[list[ParseEvent], str, int]:
    """Events, finish reason, and the largest saved state in bytes."""
    saved = json.dumps(start(parser, context, []).dump())
    events: list[ParseEvent] = []
    largest = len(saved)
    for chunk in chunks:
        state, more = step(parser, ParserState.load(json.loads(saved)), [chunk])
        saved = json.dumps(state.dump(), ensure_ascii=False)
        largest = max(largest, len(saved.encode()))
        events += more
    rest, reason = finish(parser, ParserState.load(json.loads(saved)), reason)
    return merge([*events, *rest]), reason, largest


def describe(event: ParseEvent) -> str:
    """One line for one event."""
    if isinstance(event, CallStart):
        return f"call {event.index}     {event.name}" + (f"  id {event.call_id}" if event.call_id else "")
    if isinstance(event, CallArguments):
        return f"arguments  {event.fragment}"
    if isinstance(event, CallEnd):
        return f"end {event.index}"
    return f"{'reasoning' if isinstance(event, Reasoning) else 'text':<10} {event.text!r}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m workers.parsing", description=__doc__)
    options.add_argument("name", help="tool parser, reasoning parser, or TOOLS+REASONING")
    options.add_argument("--tools", type=Path, help="JSON file with the request's tools")
    options.add_argument("--tool-choice", default="auto", help="none, auto, required, or a function's name")
    options.add_argument("--chunk", help="read N characters at a time, or random:SEED")
    options.add_argument("--complete", action="store_true", help="show a call only once it has closed")
    options.add_argument("--finish-reason", default="stop", help="the engine's finish reason")
    given = options.parse_args(arguments)
    try:
        parser = bind(named_format(given.name), {})
        tools = tuple(json.loads(given.tools.read_text(encoding="utf-8"))) if given.tools else ()
        choice = given.tool_choice if given.tool_choice in ("none", "auto", "required") else {"name": given.tool_choice}
        context = ParseContext(
            tools=tools, tool_choice=choice, tool_arguments="complete" if given.complete else "stream"
        )
        text = sys.stdin.read()
        chunks = cut(text, given.chunk) if given.chunk else None
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    events, reason = parse(parser, context, [], [text], given.finish_reason)
    same = True
    if chunks is not None:
        whole = (events, reason)
        events, reason, largest = read_in_chunks(parser, context, chunks, given.finish_reason)
        same = (events, reason) == whole
    for event in events:
        print(describe(event))
    print(f"finish     {reason}")
    if chunks is not None:
        print(
            f"# {len(chunks)} chunks, largest state {largest} bytes; as a whole it reads {'the same' if same else 'DIFFERENTLY'}"
        )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
