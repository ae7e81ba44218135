"""Parses model output (text and added tokens) into reasoning, text and tool calls.

    format = load_format("hermes", "qwen3")
    parser = bind(format, {"<think>": 151667, "</think>": 151668, "<tool_call>": 151657, "</tool_call>": 151658})
    state = start(parser, ParseContext(tools=tools), prompt_token_ids)
    state, events = step(parser, state, ["Let me ", "see."])
    events, finish_reason = finish(parser, state, "stop")

Pure, and needs only the standard library. The state is a frozen value; `ParserState.dump` and `ParserState.load`
convert it to JSON and back.
"""

from workers.parsing.binding import Parser, bind
from workers.parsing.context import ParseContext
from workers.parsing.machine import finish, parse, start, step
from workers.parsing.registry import load_format
from workers.parsing.run import merge
from workers.parsing.spec import Format
from workers.parsing.state import ParserState

__all__ = [
    "Format",
    "ParseContext",
    "Parser",
    "ParserState",
    "bind",
    "finish",
    "load_format",
    "merge",
    "parse",
    "start",
    "step",
]
