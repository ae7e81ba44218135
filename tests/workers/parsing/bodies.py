"""Bodies of calls as models write them, good and bad, by argument style."""

from __future__ import annotations

import json

ARGUMENTS = [
    {},
    {"city": "Oslo"},
    {"city": 'Zürich "🙂" \\ \n', "days": 3},
    {"where": {"a": [1, {"b": None}]}, "tags": ["x", "}"], "exact": True, "ratio": -1.5e3},
]

_OBJECTS = [json.dumps(a, ensure_ascii=False) for a in ARGUMENTS] + [json.dumps(a, indent=2) for a in ARGUMENTS[2:]]
_BAD_OBJECTS = [
    "{",
    "}",
    "[1]",
    '{"city": }',
    '{"city" "Oslo"}',
    '{"a": 01}',
    '{"a": tru}',
    '{"a": "\\x"}',
    "Oslo",
    '{"a": "\x01"}',
]


def _calls(name: str, arguments: str) -> list[str]:
    good = [json.dumps({name: "get_weather", arguments: a}, ensure_ascii=False) for a in ARGUMENTS]
    good += [json.dumps({arguments: a, name: "ping"}) for a in ARGUMENTS]
    good += [json.dumps({name: "ping"}), json.dumps({"x": [1], name: "ping", arguments: json.dumps(ARGUMENTS[1])})]
    return good


_CALLS = _calls("name", "arguments")
_BAD_CALLS = [
    '{"name": ""}',
    '{"arguments": {}}',
    '{"name": 1}',
    '{"name": "f", "arguments": [1]}',
    '{"name": "f" x',
] + _BAD_OBJECTS


def _listed(calls: list[str]) -> list[str]:
    return [f"[{call}]" for call in calls] + [f"[{calls[0]}, {calls[1]}]", f"[\n{calls[1]},\n{calls[2]}\n]", "[]"]


BODY_SAMPLES: dict[str, list[str]] = {
    "json_object": _OBJECTS + _BAD_OBJECTS,
    "json_call": _CALLS + _BAD_CALLS,
    "json_calls": _listed(_CALLS) + _listed(_BAD_CALLS) + _BAD_CALLS,
}
