"""Structural tags of the families that write each argument as a separate element: Hunyuan 4 and Kimi K3.

    <tool_calls:1a2b><tool_call:1a2b>get_weather<arg_key:1a2b>city</arg_key:1a2b><arg_value:1a2b>Oslo</arg_value:1a2b>…
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
      <|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>

Values are bare text, which a JSON schema cannot describe. The tags constrain names and keys, and the value too where
Kimi K3 states its type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.protocol.conversation import JsonObject

MAX_LENGTH = 4096
"""Largest `maxLength` that becomes a pattern, in characters."""
MAX_CHOICES = 256
"""Largest `enum` that becomes a list of alternatives."""


def tag_hunyuan(tools: Sequence[JsonObject], *, auto: bool, one: bool, single: bool, suffix: str = "") -> JsonObject:
    """Calls as Hunyuan 4 writes them.

    `auto` makes calling optional, `one` forces one call of the named tool, and `single` allows one call at most.
    `suffix` is what the checkpoint appends to the names of its markers, such as `:1a2b`.
    """
    begin, end = f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"
    calls = _list([_hunyuan_call(tool["function"], suffix) for tool in tools], single=single or one)
    if auto:
        tags = [_tag(begin, calls, end)]
        return _structural(
            {
                "type": "triggered_tags",
                "triggers": [begin],
                "tags": tags,
                "at_least_one": False,
                "stop_after_first": single,
                "excludes": [],
            }
        )
    return _structural(_sequence([_const(begin), calls, _const(end)]))


def _hunyuan_call(function: JsonObject, suffix: str) -> JsonObject:
    parameters = function.get("parameters") or {}
    properties, required = parameters.get("properties") or {}, parameters.get("required") or []
    must = [key for key in properties if key in required] + [key for key in required if key not in properties]
    pairs = {key: _hunyuan_pair(key, suffix) for key in (*must, *properties)}
    may = [pairs[key] for key in properties if key not in required]
    elements = [pairs[key] for key in must] + ([_repeated("star", may)] if may else [])
    content = _sequence(elements) if elements else _any_text()
    return _tag(f"<tool_call{suffix}>{function['name']}", content, f"</tool_call{suffix}>")


def _hunyuan_pair(key: str, suffix: str) -> JsonObject:
    words = [f"<arg_key{suffix}>", key, f"</arg_key{suffix}>", f"<arg_value{suffix}>"]
    return _sequence([*map(_const, words), _any_text(), _const(f"</arg_value{suffix}>")])


_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_KINDS = {
    **{kind: kind for kind in ("string", "number", "boolean", "null", "object", "array")},
    "integer": "number",
}


def tag_kimi(tools: Sequence[JsonObject], *, auto: bool, one: bool, single: bool) -> JsonObject:
    """Kimi K3's response channel, then calls in its tools channel; the flags are those of `tag_hunyuan`."""
    calls = _list([_kimi_call(tool["function"]) for tool in (tools[:1] if one else tools)], single=single)
    channel = _tag(f"{_OPEN}tools{_SEP}", calls, f"{_CLOSE}tools{_SEP}")
    text = _tag("", _any_text([_OPEN, _CLOSE, "<|end_of_msg|>"]), f"{_CLOSE}response{_SEP}")
    before = [_optional(_const(f"{_OPEN}response{_SEP}")), text]
    after = _optional(_const(f"{_CLOSE}message{_SEP}"))
    return _structural(_sequence([*before, _optional(channel) if auto else channel, after]))


def _kimi_call(function: JsonObject) -> JsonObject:
    elements = [{"type": "regex", "pattern": "[0-9]+"}, _const(f'"{_SEP}'), _kimi_arguments(function)]
    begin = f'{_OPEN}call tool="{_escape(function["name"])}" index="'
    return _tag(begin, _sequence(elements), f"{_CLOSE}call{_SEP}")


def _kimi_arguments(function: JsonObject) -> JsonObject:
    """Argument elements in any order: the declared ones if the tool is strict, else any."""
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties")
    if function.get("strict") is not True or not isinstance(properties, Mapping) or not properties:
        return _repeated("star", [_kimi_any()])
    shared = {key: parameters[key] for key in ("$defs", "definitions") if isinstance(parameters.get(key), Mapping)}
    tags = [_kimi_argument(key, schema, shared) for key, schema in properties.items()]
    return _repeated("plus" if parameters.get("required") else "star", tags)


def _kimi_argument(key: str, schema: Any, shared: Mapping[str, Any]) -> JsonObject:
    schema = schema if isinstance(schema, Mapping) else {}
    declared = schema.get("type")
    kind = _KINDS.get(declared) if isinstance(declared, str) else None
    if kind is None:
        return _kimi_any()
    content = _kimi_string(schema) if kind == "string" else json_form({**shared, **schema})
    return _tag(f'{_OPEN}argument key="{_escape(key)}" type="{kind}"{_SEP}', content, f"{_CLOSE}argument{_SEP}")


def _kimi_string(schema: Mapping[str, Any]) -> JsonObject:
    """A bare string: one of the schema's values, text of bounded length, or any text up to the end of the element."""
    choices = schema.get("enum")
    if choices is None and isinstance(schema.get("const"), str):
        choices = [schema["const"]]
    if isinstance(choices, list) and 0 < len(choices) <= MAX_CHOICES:
        words = [choice for choice in choices if isinstance(choice, str) and "<|" not in choice]
        if len(words) == len(choices):
            return _either([_const(word) for word in words])
    longest, shortest = schema.get("maxLength"), schema.get("minLength", 0)
    if isinstance(longest, int) and 0 <= longest <= MAX_LENGTH:
        shortest = shortest if isinstance(shortest, int) and 0 <= shortest <= longest else 0
        return {"type": "regex", "pattern": f"(?:[^<]|<[^|]){{{shortest},{longest}}}"}
    return _any_text([_CLOSE])


def _kimi_any() -> JsonObject:
    """An argument with any key, type and value."""
    elements = [{"type": "regex", "pattern": r"[^<]*<\|sep\|>"}, _any_text([_CLOSE])]
    return _tag(f"{_OPEN}argument ", _sequence(elements), f"{_CLOSE}argument{_SEP}")


def _escape(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _structural(form: JsonObject) -> JsonObject:
    return {"type": "structural_tag", "format": form}


def _list(tags: list[JsonObject], *, single: bool) -> JsonObject:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "",
        "at_least_one": True,
        "stop_after_first": single,
    }


def _tag(begin: str, content: JsonObject, end: str) -> JsonObject:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _sequence(elements: list[JsonObject]) -> JsonObject:
    return {"type": "sequence", "elements": elements}


def _optional(content: JsonObject) -> JsonObject:
    return {"type": "optional", "content": content}


def _either(forms: list[JsonObject]) -> JsonObject:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}


def _repeated(kind: str, forms: list[JsonObject]) -> JsonObject:
    return {"type": kind, "content": _either(forms)}


def _const(value: str) -> JsonObject:
    return {"type": "const_string", "value": value}


def _any_text(excludes: Sequence[str] = ()) -> JsonObject:
    return {"type": "any_text", "excludes": list(excludes), "max_tokens": None, "max_chars": None}


def json_form(schema: Any) -> JsonObject:
    """JSON that matches a schema."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": "json",
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }
