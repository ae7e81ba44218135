r"""Reads delimiters that are written as regular expressions, as steps that a table can express.

    <tool_call>\s*<function=(?P<name>\w+)>  ->  [("<tool_call>", Part.SPACE, "<function=", Capture("name"), ">")]
    \n?</response>                          ->  [("\n</response>",), ("</response>",)]

Supported are alternatives of literal text, white space, ignored text and named groups. Any other pattern is rejected
rather than silently misread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from itertools import product

MAX_ALTERNATIVES = 32
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_GROUP = re.compile(r"\(\?P<(\w+)>")
# A run of characters of one class, perhaps after one of another: a name, a value, or the text before a literal.
_CLASS = r"(?:\[\^?\]?(?:\\.|[^\]\\])*\]|\\[wSs]|\.)"
_RUN = re.compile(rf"(?:{_CLASS})?({_CLASS})[*+]\??")


class Part(Enum):
    """What a pattern may contain besides literal text and named groups."""

    SPACE = r"\s*"
    """White space, or none."""
    ANY = ".*?"
    """Text that is ignored."""
    START = "^"
    """The beginning of the output."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A named group."""

    name: str


Step = str | Part | Capture
Steps = tuple[Step, ...]


def read_pattern(pattern: str) -> list[Steps]:
    """The alternatives of a pattern, longest first, with adjacent literals joined.

    Raises:
        ValueError: a table cannot express the pattern; the message quotes the unsupported part.
    """
    found, at = _alternatives(pattern, 0)
    if at < len(pattern):
        raise _unsupported(pattern[at:])
    unique = dict.fromkeys(_joined(steps) for steps in found)
    return sorted(unique, key=lambda steps: -sum(len(step) for step in steps if isinstance(step, str)))


def _unsupported(part: str) -> ValueError:
    return ValueError(
        rf"{part!r} is not supported; use only literal text, \s*, .*? and named groups such as (?P<name>\w+)"
    )


def _joined(steps: Steps) -> Steps:
    out: list[Step] = []
    for step in steps:
        if isinstance(step, str) and out and isinstance(out[-1], str):
            out[-1] += step
        elif step != "" and not (step in (Part.SPACE, Part.ANY) and out and out[-1] is step):
            out.append(step)
    return tuple(out)


def _too_many(pattern: str) -> ValueError:
    return ValueError(f"{pattern!r} has more than {MAX_ALTERNATIVES} alternatives; use fewer `|` and `?`")


def _alternatives(pattern: str, at: int) -> tuple[list[Steps], int]:
    found: list[Steps] = []
    while True:
        branch, at = _sequence(pattern, at)
        found += branch
        if len(found) > MAX_ALTERNATIVES:
            raise _too_many(pattern)
        if not pattern.startswith("|", at):
            return found, at
        at += 1


def _sequence(pattern: str, at: int) -> tuple[list[Steps], int]:
    found: list[Steps] = [()]
    while at < len(pattern) and pattern[at] not in "|)":
        atom, at = _atom(pattern, at)
        if pattern.startswith("?", at):
            atom, at = [*atom, ()], at + 1
        if pattern[at : at + 1] in ("*", "+", "{"):
            raise _unsupported(pattern[at:])
        found = [before + after for before, after in product(found, atom)]
        if len(found) > MAX_ALTERNATIVES:
            raise _too_many(pattern)
    return found, at


def _atom(pattern: str, at: int) -> tuple[list[Steps], int]:
    if run := _RUN.match(pattern, at):
        return [(Part.SPACE if run[1] in (r"\s", r"[\s]") else Part.ANY,)], run.end()
    if group := _GROUP.match(pattern, at):
        run = _RUN.match(pattern, group.end())
        if run is None or not pattern.startswith(")", run.end()):
            raise _unsupported(pattern[at:])
        return [(Capture(group[1]),)], run.end() + 1
    if pattern.startswith("(?:", at):
        found, at = _alternatives(pattern, at + 3)
        if not pattern.startswith(")", at):
            raise ValueError(f"{pattern!r} has an unclosed group; add the missing ')'")
        return found, at + 1
    char = pattern[at]
    if char == "\\" and at + 1 < len(pattern):
        escaped = pattern[at + 1]
        if escaped.isalnum() and escaped not in _ESCAPES:
            raise _unsupported(f"\\{escaped}")
        return [(_ESCAPES.get(escaped, escaped),)], at + 2
    if char == "^":
        return [(Part.START,)], at + 1
    if char in ".[](){}*+?$\\":
        raise _unsupported(pattern[at:])
    return [(char,)], at + 1
