r"""Builds a format from the `response_template` in a tokenizer's configuration.

    {"start_anchor": "<|im_start|>assistant\n",
     "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {"close": "<|im_end|>"},
        "tool_calls": {"open_pattern": "<tool_call>\\s*<function=(?P<name>\\w+)>", "close": "</tool_call>",
                       "repeats": true, "content": "xml-inline",
                       "content_args": {"tag_pattern": "<parameter=(?P<key>\\w+)>\\s*(?P<value>.*?)\\s*</parameter>"},
                       "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}}}}

A field is the region between its delimiters; inside it, only its own closing delimiter is a marker. The field without
an opening delimiter is the rest of the output. The format is built when the model is loaded: a template that a table
cannot express is rejected rather than silently misread, and the error names the unsupported part. As in every format,
the tools' schemas decide the types of values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workers.parsing.patterns import Capture, Part, Step, Steps, read_pattern
from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Prompt, Sink

_FIELDS = {"thinking", "content", "tool_calls"}
_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"),
    *("transform", "transform_each"),
}
_STYLES = {
    ("name", "arguments"): "json_either",
    ("name", "parameters"): "json_either",
    ("name", "args"): "json_args",
    ("tool_name", "parameters"): "cohere",
}
"""The keys of the name and the arguments in a JSON call → the argument style."""
_QUOTES = {'<|"|>': "gemma4", "<escape>": "functiongemma"}
"""The string delimiter of JSON with unquoted keys → the argument style."""
_TOKEN = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


def format_from_template(template: Mapping[str, Any], *, tools: bool = True, reasoning: bool = True) -> Format:
    """Build the format for a response template.

    tools, reasoning: whether to parse calls and reasoning; what is not parsed stays text.

    Raises:
        ValueError: not a response template, or one that a table cannot express; the message names the unsupported part.
    """
    if template.get("version", 1) != 1:
        raise ValueError(f"response_template: version {template['version']!r} is not supported; use version 1")
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise ValueError("response_template: no fields; add a `fields` object")
    if unknown := set(fields) - _FIELDS:
        raise ValueError(
            f"response_template: fields {', '.join(sorted(unknown))} are not supported; "
            f"use {', '.join(sorted(_FIELDS))}"
        )
    for name, field in fields.items():
        if unknown := set(field) - _KEYS:
            known = ", ".join(sorted(_KEYS))
            raise ValueError(
                f"response_template: {name}: {', '.join(sorted(unknown))} is not supported; a field may have {known}"
            )
    for wanted, name in ((tools, "tool_calls"), (reasoning, "thinking")):
        if wanted and name not in fields:
            raise ValueError(f"response_template: there is no field {name}; add it, or name no parser for it")
    plain = _Builder(template, "response_template_plain", reasoning=reasoning).build()
    if not tools:
        return plain
    builder = _Builder(template, "response_template", reasoning=reasoning)
    builder.add_calls(fields["tool_calls"])
    return replace(builder.build(), forced="json", plain=plain)


def _delimiters(name: str, field: Mapping[str, Any], end: str) -> list[Steps]:
    """A field's opening or closing delimiter; empty if it has none."""
    if f"{end}_pattern" in field:
        try:
            found = read_pattern(field[f"{end}_pattern"])
        except ValueError as error:
            raise ValueError(f"response_template: {name}.{end}_pattern: {error}") from error
    else:
        given = field.get(end, ())
        found = [(text,) for text in ([given] if isinstance(given, str) else given)]
    if found and not all(
        any(isinstance(step, str | Capture) for step in steps) or steps == _AT_START for steps in found
    ):
        raise ValueError(f"response_template: {name}.{end}: a delimiter must contain literal text or a name")
    return found


_AT_START: Steps = (Part.START,)


class _Builder:
    """Builds a table: text and reasoning first, then calls."""

    def __init__(self, template: Mapping[str, Any], name: str, *, reasoning: bool) -> None:
        self.name = name
        self.markers: dict[str, str] = {}
        self.modes: dict[str, Mode] = {}
        self.rules: dict[tuple[str, str], Go] = {}
        self.fields = template["fields"]
        self.anchors = template.get("start_anchor", ())
        self.anchors = [self.anchors] if isinstance(self.anchors, str) else list(self.anchors)
        self.turns = tuple(
            _TOKEN.findall("".join(self.anchors) or template.get("start_anchor_pattern", "").replace("\\", ""))
        )
        # If the answer has an opening delimiter, the text between regions is markup.
        self.framed = bool(_delimiters("content", self.fields.get("content", {}), "open"))
        self.outside = "outside" if self.framed else CONTENT
        if self.framed:
            self.modes["outside"] = Mode(Sink.GAP)
        self.outsides = [self.outside]
        self.start = self.outside
        self.opens: tuple[str, ...] = ()
        self.closes: tuple[str, ...] = ()
        if not reasoning:
            self.modes[REASONING] = Mode(Sink.TEXT)
        for field in ("thinking", "content"):
            if field in self.fields:
                self._add_text(field, self.fields[field])
        for anchor in self.anchors if self.framed else ():
            self._rule(self.outside, anchor, Go(self.outside))

    def build(self) -> Format:
        return Format(
            name=self.name,
            markers=self.markers,
            modes=self.modes,
            rules=self.rules,
            start=self.start,
            answer=self.outside,
            prompt=Prompt(opens=self.opens, closes=self.closes, turns=self.turns),
        )

    def _rule(self, source: str, literal: str, go: Go) -> None:
        self.markers[literal] = literal
        self.rules.setdefault((source, literal), go)

    def _mode(self, name: str, mode: Mode) -> str:
        """Add a mode under an unused name, or reuse an equal one; returns its name."""
        while self.modes.setdefault(name, mode) != mode:
            name += "'"
        return name

    # ---- text ----------------------------------------------------------------------------------------------------

    def _add_text(self, name: str, field: Mapping[str, Any]) -> None:
        where = f"response_template: {name}"
        if field.get("content", "text") != "text" or field.get("transform") is not None or field.get("join"):
            raise ValueError(f"{where}: content other than text, transform and join are not supported; remove them")
        if unknown := set(field.get("content_args") or {}) - {"strip"}:
            raise ValueError(f"{where}.content_args: {', '.join(sorted(unknown))} is not supported; use only strip")
        opens, closes = _delimiters(name, field, "open"), _delimiters(name, field, "close")
        region = REASONING if name == "thinking" else self.outside
        if name == "content" and opens:
            region = self._mode("answer", Mode(Sink.TEXT))
        # A region that is open from the beginning goes first: its opening delimiter may be repeated in it.
        for steps in sorted(opens, key=lambda steps: steps != _AT_START):
            self._open(name, steps, region)
        if name == "thinking":
            if not opens:
                self.start = REASONING
            literals = [step for steps in opens for step in steps if isinstance(step, str)]
            self.opens = tuple(dict.fromkeys([*literals, *self._first_tokens(literals)]))
        for steps in closes:
            literal = self._literal(name, "close", steps)
            self._rule(region, literal, Go(self.outside))
            if name == "thinking":
                self.closes += (literal,)
            if self.framed:
                self._rule(self.outside, literal, Go(self.outside))

    def _first_tokens(self, literals: list[str]) -> list[str]:
        """First tokens that only thinking opens with: the prompt may end inside an opening delimiter."""
        found = [token[0] for literal in literals if (token := _TOKEN.match(literal))]
        others = [str(steps) for name in self.fields if name != "thinking" for steps in self._openers(name)]
        return [token for token in found if not any(token in other for other in others)]

    def _openers(self, name: str) -> list[Steps]:
        return _delimiters(name, self.fields[name], "open")

    def _literal(self, name: str, end: str, steps: Steps) -> str:
        """The text of a delimiter that is only literal text; white space around it stays in the text before it."""
        inner = [step for step in steps if step is not Part.SPACE]
        if len(inner) != 1 or not isinstance(inner[0], str):
            raise ValueError(f"response_template: {name}.{end}_pattern: use only literal text here")
        return inner[0]

    def _open(self, name: str, steps: Steps, region: str) -> None:
        if steps == _AT_START:
            self.start = region
            return
        if steps[0] is Part.START:
            steps = steps[1:]
        if Part.ANY not in steps:
            literal = self._literal(name, "open", steps)
            for source in self.outsides:
                self._rule(source, literal, Go(region))
            if region == self.start:
                self._rule(region, literal, Go(region))
            return
        for source, literal in self._headed(name, steps):
            self._rule(source, literal, Go(region))

    def _headed(self, name: str, steps: Steps) -> list[tuple[str, str]]:
        """Add a header's modes; returns its last marker with each mode in which it counts.

        A header is dropped, unless it never ends.
        """
        match [step for step in steps if step is not Part.SPACE]:
            case [str(first), Part.ANY, str(last)]:
                header = self._mode("header", Mode(Sink.NAME))
                for source in (self.outside, header):
                    self._rule(source, first, Go(header))
                return [(header, last)]
            case [Part.ANY, str(last)]:
                # The prompt may contain the first marker.
                self.start = self._mode("header", Mode(Sink.NAME))
                return [(self.start, last), (self.outside, last)]
        raise ValueError(f"response_template: {name}.open_pattern: a header must be TEXT.*?TEXT or .*?TEXT")

    # ---- calls ---------------------------------------------------------------------------------------------------

    def add_calls(self, field: Mapping[str, Any]) -> None:
        """Add the rules for `tool_calls`."""
        opens, closes = _delimiters("tool_calls", field, "open"), _delimiters("tool_calls", field, "close")
        if not opens:
            raise ValueError("response_template: tool_calls.open: calls need an opening delimiter; add one")
        content = field.get("content", "text")
        named = [any(step == Capture("name") for step in steps) for steps in opens]
        if any(named) != all(named):
            raise ValueError("response_template: tool_calls.open_pattern: give all alternatives a name group, or none")
        if content == "xml-inline":
            if not named[0]:
                raise ValueError(
                    r"response_template: tool_calls.open_pattern: tags need a name group, such as (?P<name>\w+)"
                )
            body = self._add_tags(field, closes)
        else:
            style = _body_style(field, content, named=named[0])
            body = self._mode("body", Mode(Sink.BODY, style, "after" if closes else self.outside))
        if named[0]:
            _check_transform(field, "{name}", "{content}")
        if closes and content != "xml-inline":
            self._mode("after", Mode(Sink.GAP))
            for steps in closes:
                self._chain("tool_calls.close", "after", steps, self.outside)
            self.outsides.append("after")
        for steps in opens:
            self._open_call(steps, body)

    def _open_call(self, steps: Steps, body: str) -> None:
        steps = tuple(step for step in steps if step is not Part.START)
        first = [(source, steps) for source in self.outsides]
        if Part.ANY in steps and Capture("name") not in steps:
            first = [(source, (last,)) for source, last in self._headed("tool_calls", steps)]
        for source, rest in first:
            self._chain("tool_calls.open", source, rest, body, Emit.CALL)

    def _chain(self, where: str, source: str, steps: Steps, target: str, *emits: Emit) -> None:
        """Add the rules that lead through a delimiter, from `source` to `target`."""
        steps = steps[1:] if steps[0] is Part.SPACE else steps
        if not isinstance(steps[0], str):
            raise ValueError(f"response_template: {where}_pattern: it must begin with literal text")  # noqa: TRY004
        literals, named = [at for at, step in enumerate(steps) if isinstance(step, str)], False
        sources: list[tuple[str, tuple[Emit, ...]]] = [(source, emits)]
        for at, following in zip(literals, [*literals[1:], len(steps)], strict=True):
            between = list(steps[at + 1 : following])
            named = Capture("name") in between
            there = target if following == len(steps) and not named else self._between(where, between, at)
            for mode, some in sources:
                self._rule(mode, str(steps[at]), Go(there, *some))
            sources = [(there, (Emit.BEGIN,) if named else ())]
            if named and Part.ANY in between:
                rest = self._mode("named", Mode(Sink.DROP))
                for end in (" ", "<"):
                    self._rule(there, end, Go(rest, Emit.BEGIN))
                sources.append((rest, ()))
        if not named:
            return
        if target not in self.modes or self.modes[target].sink is not Sink.BODY:
            raise ValueError(f"response_template: {where}_pattern: it must end with literal text")
        for mode, some in sources:
            self._rule(mode, "{", Go(target, *some, Emit.READ))

    def _between(self, where: str, between: list[Step], at: int) -> str:
        """The mode between two markers of a delimiter."""
        if any(isinstance(step, Capture) and step.name != "name" for step in between):
            raise ValueError(f"response_template: {where}_pattern: the only group allowed is the name")
        if Capture("name") in between:
            return self._mode("name", Mode(Sink.NAME))
        if where.endswith("close"):
            closing = self._mode(f"closing{at}", Mode(Sink.GAP))
            self.outsides.append(closing)
            return closing
        return self._mode(f"opening{at}", Mode(Sink.DROP if Part.ANY in between else Sink.SKIP))

    def _add_tags(self, field: Mapping[str, Any], closes: list[Steps]) -> str:
        """Add the rules for arguments that are tags; returns the mode between tags."""
        given = dict(field.get("content_args") or {})
        if given.get("merge_duplicates"):
            raise ValueError("response_template: tool_calls.content_args: merge_duplicates is not supported; remove it")
        if not closes:
            raise ValueError("response_template: tool_calls.close: tags need a closing delimiter; add one")
        arguments = self._mode("arguments", Mode(Sink.DROP))
        for steps in _tags(given.get("tag_pattern")):
            opens, between, closing, stripped = steps
            parser = given.get("value_parser") or {}
            name, args = parser.get("name", "text"), parser.get("args", {})
            if parser and name not in ("text", "json"):
                where = "response_template: tool_calls.content_args.value_parser"
                raise ValueError(f"{where}: {name} is not supported; use text or json")
            stripped = stripped or (bool(parser) and name == "text" and args.get("strip", True))
            key = self._mode("key", Mode(Sink.KEY))
            value = self._mode("value", Mode(Sink.VALUE, "stripped" if stripped else ""))
            self._rule(arguments, opens, Go(key))
            self._rule(key, between, Go(value))
            self._rule(value, closing, Go(arguments))
            # A tag may close itself, or lack its end.
            self._rule(value, opens, Go(key))
            if between.endswith(">"):
                self._rule(key, between.removesuffix(">") + "/>", Go(arguments, Emit.EMPTY))
        for closer in closes:
            self._chain("tool_calls.close", arguments, closer, self.outside, Emit.END)
        return arguments


def _tags(pattern: object) -> list[tuple[str, str, str, bool]]:
    """For each alternative: the text before, between and after key and value, and whether to strip the value."""
    where = "response_template: tool_calls.content_args.tag_pattern"
    if not isinstance(pattern, str):
        raise ValueError(f"{where}: tags need a pattern; add one")  # noqa: TRY004
    try:
        found = read_pattern(pattern)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    out = []
    for steps in found:
        match steps:
            case (str(opens), Capture("key"), str(between), Capture("value"), str(closes)):
                out.append((opens, between, closes, False))
            case (
                str(opens), Capture("key"), str(between), Part.SPACE, Capture("value"), Part.SPACE, str(closes)
            ):  # fmt: skip
                out.append((opens, between, closes, True))
            case _:
                raise ValueError(f"{where}: use only a key and a value, with literal text around them")
    return out


def _body_style(field: Mapping[str, Any], content: str, *, named: bool) -> str:
    """The argument style for a region that is one body."""
    where = "response_template: tool_calls"
    given = dict(field.get("content_args") or {})
    if content == "python-call-list" and not given and not named:
        return "python_calls"
    if content != "json":
        raise ValueError(
            f"{where}.content: {content} is not supported here; use json, xml-inline, or python-call-list with neither "
            "content_args nor a name group"
        )
    quotes = given.pop("string_delims", [])
    bare = given.pop("unquoted_keys", False)
    if given:
        raise ValueError(
            f"{where}.content_args: {', '.join(sorted(given))} is not supported; use string_delims and unquoted_keys"
        )
    if quotes or bare:
        pairs = [quote[0] for quote in quotes if len(set(quote)) == 1]
        if not (bare and named and len(quotes) == len(pairs) == 1 and pairs[0] in _QUOTES):
            known = " or ".join(_QUOTES)
            raise ValueError(
                f"{where}.content_args: use unquoted_keys together with one string_delims of {known}, and put the name "
                "in the delimiter"
            )
        return _QUOTES[pairs[0]]
    if named:
        return "json_object"
    return _STYLES[_paths(field)]


def _check_transform(field: Mapping[str, Any], name: str, arguments: str) -> None:
    match field.get("transform"):
        case {"function": {"name": name_path, "arguments": rest}} if (name_path, rest) == (name, arguments):
            return
    raise ValueError(
        f"response_template: tool_calls.transform: with a name in the delimiter, use {name} as the name and "
        f"{arguments} as the arguments"
    )


def _paths(field: Mapping[str, Any]) -> tuple[str, str]:
    """The keys of the name and the arguments in a JSON call."""
    match field.get("transform"):
        case None | {"function": "{content}"}:
            return "name", "arguments"
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            paths = tuple(path.strip("{}").removeprefix("content.") for path in (name, arguments))
            if paths in _STYLES:
                return paths[0], paths[1]
    known = ", ".join(" and ".join(paths) for paths in _STYLES)
    raise ValueError(f"response_template: tool_calls.transform: calls may have {known}")
