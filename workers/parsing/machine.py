"""Runs a parser: pieces in, events out, with the state as a value.

`parse` calls `start`, `step` and `finish`, so a whole answer cannot differ from a streamed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.protocol.events import ParseEvent
from workers.parsing import arguments
from workers.parsing.binding import Parser, Table
from workers.parsing.context import ParseContext
from workers.parsing.run import Run, merge
from workers.parsing.spec import REASONING, Sink
from workers.parsing.state import ParserState
from workers.text.pieces import Piece


def start(parser: Parser, context: ParseContext, prompt_token_ids: Sequence[int]) -> ParserState:
    """The state before the first token. This decides, once, whether the prompt left reasoning open."""
    name = "plain"
    if context.may_call:
        name = "calls"
        if context.tool_choice != "auto":
            name = "required" if context.tool_choice == "required" else "named"
    table = parser.tables[name]
    return ParserState(
        table=name,
        parallel=context.parallel_tool_calls,
        reasoning=context.include_reasoning,
        skip_special=context.skip_special_tokens,
        complete=context.tool_arguments == "complete",
        forced_name=context.forced_name,
        history=context.history_tool_call_count,
        types=_types(context, table) if context.may_call else {},
        mode=_first_mode(parser, table, context, prompt_token_ids),
        held=parser.format.prologue,
        lead="" if context.may_call or table.modes[table.answer].mode.style else None,
    )


def _first_mode(parser: Parser, table: Table, context: ParseContext, prompt_token_ids: Sequence[int]) -> str:
    prompt = parser.format.prompt
    given = [bool(context.template_arguments[name]) for name in prompt.switches if name in context.template_arguments]
    thinking = any(given) if given else prompt.thinking
    if not thinking or any(context.template_arguments.get(name) == value for name, value in prompt.off):
        return table.answer
    for token_id in reversed(prompt_token_ids):
        if token_id in parser.closes:
            return table.answer
        if token_id in parser.opens:
            return REASONING
        if token_id in parser.turns:
            break
    return table.start


def _types(context: ParseContext, table: Table) -> dict[str, dict[str, Any]]:
    """The types or schemas of the tools' arguments, as far as this table uses them."""
    modes = [live.mode for live in table.modes.values()]
    nested = any(mode.style in arguments.SCHEMA_BODIES for mode in modes)
    if not nested and not any(mode.sink is Sink.VALUE for mode in modes):
        return {}
    out: dict[str, dict[str, Any]] = {}
    for tool in context.tools:
        function = tool.get("function", tool)
        properties = (function.get("parameters") or {}).get("properties") or {}
        known: dict[str, Any] = dict(properties)
        if not nested:
            types = {key: list(arguments.types_of(schema)) for key, schema in properties.items()}
            known = {key: kinds for key, kinds in types.items() if kinds not in ([], ["string"])}
        if known:
            out[function.get("name", "")] = known
    return out


def step(parser: Parser, state: ParserState, pieces: Sequence[Piece]) -> tuple[ParserState, list[ParseEvent]]:
    """Read the next pieces; returns the state after them, and their events."""
    run = Run(parser, state)
    for piece in pieces:
        if isinstance(piece, str):
            run.read_text(piece)
        else:
            run.read_token(piece)
    return run.freeze(), run.merged()


def finish(parser: Parser, state: ParserState, finish_reason: str) -> tuple[list[ParseEvent], str]:
    """End the output; returns the events of what was held back, and the finish reason for the client.

    finish_reason: the engine's. A call that was cut off is never completed. With "length", "abort" or "error" its
    unfinished markup is dropped, unless it may not be a call at all; with "stop" it is malformed and comes out as text.
    The client gets "tool_calls" only if a call is complete, the engine stopped by itself, and the request did not force
    one named function.
    """
    run = Run(parser, state)
    run.end_of_output(cut=finish_reason in ("length", "abort", "error"))
    made = run.closed > 0 and finish_reason == "stop" and state.forced_name is None
    return run.merged(), "tool_calls" if made else finish_reason


def parse(
    parser: Parser,
    context: ParseContext,
    prompt_token_ids: Sequence[int],
    pieces: Sequence[Piece],
    finish_reason: str,
) -> tuple[list[ParseEvent], str]:
    """Parse a whole answer; returns its events, and the finish reason for the client."""
    state, events = step(parser, start(parser, context, prompt_token_ids), pieces)
    rest, reason = finish(parser, state, finish_reason)
    return merge([*events, *rest]), reason
