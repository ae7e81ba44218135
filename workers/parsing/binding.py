"""Binds a format to a tokenizer: compiles its modes, and finds the markers that are tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from workers.parsing import arguments
from workers.parsing.lexer import Live, compile_mode
from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Sink, live


@dataclass(frozen=True, slots=True)
class Table:
    """A format's modes, compiled for one tokenizer, and the modes in which the output and the answer begin."""

    modes: Mapping[str, Live]
    start: str
    answer: str
    parted: bool
    """Whether the answer consists of messages, which are told apart (`Emit.PART`)."""


@dataclass(frozen=True, slots=True)
class Parser:
    """A format bound to a tokenizer. Immutable; one serves any number of requests.

    tables: "calls" parses everything; "plain" leaves calls as text; "required" and "named" parse forced calls, which
    the engine writes as JSON if the format's `forced` is "json".
    """

    format: Format
    tables: Mapping[str, Table]
    opens: frozenset[int]
    closes: frozenset[int]
    turns: frozenset[int]
    marker_ids: frozenset[int]
    inner: str
    """The literals that are recognised by text: markers and bodies' punctuation. A token that is part of one is never
    hidden."""
    stand_ins: Mapping[int, str]
    """A token that is part of such a literal → the character it is read as, so that the same text spelled with ordinary
    tokens is data."""
    spelling: Mapping[str, str]
    """Such a character → the token's text."""
    suffix: str = ""
    """What this tokenizer adds to the names of the format's markers (`:1a2b` in `<think:1a2b>`)."""


def _suffix(format: Format, added_tokens: Mapping[str, int]) -> str:
    """What this tokenizer adds to the names of the format's markers."""
    if not format.suffix:
        return ""
    suffixed = re.compile(f"(</?[a-z_]+)({format.suffix})>")
    literals = set(format.markers.values())
    matches = (match for token in added_tokens if (match := suffixed.fullmatch(token)))
    return next((match[2] for match in matches if match[1] + ">" in literals), "")


def _spelled(format: Format, suffix: str, added_tokens: Mapping[str, int]) -> Format:
    """The format with its markers as this tokenizer spells them."""
    if not suffix:
        return format

    def spell(literal: str) -> str:
        suffixed = literal.removesuffix(">") + suffix + ">"
        return suffixed if suffixed in added_tokens else literal

    prompt = format.prompt
    prompt = replace(prompt, opens=tuple(map(spell, prompt.opens)), closes=tuple(map(spell, prompt.closes)))
    plain = _spelled(format.plain, suffix, added_tokens) if format.plain else None
    markers = {marker: spell(literal) for marker, literal in format.markers.items()}
    return replace(format, markers=markers, prompt=prompt, plain=plain)


_STAND_INS = range(0xFDD0, 0xFDF0)
"""Code points that Unicode reserves for a program's own use; no text contains them."""


def _inner_tokens(literals: Iterable[str], added_tokens: Mapping[str, int]) -> list[str]:
    """The added tokens that are a part of a literal, longest first; only those that look like markers themselves."""
    found = [
        token
        for token in added_tokens
        if len(token) > 2
        and not (token[0].isalnum() or token[-1].isalnum() or token[0].isspace() or token[-1].isspace())
        and any(token in literal for literal in literals)
    ]
    return sorted(found, key=len, reverse=True)[: len(_STAND_INS)]


def bind(format: Format, added_tokens: Mapping[str, int]) -> Parser:
    """Bind a format to one tokenizer.

    added_tokens: the tokenizer's added vocabulary, text → id. A marker that is exactly one of them is recognised by
        its id, and the same text spelled with ordinary tokens is data; every other marker is recognised by its text.
        Where that text contains an added token, it must be written with that token.
    """
    suffix = _suffix(format, added_tokens)
    format = _spelled(format, suffix, added_tokens)
    plain = format.plain or Format(name="identity")
    literals = set(format.markers.values()) | set(plain.markers.values())
    ids = {literal: added_tokens[literal] for literal in literals if literal in added_tokens}
    inner = literals - set(ids)
    for mode in format.all_modes.values():
        inner |= set(arguments.BODY_TOKENS.get(mode.style, ()))
    stand_ins = {text: chr(code) for text, code in zip(_inner_tokens(inner, added_tokens), _STAND_INS, strict=False)}

    def spell(literal: str) -> str:
        for text, stand_in in stand_ins.items():
            literal = literal.replace(text, stand_in)
        return literal

    calls = _table(format, added_tokens, spell)
    forced = {
        "required": _forced(format, "json_forced", added_tokens, spell),
        "named": _forced(format, "json_object", added_tokens, spell),
    }
    tables = {"plain": _table(plain, added_tokens, spell), "calls": calls}
    tables |= forced if format.forced == "json" else dict.fromkeys(forced, calls)

    def known(names: Sequence[str]) -> frozenset[int]:
        return frozenset(added_tokens[name] for name in names if name in added_tokens)

    return Parser(
        format=format,
        tables=tables,
        opens=known(format.prompt.opens),
        closes=known(format.prompt.closes),
        turns=known(format.prompt.turns),
        marker_ids=frozenset(ids.values()),
        inner="\n".join(sorted(inner)),
        stand_ins={added_tokens[text]: stand_in for text, stand_in in stand_ins.items()},
        spelling={stand_in: text for text, stand_in in stand_ins.items()},
        suffix=suffix,
    )


Spell = Callable[[str], str]


def _compiled(mode: Mode, rules: Mapping[str, Go], added_tokens: Mapping[str, int], spell: Spell) -> Live:
    body = arguments.spelled(mode.style, spell) if mode.sink is Sink.BODY else None
    return compile_mode(mode, rules, added_tokens, spell, body)


def _table(format: Format, added_tokens: Mapping[str, int], spell: Spell) -> Table:
    modes = {
        name: _compiled(mode, dict(live(format, name)), added_tokens, spell) for name, mode in format.all_modes.items()
    }
    parted = any(Emit.PART in go.emits for go in format.rules.values())
    return Table(modes, format.start, format.answer, parted)


def _forced(format: Format, style: str, added_tokens: Mapping[str, int], spell: Spell) -> Table:
    """The format with an answer that begins as JSON; if it does not, the format's own rules apply."""
    table = _table(format, added_tokens, spell)
    modes = dict(table.modes)
    ends = {
        literal: Go("forced", *go.emits) if go.to in (CONTENT, format.answer) and Emit.KEEP not in go.emits else go
        for literal, go in live(format, REASONING)
    }
    modes[REASONING] = _compiled(modes[REASONING].mode, ends, added_tokens, spell)
    modes["forced"] = _compiled(Mode(Sink.BODY, style), {}, added_tokens, spell)
    start = "forced" if table.start in (CONTENT, format.answer) else table.start
    return replace(table, modes=modes, start=start, answer="forced")
