"""Calls as JSON objects with name and arguments, alone or in a list, between two markers or after one.

<longcat_tool_call>
{"name": "get_weather", "arguments": {"city": "Oslo"}}
</longcat_tool_call>

<tool_calls>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]</tool_calls>

functools[{"name": "get_weather", "arguments": {"city": "Oslo"}}]
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Forced, Format, Go, Mode, Sink


def json_calls(name: str, *pairs: tuple[str, str], style: str, forced: Forced = "json") -> Format:
    """The table for one or more spellings of the markers, each (opening, closing), where the closing may be ""."""
    markers: dict[str, str] = {}
    rules: dict[tuple[str, str], Go] = {}
    closed = any(closes for _, closes in pairs)
    for number, (opens, closes) in enumerate(pairs):
        key = f"CALL{number or ''}"
        markers[key] = opens
        rules[CONTENT, key] = Go("call", Emit.CALL)
        if closed:
            rules["after", key] = Go("call", Emit.CALL)
        if closes and closes not in markers.values():
            markers[f"/{key}"] = closes
            rules["after", f"/{key}"] = Go(CONTENT)
    modes = {"call": Mode(Sink.BODY, style, "after" if closed else CONTENT)}
    if closed:
        modes["after"] = Mode(Sink.GAP)
    return Format(name=name, markers=markers, modes=modes, rules=rules, forced=forced)


LONGCAT = json_calls("longcat", ("<longcat_tool_call>", "</longcat_tool_call>"), style="json_call", forced="native")
GRANITE4 = json_calls("granite4", ("<tool_call>", "</tool_call>"), style="json_call")
GRANITE = json_calls("granite", ("<|tool_call|>", ""), ("<tool_call>", ""), style="json_either")
GRANITE_20B_FC = json_calls("granite-20b-fc", ("<function_call>", ""), style="json_call")
JAMBA = json_calls("jamba", ("<tool_calls>", "</tool_calls>"), style="json_calls")
HUNYUAN_A13B = json_calls("hunyuan_a13b", ("<tool_calls>", "</tool_calls>"), style="json_calls")
PHI4_MINI_JSON = json_calls("phi4_mini_json", ("functools", ""), style="json_calls")
GIGACHAT3 = json_calls(
    "gigachat3", ("<|function_call|>", "</s>"), ("<|role_sep|>\n", ""), ("function call<|role_sep|>\n", ""),
    style="json_call",
)  # fmt: skip
INTERNLM = json_calls("internlm", ("<|action_start|><|plugin|>", "<|action_end|>"), style="json_call")

ERNIE45 = json_calls("ernie45", ("<tool_call>", "</tool_call>"), style="json_call")
