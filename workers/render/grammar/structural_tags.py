"""How each family writes tool calls, as structural tags, from which the engine builds its grammar.

    {"type": "structural_tag", "format": {"type": "tags_with_separator", "separator": "", "at_least_one": true,
     "stop_after_first": false, "tags": [{"type": "tag", "begin": "<tool_call>\\n{\\"name\\": \\"get_weather\\", \\"arguments\\": ",
     "content": {"type": "json_schema", "json_schema": {...}, "style": "json", ...}, "end": "}\\n</tool_call>"}]}}

A family is an entry of `FAMILIES`: a call's markers, the section around all calls, and the shape of a forced answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasks.protocol.conversation import JsonObject
from workers.render.grammar.argument_tags import tag_hunyuan, tag_kimi
from workers.render.grammar.harmony_tags import tag_calls

Choice = Literal["auto", "required", "named"]
HARMONY = "harmony"
"""The family that writes calls as messages, without markup."""
HUNYUAN, KIMI_K3 = "hy_v4", "kimi_k3"
"""The families that write arguments as elements with bare values."""

_THINK = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class CallTags:
    """How one family writes calls.

    `calls` are the (begin, end) texts that a call may have, with NAME in place of the function's name; `style` is the
    argument style. `section` encloses all calls, if the family has one. `trigger` is how a call or section begins
    in free text, and `excludes` is what free text must not contain. `forced` is the shape of a forced answer: the bare
    list of calls ("list"), free text with at least one call ("text"), the section as one tag ("tag"), or the section
    as a sequence after `lead` ("sequence"). `one` is the shape of a single named call in it: the tag itself ("bare")
    or a list that stops after the first call ("list").
    """

    calls: tuple[tuple[str, str], ...]
    trigger: str
    forced: Literal["list", "text", "tag", "sequence"]
    one: Literal["bare", "list"] = "bare"
    style: str = "json"
    excludes: tuple[str, ...] = _THINK
    section: tuple[str, str | tuple[str, ...]] | None = None
    separator: str = ""
    lead: str = ""
    numbered: str | None = None
    """The text between a call's number, which follows its name, and its arguments; None if calls have no number."""
    shallow: bool = False
    """Constrain argument names and basic types even if a tool is not strict; forced calls are then a list."""


_HERMES_CALL = '{"name": "NAME", "arguments": '
_PLAMO_CALL = (
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME<|plamo:end_tool_name:plamo|>"
    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
)
_GLM_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def _hermes(begin: str, end: str) -> CallTags:
    return CallTags(
        calls=((f"{begin}\n{_HERMES_CALL}", "}\n" + end), (f"{begin}{_HERMES_CALL}", "}" + end)),
        trigger=begin,
        forced="list",
        one="list",
        excludes=(),
    )


def _dsml(section: str, invoke: str, style: str) -> CallTags:
    return CallTags(
        calls=((f'<｜DSML｜{invoke} name="NAME">\n', f"</｜DSML｜{invoke}>\n"),),
        trigger=f"<｜DSML｜{section}>",
        section=(f"<｜DSML｜{section}>\n", f"</｜DSML｜{section}>"),
        forced="sequence",
        style=style,
        lead="\n\n",
    )


FAMILIES: dict[str, CallTags] = {
    "deepseek_r1": CallTags(
        calls=(("<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>"),),
        trigger="<｜tool▁calls▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        separator="\n",
        forced="tag",
    ),
    "deepseek_v3_1": CallTags(
        calls=(("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),),
        trigger="<｜tool▁calls▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        forced="tag",
    ),
    "deepseek_v3_2": _dsml("function_calls", "invoke", "deepseek_xml"),
    "deepseek_v4": _dsml("tool_calls", "invoke", "deepseek_xml"),
    "deepseek_v4_1": _dsml(" calls", " invoke", "deepseek_v4_1_xml"),
    "glm_4_7": CallTags(
        calls=(("<tool_call>NAME", "</tool_call>"),),
        trigger="<tool_call>",
        forced="text",
        style="glm_xml",
        shallow=True,
        excludes=_THINK + _GLM_MARKERS[1:],
    ),
    "hermes": _hermes("<tool_call>", "</tool_call>"),
    "kimi": CallTags(
        calls=(("<|tool_call_begin|>functions.NAME:", "<|tool_call_end|>"),),
        trigger="<|tool_calls_section_begin|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        forced="sequence",
        excludes=(*_THINK, "<|tool_call_begin|>"),
        numbered="<|tool_call_argument_begin|>",
    ),
    "llama": CallTags(calls=(('{"name": "NAME", "parameters": ', "}"),), trigger='{"name": ', forced="text"),
    "longcat": _hermes("<longcat_tool_call>", "</longcat_tool_call>"),
    "mimo": CallTags(
        calls=(("<tool_call><function=NAME>", "</function></tool_call>"),),
        trigger="<tool_call>",
        forced="text",
        style="qwen_xml",
        excludes=(*_THINK, "</tool_call>", "<function="),
    ),
    "minimax": CallTags(
        calls=(('<invoke name="NAME">\n', "</invoke>\n"),),
        trigger="<minimax:tool_call>",
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        forced="sequence",
        one="list",
        style="minimax_xml",
        lead="\n",
    ),
    "plamo3": CallTags(
        calls=((_PLAMO_CALL, "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"),),
        trigger="<|plamo:begin_tool_requests:plamo|>",
        section=(
            "<|plamo:begin_tool_requests:plamo|>",
            ("<|plamo:end_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|><|plamo:tag|>"),
        ),
        forced="tag",
        one="list",
        excludes=(),
    ),
    "qwen_3_coder": CallTags(
        calls=(("<tool_call>\n<function=NAME>\n", "\n</function>\n</tool_call>"),),
        trigger="<tool_call>\n<function=",
        forced="text",
        style="qwen_xml",
    ),
}


def build_tag(
    family: str, tools: Sequence[JsonObject], choice: Choice, *, single: bool = False, suffix: str = ""
) -> JsonObject:
    """The structural tag for a tool choice: `required` and `named` force a call, and `named` takes one tool.

    Arguments must match the tool's schema if its `function.strict` is true. `single` allows one call at most. `suffix`
    is what the checkpoint appends to the names of its markers, in families that do so.
    """
    if family == HARMONY:
        arguments = [(tool["function"]["name"], _schema(_argument_schema(tool["function"]))) for tool in tools]
        return tag_calls(arguments, may_answer=choice == "auto")
    auto, one = choice == "auto", choice == "named"
    if family == HUNYUAN:
        return tag_hunyuan(tools, auto=auto, one=one, single=single, suffix=suffix)
    if family == KIMI_K3:
        return tag_kimi(tools, auto=auto, one=one, single=single)
    tags = FAMILIES[family]
    calls = [tag for tool in tools for tag in _call(tags, tool["function"])]
    if tags.shallow and not all(tool["function"].get("strict") is True for tool in tools):
        tags = replace(tags, forced="list", one="list")
    return {"type": "structural_tag", "format": _format(tags, calls, choice, single)}


def _format(tags: CallTags, calls: list[JsonObject], choice: Choice, single: bool) -> JsonObject:
    if choice == "auto":
        inner = calls if tags.section is None else [_in_section(tags, _list(tags, calls, single))]
        return _text(tags, inner, at_least_one=False, single=single)
    one = choice == "named" and tags.one == "bare"
    body = calls[0] if one else _list(tags, calls, single or choice == "named")
    match tags.forced:
        case "list":
            return body
        case "text":
            return body if one else _text(tags, calls, at_least_one=True, single=single)
        case "tag":
            return _joined(tags, body) if one else _in_section(tags, body)
        case "sequence":
            assert tags.section is not None
            begin, end = tags.section
            return {"type": "sequence", "elements": [_const(tags.lead + begin), body, _const(str(end))]}


def _text(tags: CallTags, inner: list[JsonObject], *, at_least_one: bool, single: bool) -> JsonObject:
    return {
        "type": "triggered_tags",
        "triggers": [tags.trigger],
        "tags": inner,
        "at_least_one": at_least_one,
        "stop_after_first": single,
        "excludes": list(tags.excludes),
    }


def _list(tags: CallTags, calls: list[JsonObject], single: bool) -> JsonObject:
    return {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": tags.separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def _in_section(tags: CallTags, body: JsonObject) -> JsonObject:
    assert tags.section is not None
    begin, end = tags.section
    return _tag(begin, body, end if isinstance(end, str) else list(end))


def _joined(tags: CallTags, call: JsonObject) -> JsonObject:
    assert tags.section is not None
    begin, end = tags.section
    return _tag(begin + call["begin"], call["content"], f"{call['end']}{end}")


def _call(tags: CallTags, function: JsonObject) -> list[JsonObject]:
    content: JsonObject = _schema(_argument_schema(function), tags.style)
    if tags.shallow and function.get("strict") is not True:
        content = _shallow(function)
    if tags.numbered is not None:
        number = {"type": "regex", "pattern": r"\d+"}
        content = {"type": "sequence", "elements": [number, _const(tags.numbered), content]}
    return [_tag(begin.replace("NAME", function["name"]), content, end) for begin, end in tags.calls]


def _argument_schema(function: JsonObject) -> Any:
    """The tool's own schema if it is strict, else one that anything matches."""
    parameters = function.get("parameters")
    return parameters if function.get("strict") is True and parameters is not None else True


def _tag(begin: str, content: JsonObject, end: str | list[str]) -> JsonObject:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _const(value: str) -> JsonObject:
    return {"type": "const_string", "value": value}


def _schema(schema: Any, style: str = "json") -> JsonObject:
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }


def _any_text(excludes: Sequence[str] = ()) -> JsonObject:
    return {"type": "any_text", "excludes": list(excludes), "max_tokens": None, "max_chars": None}


def _shallow(function: JsonObject) -> JsonObject:
    """Arguments between key and value markers: declared keys only, and values of the right basic type."""
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties")
    combined = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")
    if (
        not isinstance(properties, dict)
        or not properties
        or parameters.get("additionalProperties") is True
        or any(key in parameters for key in combined)
    ):
        return _schema(True, "glm_xml")
    pairs = [
        {
            "type": "sequence",
            "elements": [_const(f"<arg_key>{key}</arg_key><arg_value>"), _value(schema), _const("</arg_value>")],
        }
        for key, schema in properties.items()
    ]
    return {"type": "star", "content": _either(pairs)}


def _value(schema: JsonObject) -> JsonObject:
    text = _any_text(_THINK + _GLM_MARKERS)
    if "enum" in schema:
        return _either([_const(value if isinstance(value, str) else json.dumps(value)) for value in schema["enum"]])
    kind = schema.get("type")
    if isinstance(kind, list):
        forms = [_value({"type": one}) for one in kind if one != "string"]
        return _either([*forms, text] if "string" in kind else forms)
    return text if kind in (None, "string") else _schema({"type": kind})


def _either(forms: list[JsonObject]) -> JsonObject:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}
