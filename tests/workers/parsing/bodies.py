"""Bodies of calls as models write them, valid and malformed, by argument style."""

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


_KEYED = [json.dumps([{"get_weather": a}], ensure_ascii=False) for a in ARGUMENTS]
_KEYED += [
    json.dumps([{"get_weather": ARGUMENTS[1]}, {"ping": {}}]),
    "[]",
    '[{"": {}}]',
    '[{"f": 1}]',
    '[{"f": {}, "g": {}}]',
    "[1]",
]

_PYTHON = [
    "get_weather()",
    'get_weather(city="Oslo")',
    "get_weather(city='Zür\\'ich \"🙂\" \\\\ \\n', days=3)",
    'get_weather(where={"a": [1, {"b": None}]}, tags=["x", "}", \'], (\'], exact=True, ratio=-1.5e3)',
    'get_weather(city="a\nb", exact=null)',
    "ping ( )",
    "note (1)",
    "f(1)",
    "f(a=)",
    "f(a=b)",
    "f(a=[1)",
    "f(a=1, )",
    "Oslo",
]

_GEMMA = [
    "{}",
    "{city:Q Oslo, }Q,days:3}",
    "{where:{a:[1,{b:null}],c:QxQ},tags:[QaQ,Q]Q],exact:true, ratio:-1.5e3}",
    "{ city : word }",
    '{Qa keyQ:Q"\\🙂\nQ}',
    "{city:QOslo",
    "{city}",
    "{a:[}",
    "[1]",
    "{a:,}",
]

_NS = "]<]minimax[>["
_ELEMENTS = [
    "",
    "N<city>OsloN</city>",
    "\nN<city>Zür <b> N< é🙂N</city>\nN<days>3N</days>\n",
    "N<where>N<a>1N</a>N<a>2N</a>N<b>N<c>N</c>N</b>N</where>",
    "N<tags>N<item>xN</item>N<item>N</item>N</tags>N<exact>trueN</exact>",
    "Oslo",
    "N<city>N</town>",
    "N<>N</>",
]

BODY_SAMPLES: dict[str, list[str]] = {
    "json_object": _OBJECTS + _BAD_OBJECTS,
    "json_call": _CALLS + _BAD_CALLS,
    "json_calls": _listed(_CALLS) + _listed(_BAD_CALLS) + _BAD_CALLS,
    "json_keyed": _KEYED + _BAD_CALLS,
    "python_calls": [f"[{call}]" for call in _PYTHON] + [f"[{_PYTHON[1]}, {_PYTHON[0]}]", "[]", "[", _PYTHON[1]],
    "python_lines": [f"\n{call}\n" for call in _PYTHON] + [f"{_PYTHON[1]}\n {_PYTHON[3]}\n", "a b"],
    "gemma4": [text.replace("Q", '<|"|>') for text in _GEMMA],
    "functiongemma": [text.replace("Q", "<escape>") for text in _GEMMA],
    "minimax_m3": [text.replace("N", _NS) + (f"{_NS}</invoke>" if text != "Oslo" else "") for text in _ELEMENTS],
}
_BARE = (
    _CALLS
    + _listed(_CALLS)
    + [f"{_CALLS[0]}; {_CALLS[1]}", f"{_CALLS[0]};"]
    + _BAD_CALLS
    + ['{"answer": 42}', "[1, 2]"]
)
BODY_SAMPLES |= dict.fromkeys(("json_bare", "json_fenced", "json_either", "json_list", "json_forced", "mistral"), _BARE)
BODY_SAMPLES["json_args"] = _calls("name", "args") + _BAD_CALLS
BODY_SAMPLES["cohere"] = _listed(_calls("tool_name", "parameters")) + [
    '[{"tool_call_id": "0", "tool_name": "ping", "parameters": {}}]', *_BAD_CALLS,
]  # fmt: skip
