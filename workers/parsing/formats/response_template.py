"""The format that a tokenizer's own files describe: the `response_template` of its configuration.

    {"fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {},
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": true}}}

Built when the model is loaded. Literal markers and calls as JSON are read; a template that needs more (patterns, other
contents) is refused by name, so that nothing is read wrongly in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Prompt, Sink

_FIELDS = {"thinking", "content", "tool_calls"}


def format_from_template(template: Mapping[str, Any]) -> Format:
    """The format of a response template.

    Raises:
        ValueError: no response template, or one that needs what tables cannot say; the message names it.
    """
    if template.get("version", 1) != 1:
        raise ValueError(f"response_template: version {template['version']!r} is not known")
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise ValueError("response_template: there are no fields")
    if unknown := set(fields) - _FIELDS:
        raise ValueError(f"response_template: fields {', '.join(sorted(unknown))} are not supported")
    plain = _table(fields, calls=False)
    if "tool_calls" not in fields:
        return plain
    whole = _table(fields, calls=True)
    return Format(
        whole.name,
        whole.markers,
        whole.modes,
        whole.rules,
        whole.start,
        prompt=whole.prompt,
        forced="json",
        plain=plain,
    )


def _literals(name: str, field: Mapping[str, Any], end: str) -> tuple[str, ...]:
    if f"{end}_pattern" in field:
        raise ValueError(f"response_template: {name}.{end}_pattern: only literal markers are supported")
    found = field.get(end, ())
    return (found,) if isinstance(found, str) else tuple(found)


def _table(fields: Mapping[str, Any], *, calls: bool) -> Format:
    markers: dict[str, str] = {}
    rules: dict[tuple[str, str], Go] = {}
    modes: dict[str, Mode] = {}

    def rule(source: str, literal: str, go: Go) -> None:
        markers[literal] = literal
        rules.setdefault((source, literal), go)

    if calls:
        field = fields["tool_calls"]
        if field.get("content", "text") != "json" or field.get("content_args"):
            raise ValueError("response_template: tool_calls.content: only plain json is supported")
        called = _literals("tool_calls", field, "open")
        if not called:
            raise ValueError("response_template: tool_calls.open: calls need an opening marker")
        modes = {"call": Mode(Sink.BODY, "json_either", "after"), "after": Mode(Sink.GAP)}
        for literal in called:
            for source in (CONTENT, REASONING, "after"):
                rule(source, literal, Go("call", Emit.CALL))
        for literal in _literals("tool_calls", field, "close"):
            rule("after", literal, Go(CONTENT))
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    if "thinking" in fields:
        opens, closes = (_literals("thinking", fields["thinking"], end) for end in ("open", "close"))
        modes[REASONING] = Mode(Sink.REASONING, "trimmed")
        for literal in opens:
            rule(CONTENT, literal, Go(REASONING))
            rule(REASONING, literal, Go(REASONING))
        for literal in closes:
            rule(REASONING, literal, Go(CONTENT))
    if "content" in fields:
        for literal in _literals("content", fields["content"], "open"):
            rule(CONTENT, literal, Go(CONTENT))
            rule(REASONING, literal, Go(CONTENT))
        for literal in _literals("content", fields["content"], "close"):
            rule(CONTENT, literal, Go(CONTENT))
    return Format(
        name="response_template" if calls else "response_template_plain",
        markers=markers,
        modes=modes,
        rules=rules,
        start=REASONING if closes and not opens else CONTENT,
        prompt=Prompt(opens=opens, closes=closes),
    )
