"""Defines formats: markers, modes and a table of rules `(mode, marker) → (mode, emits)`; data, no code.

    HERMES = Format(
        name="hermes",
        markers={"CALL": "<tool_call>", "/CALL": "</tool_call>"},
        modes={"call": Mode(Sink.BODY, style="json_call", then="after"), "after": Mode(Sink.GAP)},
        rules={
            (CONTENT, "CALL"): Go("call", Emit.CALL),
            ("after", "/CALL"): Go(CONTENT),
        },
    )

Building a table that cannot work (unknown marker, unreachable mode, unknown style) raises `ValueError` with the
format's name.
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
    """What happens to the plain text between a mode's markers."""

    TEXT = "text"
    """It becomes text events."""
    REASONING = "reasoning"
    """It becomes reasoning events."""
    GAP = "gap"
    """Between calls: leading white space is markup and is dropped; anything else is text of the answer."""
    SKIP = "skip"
    """Inside a call's markup: white space is dropped; anything else makes the call malformed."""
    DROP = "drop"
    """Inside a call's markup: all of it is dropped."""
    NAME = "name"
    """The function's name."""
    ID = "id"
    """The id that the model gave the call."""
    KEY = "key"
    """The name of an argument."""
    VALUE = "value"
    """The value of the last key, typed by the tool's schema."""
    BODY = "body"
    """An argument style reads it, and decides where it ends."""
    DOUBT = "doubt"
    """After a marker that may be part of a value: it ends the value, and the call, only if one of this mode's markers
    follows (white space may be between); otherwise all of it is text of the value, which `then` reads on."""


class Emit(StrEnum):
    """What a marker does besides changing the mode."""

    CALL = "call"
    """A call's markup opens."""
    BEGIN = "begin"
    """The call's name is complete."""
    END = "end"
    """The call is complete."""
    KEEP = "keep"
    """The marker is plain text of the target mode."""
    READ = "read"
    """The target mode reads the marker again."""
    STRING = "string"
    """The value that follows is a string, whatever the schema says."""
    JSON = "json"
    """The value that follows is JSON, whatever the schema says."""
    EMPTY = "empty"
    """The element of the last key closes itself: its value is empty."""
    PART = "part"
    """A message begins: a line feed comes between it and earlier text, or reasoning, of the answer."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What the parser is reading: where plain text goes and, for a body or a doubt, which mode follows it."""

    sink: Sink
    style: str = ""
    """Sink.BODY: a name in `arguments.BODIES`. Sink.VALUE: a name in `arguments.VALUES`. Sink.NAME, ID and KEY: a
    name in `arguments.NAMES`. Sink.TEXT and REASONING: "trimmed". Sink.DOUBT: "end", if the end of the output ends the
    call as well. "" leaves the text as written."""
    then: str = CONTENT


class Go:
    """The target of a rule: the next mode, and what the marker does on the way."""

    __slots__ = ("emits", "to")

    def __init__(self, to: str, *emits: Emit) -> None:
        self.to = to
        self.emits = emits

    def __repr__(self) -> str:
        return f"Go({', '.join([repr(self.to), *map(str, self.emits)])})"


@dataclass(frozen=True, slots=True)
class Prompt:
    """How the request and the prompt decide whether reasoning is open when the output begins.

    If thinking is off, the output begins with the answer. `switches` are the template arguments that turn it on: if any
    of them is given, at least one must be true; otherwise `thinking` is the default. `off` lists the (argument, value)
    pairs that turn it off. If thinking is on, the last of `opens`, `closes` and `turns` (literals of added tokens) in
    the prompt decides; at a turn, or if there is none, the output begins in the format's `start` mode.
    """

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    thinking: bool = True
    off: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """How one model family writes, or only the reasoning half or tool half of that."""

    name: str
    markers: Mapping[str, str] = field(default_factory=dict)
    """Marker name → its literal text. Several names may share a literal, but not within one mode."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    rules: Mapping[tuple[str, str], Go] = field(default_factory=dict)
    start: str = CONTENT
    """The mode in which the output begins, unless the prompt decides otherwise."""
    answer: str = CONTENT
    """The mode in which the answer begins, after any reasoning."""
    prompt: Prompt = Prompt()
    interrupts: tuple[str, ...] = ()
    """Literals of the tool half that end reasoning."""
    forced: Forced = "native"
    """How the engine is constrained to write a required or named call: "native", as the family writes calls, or "json",
    a list of `{"name", "parameters"}` (required) or only the arguments (named)."""
    prologue: str = ""
    """Text that the prompt ended with but that belongs to the output."""
    suffix: str = ""
    """A regular expression for the suffix that a checkpoint's tokenizer may add to marker names (`<think:1a2b>`)."""
    plain: Format | None = None
    """The format to use if no call is allowed; None: this one without its tool half."""
    call_ids: str = "random"
    """The form of a call's id if the model gives none: "random", "kimi" (`functions.name:index`, counted over
    the conversation) or "mistral" (nine letters and digits)."""

    def __post_init__(self) -> None:
        def wrong(what: str, names: set[str], advice: str) -> ValueError:
            return ValueError(f"format {self.name}: {what}: {', '.join(sorted(names))}; {advice}")

        known = self.all_modes
        used = {marker for _, marker in self.rules}
        if names := used - set(self.markers):
            raise wrong("rules use undeclared markers", names, "add them to `markers`")
        if names := set(self.markers) - used:
            raise wrong("markers without a rule", names, "add a rule for each, or remove them")
        if names := {marker for marker, literal in self.markers.items() if not literal}:
            raise wrong("empty markers", names, "give each a literal")
        if names := {source for source, _ in self.rules} - set(known):
            raise wrong("rules from undeclared modes", names, "add them to `modes`")
        targets = {go.to for go in self.rules.values()} | {mode.then for mode in known.values()}
        if names := (targets | {self.start, self.answer}) - set(known):
            raise wrong("rules, `then`, `start` or `answer` lead to undeclared modes", names, "add them to `modes`")
        if names := set(self.modes) - self._reachable():
            raise wrong("unreachable modes", names, "add a rule that leads to each, or remove them")
        for source, mode in known.items():
            styles = arguments.STYLES.get(mode.sink.value, {"": None})
            if mode.style not in styles:
                known_styles = ", ".join(map(repr, styles))
                raise ValueError(
                    f"format {self.name}: mode {source}: unknown style {mode.style!r}; "
                    f"a mode with sink {mode.sink} may have {known_styles}"
                )
            literals = [self.markers[marker] for at, marker in self.rules if at == source]
            if twins := {literal for literal in literals if literals.count(literal) > 1}:
                raise wrong(f"mode {source} has two rules for one literal", twins, "keep one of them")

    @property
    def all_modes(self) -> dict[str, Mode]:
        """The declared modes, and the two that every format has."""
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
            if known[mode].sink in (Sink.BODY, Sink.DOUBT):
                todo.append(known[mode].then)
        return found


def live(table: Format, mode: str) -> Iterator[tuple[str, Go]]:
    """The literals of a mode's markers, each with its target."""
    for (source, marker), go in table.rules.items():
        if source == mode:
            yield table.markers[marker], go


def compose(tools: Format | None, reasoning: Format | None) -> Format:
    """Combine a reasoning half and a tool half, which are written independently, into one format.

    Where reasoning ends, the tool half's answer begins. A literal in the reasoning half's `interrupts` leads out of
    reasoning to the mode to which it leads from the answer.
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
    # If both halves have a rule for a literal, the tool half's rule wins.
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
