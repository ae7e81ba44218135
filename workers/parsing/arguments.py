"""The named argument styles: how a family writes a call's name, its body, and the value of one argument."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from workers.parsing.styles_json import Body, JsonCalls, JsonObject

BODIES: dict[str, Body] = {
    "json_object": JsonObject(),
    "json_call": JsonCalls(),
    "json_calls": JsonCalls(shape="list"),
    "json_forced": JsonCalls(shape="list", arguments=("parameters",), known=()),
}

TYPED_BODIES: frozenset[str] = frozenset()
"""Bodies whose values are typed by the schema."""

# How much white space around a value is markup: none, the template's one line feed on each side, or all of it.
VALUES: dict[str, str] = {"written": "", "lines": "\n", "stripped": " \t\r\n"}

NAMES: dict[str, Callable[[str], str]] = {"": str.strip}

STYLES: dict[str, Mapping[str, Any]] = {"body": BODIES, "value": VALUES, "name": NAMES, "id": NAMES, "key": NAMES}

Types = tuple[str, ...]
"""JSON Schema types that a value may have, most specific first; empty where nothing is known."""

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
    """`text` as the JSON that its types say it is; a string, as written, where no type fits."""
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
    """`text` if it is JSON, else a JSON string of it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip() if _finite(value) else json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> object:
    """A JSON value, or a Python literal, which models write for one; None if it is neither."""
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
