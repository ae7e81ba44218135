"""Format names, as vLLM's `--tool-call-parser` and `--reasoning-parser` know them, and where their tables are."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from workers.parsing.spec import Format, compose

TOOLS: dict[str, str] = {
    "hermes": "workers.parsing.formats.hermes:HERMES",
    "qwen3_json": "workers.parsing.formats.hermes:HERMES",
}

REASONING: dict[str, str] = {
    "deepseek_r1": "workers.parsing.formats.think:DEEPSEEK_R1",
    "identity": "workers.parsing.formats.plain:PLAIN",
    "qwen3": "workers.parsing.formats.think:QWEN3",
}


@cache
def load_format(tool_parser: str | None, reasoning_parser: str | None) -> Format:
    """The format of a tool-parser name and a reasoning-parser name, either of which may be None.

    Raises:
        ValueError: a name that nobody registered; the message lists those that are.
    """
    tools = _load(TOOLS, tool_parser, "tool parser") if tool_parser else None
    reasoning = _load(REASONING, reasoning_parser, "reasoning parser") if reasoning_parser else None
    return compose(tools, reasoning)


def _load(names: dict[str, str], name: str, what: str) -> Format:
    if name not in names:
        raise ValueError(f"There is no {what} {name!r}; known are {', '.join(sorted(names))}.")
    module, attribute = names[name].split(":")
    table = getattr(import_module(module), attribute)
    if not isinstance(table, Format):
        raise TypeError(f"{names[name]} is not a format.")
    return table
