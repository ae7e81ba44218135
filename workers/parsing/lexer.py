"""Finds a mode's markers in text that arrives in pieces.

The leftmost marker wins; if two begin at the same place, the longer one. Only the beginning of a marker is held back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from workers.parsing.spec import Go, Mode
from workers.parsing.styles_json import Body


def _prefix_pattern(literal: str) -> str:
    """A pattern for every proper prefix of a literal, longest first."""
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
    """A compiled mode: the markers that are recognised by their text, and those that are recognised by a token id."""

    mode: Mode
    text: Mapping[str, Go]
    ids: Mapping[int, Go]
    pattern: re.Pattern[str] | None
    final: re.Pattern[str] | None
    prefixes: frozenset[str]
    body: Body | None = None
    """Sink.BODY: the argument style."""

    def find(self, text: str, at: int, *, final: bool) -> tuple[int, int, str | None]:
        """The first marker at or after `at`, as (start, end, literal).

        The literal is None if there is no marker. If the text ends with the beginning of one, that is from start to
        end; otherwise both are the text's length.
        """
        pattern = self.final if final else self.pattern
        found = pattern.search(text, at) if pattern else None
        if found is None:
            return len(text), len(text), None
        literal = found[0]
        if not final and found.end() == len(text) and literal in self.prefixes:
            return found.start(), found.end(), None
        return found.start(), found.end(), literal


def compile_mode(
    mode: Mode, rules: Mapping[str, Go], added_tokens: Mapping[str, int], spell: Callable[[str], str], body: Body | None
) -> Live:
    """Compile a mode. `rules` maps literals to targets; an added token's literal is recognised by its id only.

    spell: a literal as it is read, with a stand-in for each token in it.
    """
    text = {spell(literal): go for literal, go in rules.items() if literal not in added_tokens}
    ids = {added_tokens[literal]: go for literal, go in rules.items() if literal in added_tokens}
    prefixes = frozenset(literal[:size] for literal in text for size in range(1, len(literal)))
    return Live(mode, text, ids, _compile(text, partial=True), _compile(text, partial=False), prefixes, body)
