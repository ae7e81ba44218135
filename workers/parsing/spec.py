"""What a format is: markers, modes, and a table `(mode, marker) → (mode, emits)`. Data only.

    HERMES = Format(
        name="hermes",
        markers={"CALL": "<tool_call>", "/CALL": "</tool_call>"},
        modes={"call": Mode(Sink.BODY, style="json_call", then="after"), "after": Mode(Sink.GAP)},
        rules={
            (CONTENT, "CALL"): Go("call", Emit.CALL),
            ("after", "/CALL"): Go(CONTENT),
        },
    )

A table that cannot work (unknown marker, unreachable mode, unknown style) raises `ValueError` when it is built,
naming itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from workers.parsing import arguments

Forced = Literal["native", "json"]
CONTENT = "content"
REASONING = "reasoning"


class Sink(StrEnum):
    """What becomes of the plain text between a mode's markers."""

    TEXT = "text"
    """Text for the reader."""
    REASONING = "reasoning"
    """Text of the reasoning."""
    GAP = "gap"
    """Between calls: leading white space is framing and goes, anything else is text for the reader."""
    SKIP = "skip"
    """Inside a call's markup: white space goes, anything else makes the call malformed."""
    DROP = "drop"
    """Inside a call's markup: text that says nothing to anybody."""
    NAME = "name"
    """The function's name."""
    ID = "id"
    """The id that the model gave the call."""
    KEY = "key"
    """The name of an argument."""
    VALUE = "value"
    """The value of the argument named last, typed by the tool's schema."""
    BODY = "body"
    """Read by an argument style, which decides itself where it ends."""


class Emit(StrEnum):
    """What a marker does besides changing the mode."""

    CALL = "call"
    """A call's markup opens."""
    BEGIN = "begin"
    """The call's name is complete."""
    END = "end"
    """The call is complete."""
    KEEP = "keep"
    """The marker is plain text of the mode that it leads to."""
    READ = "read"
    """The marker is read again in the mode that it leads to."""
    STRING = "string"
    """The value that follows is a string, whatever the schema says."""
    JSON = "json"
    """The value that follows is JSON, whatever the schema says."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A place in the grammar: where its plain text goes, and for a body where it leads when it is complete."""

    sink: Sink
    style: str = ""
    """Sink.BODY: a name in `arguments.BODIES`. Sink.VALUE: a name in `arguments.VALUES`. Sink.NAME, ID and KEY: a
    name in `arguments.NAMES`. Sink.TEXT and REASONING: "trimmed". "" for the text as written."""
    then: str = CONTENT


class Go:
    """Where a marker leads, and what it emits on the way."""

    __slots__ = ("emits", "to")

    def __init__(self, to: str, *emits: Emit) -> None:
        self.to = to
        self.emits = emits

    def __repr__(self) -> str:
        return f"Go({', '.join([repr(self.to), *map(str, self.emits)])})"


@dataclass(frozen=True, slots=True)
class Prompt:
    """How the prompt's own tokens say whether reasoning is open when the output begins.

    With thinking off the output begins as an answer. `switches` are the template arguments that turn it on: if any of
    them is given, one must be true, else `thinking` holds; `off` are values of template arguments that turn it off.
    Else the last of `opens`, `closes` and `turns` (literal added tokens) decides; at a turn, or where none is found,
    the format's `start` mode holds.
    """

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    thinking: bool = True
    off: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """One family's language, or the reasoning or tool half of it."""

    name: str
    markers: Mapping[str, str] = field(default_factory=dict)
    """Marker name → the literal text. More than one name may share a literal, never in one mode."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    rules: Mapping[tuple[str, str], Go] = field(default_factory=dict)
    start: str = CONTENT
    """The mode in which output begins where the prompt does not say otherwise."""
    answer: str = CONTENT
    """The mode in which the answer begins, after any reasoning."""
    prompt: Prompt = Prompt()
    interrupts: tuple[str, ...] = ()
    """Literals of the tool half that end reasoning when they appear in it."""
    forced: Forced = "native"
    """What the engine is constrained to write for a required or named call: "native", or "json", a list of
    `{"name", "parameters"}` (required) or the bare arguments (named)."""
    prologue: str = ""
    """Text that belongs to the output though the prompt ended in it."""
    suffix: str = ""
    """A regular expression of what a checkpoint may add to the names of markers (`<think:1a2b>`); the tokenizer tells."""
    plain: Format | None = None
    """How to read where no call may be made; None where that is as if there were no tool half."""
    call_ids: str = "random"
    """The shape of a call's id where the model gives none: "random", "kimi" (`functions.name:index`, counted over
    the conversation) or "mistral" (nine letters and digits)."""

    def __post_init__(self) -> None:
        def wrong(what: str, names: set[str]) -> ValueError:
            return ValueError(f"format {self.name}: {what} {', '.join(sorted(names))}")

        known = self.all_modes
        used = {marker for _, marker in self.rules}
        if names := used - set(self.markers):
            raise wrong("rules use undeclared markers:", names)
        if names := set(self.markers) - used:
            raise wrong("markers without a rule:", names)
        if names := {marker for marker, literal in self.markers.items() if not literal}:
            raise wrong("empty markers:", names)
        if names := {source for source, _ in self.rules} - set(known):
            raise wrong("rules from undeclared modes:", names)
        targets = {go.to for go in self.rules.values()} | {mode.then for mode in known.values()}
        if names := (targets | {self.start, self.answer}) - set(known):
            raise wrong("undeclared modes:", names)
        if names := set(self.modes) - self._reachable():
            raise wrong("unreachable modes:", names)
        for source, mode in known.items():
            styles = arguments.STYLES.get(mode.sink.value, {"": None})
            if mode.style not in styles:
                raise ValueError(f"format {self.name}: mode {source} has no such style: {mode.style!r}")
            literals = [self.markers[marker] for at, marker in self.rules if at == source]
            if len(literals) != len(set(literals)):
                raise ValueError(f"format {self.name}: mode {source} has two rules for one literal")

    @property
    def all_modes(self) -> dict[str, Mode]:
        """The declared modes and the two that every format has."""
        return {CONTENT: Mode(Sink.TEXT), REASONING: Mode(Sink.REASONING), **self.modes}

    def _reachable(self) -> set[str]:
        known = self.all_modes
        found: set[str] = set()
        todo = [CONTENT, REASONING, self.start, self.answer]
        while todo:
            mode = todo.pop()
            if mode in found:
                continue
            found.add(mode)
            todo += [go.to for (source, _), go in self.rules.items() if source == mode]
            if known[mode].sink is Sink.BODY:
                todo.append(known[mode].then)
        return found


def live(table: Format, mode: str) -> Iterator[tuple[str, Go]]:
    """The literals that mean something in a mode, with where they lead."""
    for (source, marker), go in table.rules.items():
        if source == mode:
            yield table.markers[marker], go


def compose(tools: Format | None, reasoning: Format | None) -> Format:
    """One table out of a reasoning half and a tool half, which know nothing of each other.

    They meet in the answer: where reasoning ends, the tool half's answer begins, and the literals that the reasoning
    half lists in `interrupts` open from within reasoning what they open from the answer.
    """
    if tools is None:
        half = reasoning or Format(name="identity")
        half = half.plain or half
        return replace(half, plain=half)
    if reasoning is None or reasoning is tools:
        return tools
    reasoning = reasoning.plain or reasoning
    markers: dict[str, str] = {}
    modes: dict[str, Mode] = {}
    rules: dict[tuple[str, str], Go] = {}
    for half in (reasoning, tools):
        own = f"{half.name}."
        moved = {mode: own + mode for mode in half.modes} | {CONTENT: CONTENT, REASONING: REASONING}
        markers |= {own + marker: literal for marker, literal in half.markers.items()}
        for name, mode in half.modes.items():
            modes[moved[name]] = Mode(mode.sink, mode.style, moved[mode.then])
        for (source, marker), go in half.rules.items():
            rules[moved[source], own + marker] = Go(moved[go.to], *go.emits)
    answer = tools.answer if tools.answer in (CONTENT, REASONING) else f"{tools.name}.{tools.answer}"
    for (source, marker), go in list(rules.items()):
        closes = source != CONTENT and go.to == CONTENT and Emit.KEEP not in go.emits
        if closes and marker.startswith(f"{reasoning.name}."):
            rules[source, marker] = Go(answer, *go.emits)
    for literal, go in live(tools, CONTENT):
        if literal not in reasoning.interrupts:
            continue
        for key in [key for key in rules if key[0] == REASONING and markers[key[1]] == literal]:
            del rules[key]
        name = next(own for own, text in markers.items() if text == literal and own.startswith(f"{tools.name}."))
        to = go.to if go.to in (CONTENT, REASONING) else f"{tools.name}.{go.to}"
        rules[REASONING, name] = Go(to, *go.emits)
    # What both halves say about a literal in the answer, the tool half decides.
    seen: dict[tuple[str, str], str] = {}
    for source, marker in list(rules):
        literal = markers[marker]
        earlier = seen.get((source, literal))
        if earlier is not None and earlier != marker:
            del rules[source, earlier]
        seen[source, literal] = marker
    start = reasoning.start
    if start in reasoning.modes and start != REASONING:
        start = f"{reasoning.name}.{start}"
    elif start == CONTENT:
        start = answer
    used = {marker for _, marker in rules}
    return Format(
        name=f"{reasoning.name}+{tools.name}",
        markers={marker: literal for marker, literal in markers.items() if marker in used},
        modes=modes,
        rules=rules,
        start=start,
        answer=answer,
        prompt=reasoning.prompt,
        prologue=reasoning.prologue,
        suffix=tools.suffix or reasoning.suffix,
        plain=reasoning,
        forced=tools.forced,
        call_ids=tools.call_ids,
    )
