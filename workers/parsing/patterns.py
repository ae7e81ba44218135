r"""Delimiters that are written as regular expressions, read as what a table can say.

    <tool_call>\s*<function=(?P<name>\w+)>  ->  [("<tool_call>", Part.SPACE, "<function=", Capture("name"), ">")]
    \n?</response>                          ->  [("\n</response>",), ("</response>",)]

Alternatives of literal text, white space, text that says nothing, and named groups. A pattern that says more is refused,
so that nothing is read wrongly in silence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from itertools import product

MAX_ALTERNATIVES = 32
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_GROUP = re.compile(r"\(\?P<(\w+)>")
# A run of characters of one class, perhaps after another: a name, a value, or what stands before a literal.
_CLASS = r"(?:\[\^?\]?(?:\\.|[^\]\\])*\]|\\[wSs]|\.)"
_RUN = re.compile(rf"(?:{_CLASS})?({_CLASS})[*+]\??")


class Part(Enum):
    """What a pattern may hold besides literal text and named groups."""

    SPACE = r"\s*"
    """White space, or none."""
    ANY = ".*?"
    """Text that says nothing to anybody."""
    START = "^"
    """Where the output begins."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Text that the pattern names."""

    name: str


Step = str | Part | Capture
Steps = tuple[Step, ...]


def read_pattern(pattern: str) -> list[Steps]:
    """The alternatives of a pattern, longest first, neighbouring literals joined.

    Raises:
        ValueError: the pattern says what a table cannot; the message names what.
    """
    found, at = _alternatives(pattern, 0)
    if at < len(pattern):
        raise ValueError(f"{pattern[at:]!r} is not supported")
    unique = dict.fromkeys(_joined(steps) for steps in found)
    return sorted(unique, key=lambda steps: -sum(len(step) for step in steps if isinstance(step, str)))


def _joined(steps: Steps) -> Steps:
    out: list[Step] = []
    for step in steps:
        if isinstance(step, str) and out and isinstance(out[-1], str):
            out[-1] += step
        elif step != "" and not (step in (Part.SPACE, Part.ANY) and out and out[-1] is step):
            out.append(step)
    return tuple(out)


def _alternatives(pattern: str, at: int) -> tuple[list[Steps], int]:
    found: list[Steps] = []
    while True:
        branch, at = _sequence(pattern, at)
        found += branch
        if len(found) > MAX_ALTERNATIVES:
            raise ValueError("too many alternatives")
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
            raise ValueError(f"{pattern[at:]!r} is not supported")
        found = [before + after for before, after in product(found, atom)]
        if len(found) > MAX_ALTERNATIVES:
            raise ValueError("too many alternatives")
    return found, at


def _atom(pattern: str, at: int) -> tuple[list[Steps], int]:
    if run := _RUN.match(pattern, at):
        return [(Part.SPACE if run[1] in (r"\s", r"[\s]") else Part.ANY,)], run.end()
    if group := _GROUP.match(pattern, at):
        run = _RUN.match(pattern, group.end())
        if run is None or not pattern.startswith(")", run.end()):
            raise ValueError(f"{pattern[at:]!r} is not supported: a group is one run of characters")
        return [(Capture(group[1]),)], run.end() + 1
    if pattern.startswith("(?:", at):
        found, at = _alternatives(pattern, at + 3)
        if not pattern.startswith(")", at):
            raise ValueError(f"{pattern!r} has a group that does not close")
        return found, at + 1
    char = pattern[at]
    if char == "\\" and at + 1 < len(pattern):
        escaped = pattern[at + 1]
        if escaped.isalnum() and escaped not in _ESCAPES:
            raise ValueError(f"'\\{escaped}' is not supported")
        return [(_ESCAPES.get(escaped, escaped),)], at + 2
    if char == "^":
        return [(Part.START,)], at + 1
    if char in ".[](){}*+?$\\":
        raise ValueError(f"{pattern[at:]!r} is not supported")
    return [(char,)], at + 1
