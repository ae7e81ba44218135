"""Shows how a format parses an output: `python -m workers.parsing NAME --tools tools.json < output.txt`.

NAME is a tool parser, a reasoning parser, or both as TOOLS+REASONING (`hermes+qwen3`, `+qwen3`). `--chunk` reads the
output in chunks, saves and restores the state between them, and checks that the events stay the same. `hf` and `beam`
use the `response_template` in the file given by `--template`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.protocol.events import CallArguments, CallEnd, CallStart, ParseEvent, Reasoning
from workers.parsing.binding import Parser, bind
from workers.parsing.context import ParseContext
from workers.parsing.machine import finish, parse, start, step
from workers.parsing.registry import REASONING, TEMPLATED, TOOLS, load_format
from workers.parsing.run import merge
from workers.parsing.state import ParserState


def parsers_of(name: str) -> tuple[str | None, str | None]:
    """The tool parser and the reasoning parser that NAME selects."""
    tools, plus, reasoning = name.partition("+")
    if plus:
        return tools or None, reasoning or None
    if name in REASONING and name not in TOOLS:
        return None, name
    return name, name if name in REASONING or name in TEMPLATED else None


def read_json(path: Path) -> Any:
    """The contents of a JSON file.

    Raises:
        OSError: the file cannot be read. ValueError: it is not JSON; the message names the file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def read_tools(path: Path) -> tuple[dict[str, Any], ...]:
    """The tools in a file that holds a list of tools, or a request with tools.

    Raises:
        OSError: the file cannot be read. ValueError: it holds no tools.
    """
    found = read_json(path)
    tools = found.get("tools") if isinstance(found, dict) else found
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"{path} has no tools: it must be a list of tools, or a request with tools")
    return tuple(tools)


def read_template(path: Path) -> dict[str, Any]:
    """A response template, by itself or in a tokenizer's configuration.

    Raises:
        OSError: the file cannot be read. ValueError: it holds no template.
    """
    found = read_json(path)
    template = found.get("response_template", found) if isinstance(found, dict) else None
    if isinstance(template, dict):
        return template
    raise ValueError(f"{path} has no response_template: it must be one, or a tokenizer_config.json with one")


def read_template_arguments(text: str) -> dict[str, Any]:
    """The value of `--chat-template-kwargs`.

    Raises:
        ValueError: not a JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--chat-template-kwargs is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"--chat-template-kwargs must be a JSON object, not {text}")  # noqa: TRY004
    return found


def choose(choice: str, tools: Sequence[dict[str, Any]]) -> str | dict[str, str]:
    """The tool choice for a keyword or a function's name.

    Raises:
        ValueError: no such function.
    """
    if choice in ("none", "auto", "required"):
        return choice
    names = [str(tool.get("function", tool).get("name")) for tool in tools]
    if choice not in names:
        known = ", ".join(["none", "auto", "required", *names])
        raise ValueError(f"--tool-choice {choice}: there is no such function; use one of {known}")
    return {"name": choice}


def cut(text: str, how: str) -> list[str]:
    """The text in chunks: "N" characters each, or "random:SEED".

    Raises:
        ValueError: neither a number nor random:SEED.
    """
    if not how.startswith("random:"):
        if not how.isdecimal() or int(how) == 0:
            raise ValueError(f"--chunk {how}: use a number of characters (1 or more), or random:SEED")
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
    options.add_argument("--tools", type=Path, help="JSON file: the request's tools, or the request")
    options.add_argument("--tool-choice", default="auto", help="none, auto, required, or a function's name")
    options.add_argument("--chat-template-kwargs", default="{}", help='JSON, such as {"enable_thinking": false}')
    options.add_argument("--template", type=Path, help="JSON file with a response template: tokenizer_config.json")
    options.add_argument("--chunk", help="read N characters at a time, or random:SEED")
    options.add_argument("--complete", action="store_true", help="show a call only once it has closed")
    options.add_argument("--finish-reason", default="stop", help="the engine's finish reason")
    given = options.parse_args(arguments)
    try:
        tool_parser, reasoning_parser = parsers_of(given.name)
        template = read_template(given.template) if given.template else None
        parser = bind(load_format(tool_parser, reasoning_parser, template), {})
        tools = read_tools(given.tools) if given.tools else ()
        context = ParseContext(
            tools=tools,
            tool_choice=choose(given.tool_choice, tools),
            template_arguments=read_template_arguments(given.chat_template_kwargs),
            tool_arguments="complete" if given.complete else "stream",
        )
        # As bytes, because text mode would translate line feeds.
        text = sys.stdin.buffer.read().decode("utf-8")
        chunks = cut(text, given.chunk) if given.chunk else None
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if tool_parser and not tools:
        print("# no --tools, so calls are not parsed", file=sys.stderr)
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
        verdict = "the same" if same else "DIFFERENT"
        print(f"# {len(chunks)} chunks, largest state {largest} bytes; parsed as a whole, the events are {verdict}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
