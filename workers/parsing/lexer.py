"""Finds a mode's markers in text that arrives in pieces: the leftmost one, and of two at one place the longer.

Only the beginning of a marker is ever held back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workers.parsing.spec import Go, Mode


def _prefix_pattern(literal: str) -> str:
    """Matches every proper beginning of a literal, longest first."""
    pattern = ""
    for char in reversed(literal[1:-1]):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return re.escape(literal[0]) + pattern


def _compile(literals: Iterable[str], *, partial: bool) -> re.Pattern[str] | None:
    ordered = sorted(literals, key=len, reverse=True)
    choices: list[str] = []
    for literal in ordered:
        choices.append(re.escape(literal))
        if partial and len(literal) > 1:
            choices.append(_prefix_pattern(literal) + r"\Z")
    return re.compile("|".join(choices)) if choices else None


@dataclass(frozen=True, slots=True)
class Live:
    """A mode, ready to run: the markers that text decides, and those that a token id decides."""

    mode: Mode
    text: Mapping[str, Go]
    ids: Mapping[int, Go]
    pattern: re.Pattern[str] | None
    final: re.Pattern[str] | None
    prefixes: frozenset[str]

    def find(self, text: str, at: int, *, final: bool) -> tuple[int, int, str | None]:
        """The first marker from `at`: (where it starts, where it ends, its literal).

        The literal is None where the text ends in what may become a marker: it then runs to the text's end.
        """
        pattern = self.final if final else self.pattern
        found = pattern.search(text, at) if pattern else None
        if found is None:
            return len(text), len(text), None
        literal = found[0]
        if not final and found.end() == len(text) and literal in self.prefixes:
            return found.start(), found.end(), None
        return found.start(), found.end(), literal


def compile_mode(mode: Mode, rules: Mapping[str, Go], added_tokens: Mapping[str, int]) -> Live:
    """`rules`: literal → where it leads. Where a literal is one added token, its id decides instead of its text."""
    text = {literal: go for literal, go in rules.items() if literal not in added_tokens}
    ids = {added_tokens[literal]: go for literal, go in rules.items() if literal in added_tokens}
    prefixes = frozenset(literal[:size] for literal in text for size in range(1, len(literal)))
    return Live(mode, text, ids, _compile(text, partial=True), _compile(text, partial=False), prefixes)
