"""The named argument styles: how a family writes a call's name, its body, and the value of one argument."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from workers.parsing.styles_elements import Elements
from workers.parsing.styles_gemma import GemmaObject
from workers.parsing.styles_json import Body, JsonCalls, JsonKeyed, JsonObject
from workers.parsing.styles_python import PythonCalls

_KNOWN = ("type", "function", "id", "description", "tool_call_id")

BODIES: dict[str, Body] = {
    "json_object": JsonObject(),
    "json_call": JsonCalls(),
    "json_calls": JsonCalls(shape="list"),
    "json_either": JsonCalls(shape="either"),
    "json_forced": JsonCalls(shape="list", arguments=("parameters",), known=()),
    "json_list": JsonCalls(shape="list", known=_KNOWN),
    "json_fenced": JsonCalls(shape="either", known=_KNOWN),
    "mistral": JsonCalls(shape="list", ids=("id",)),
    "json_bare": JsonCalls(shape="either", between=";", known=_KNOWN),
    "json_keyed": JsonKeyed(),
    "json_args": JsonCalls(arguments=("args", "arguments", "parameters")),
    "cohere": JsonCalls(shape="either", name=("tool_name",), arguments=("parameters",), ids=("tool_call_id",)),
    "python_calls": PythonCalls(),
    "python_lines": PythonCalls(opens="", closes=""),
    "gemma4": GemmaObject(quote='<|"|>'),
    "functiongemma": GemmaObject(quote="<escape>"),
    "minimax_m3": Elements("]<]minimax[>[", "invoke", typing=lambda value, schema: element_json(value, schema)),
}

BODY_TOKENS: dict[str, tuple[str, ...]] = {
    "gemma4": ('<|"|>',),
    "functiongemma": ("<escape>",),
    "minimax_m3": ("]<]minimax[>[",),
}
"""Style → punctuation that may be an added token; the body reads it as text, even if the token is special."""


def spelled(style: str, spell: Callable[[str], str]) -> Body:
    """A body's style with its punctuation as `spell` spells it."""
    body = BODIES[style]
    if isinstance(body, GemmaObject):
        return replace(body, quote=spell(body.quote))
    return replace(body, namespace=spell(body.namespace)) if isinstance(body, Elements) else body


SCHEMA_BODIES: frozenset[str] = frozenset({"minimax_m3"})
"""Bodies whose nested values are typed by the schema; the state then holds the schemas."""

# How much white space around a value is markup: none, the template's one line feed on each side, or all of it.
VALUES: dict[str, str] = {"": "", "lines": "\n", "stripped": " \t\r\n"}


def _kimi_name(text: str) -> tuple[str, str | None]:
    """`functions.get_weather:0` is the id; the name is between the dot and the colon."""
    text = text.strip()
    name, mark, number = text.rpartition(":")
    if not mark or not number.isdigit():
        return "", None
    return name.removeprefix("functions."), text


def _attribute(text: str) -> tuple[str, str | None]:
    """An attribute's value, with its entities decoded."""
    return text.strip().replace("&quot;", '"').replace("&amp;", "&"), None


def _unquoted(text: str) -> tuple[str, str | None]:
    """A name, with or without quotes around it."""
    return text.strip().strip("\"'").strip(), None


NAMES: dict[str, Callable[[str], tuple[str, str | None]]] = {
    "": lambda text: (text.strip(), None),
    "attribute": _attribute,
    "kimi": _kimi_name,
    "unquoted": _unquoted,
}
"""Style → a function from the text to the name, and to the call's id if the text has one."""

STYLES: dict[str, Mapping[str, Any]] = {
    "body": BODIES,
    "value": VALUES,
    "name": NAMES,
    "id": NAMES,
    "key": NAMES,
    "text": {"": "as written", "trimmed": "without line feeds before the first call or word"},
    "reasoning": {"": "as written", "trimmed": "without white space at its end"},
    "doubt": {"": "only a marker ends the call", "end": "the end of the output ends it as well"},
}

Types = tuple[str, ...]
"""JSON Schema types that a value may have, most specific first; empty if unknown."""

_ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("bool", "binary"), "boolean"),
    **dict.fromkeys(("dict", "map", "struct"), "object"),
    **dict.fromkeys(("list", "arr", "tuple", "sequence"), "array"),
}
_PYTHON = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
}  # fmt: skip
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def types_of(schema: object) -> Types:
    """The types that a JSON schema allows, through `type`, `enum`, `const` and the `anyOf` family."""
    found = _types(schema)
    return tuple(kind for kind in _ORDER if kind in found)


def _types(schema: object) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    found = {_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in names if isinstance(name, str)}
    for value in [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]:
        found.add(_PYTHON.get(type(value), "string"))
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(key) or ():
            found |= _types(choice)
    if not found and "properties" in schema:
        found.add("object")
    return found


def typed_json(text: str, types: Types) -> str:
    """`text` as JSON of the first type that fits; as a JSON string if none fits."""
    word = text.strip()
    for kind in types:
        if kind == "null" and word.lower() in ("null", "none"):
            return "null"
        if kind == "integer" and _INTEGER.fullmatch(word):
            return str(int(word)) if len(word) < 4000 else json.dumps(text)
        if kind == "number" and _NUMBER.fullmatch(word):
            return word
        if kind == "number" and _INTEGER.fullmatch(word):
            return str(int(word))
        if kind == "boolean" and word.lower() in ("true", "1", "false", "0"):
            return "true" if word.lower() in ("true", "1") else "false"
        if kind in ("object", "array"):
            value = _literal(word)
            if isinstance(value, dict if kind == "object" else list):
                return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def json_or_string(text: str) -> str:
    """`text` if it is JSON, otherwise `text` as a JSON string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip() if _finite(value) else json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> object:
    """The value of JSON, or of a Python literal, which models write instead; None if it is neither."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text)
            json.dumps(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None
    return value if _finite(value) else None


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list) else True


def element_json(value: Any, schema: Any) -> str:
    """An element as JSON by its schema: its text as a value, or its child elements as an array or object."""
    schema = schema if isinstance(schema, Mapping) else {}
    types = types_of(schema)
    if isinstance(value, str):
        if not value.strip() and "string" not in types:
            for kind, empty in (("array", "[]"), ("object", "{}")):
                if kind in types:
                    return empty
        return typed_json(value, types)
    container = _container(schema)
    if "array" in types and "object" not in types:
        return "[" + ", ".join(element_json(child, container.get("items")) for _, child in value) + "]"
    properties = container.get("properties") or {}
    groups: dict[str, list[str]] = {}
    for key, child in value:
        groups.setdefault(key, []).append(
            element_json(child, properties.get(key, container.get("additionalProperties")))
        )
    parts = [
        f"{json.dumps(key, ensure_ascii=False)}: {found[0] if len(found) == 1 else '[' + ', '.join(found) + ']'}"
        for key, found in groups.items()
    ]
    return "{" + ", ".join(parts) + "}"


def _container(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a schema that describes its elements."""
    if "items" in schema or "properties" in schema or "additionalProperties" in schema:
        return schema
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(key) or ():
            if isinstance(choice, Mapping) and (found := _container(choice)):
                return found
    return {}
