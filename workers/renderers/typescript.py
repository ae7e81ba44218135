"""Tools as TypeScript declarations, as gpt-oss was trained on them.

// Gets the current weather.
type get_weather = (_: {
// The city.
city: string,
unit?: "celsius" | "fahrenheit", // default: celsius
}) => any;
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.protocol.conversation import JsonObject


def declare_functions(functions: Iterable[JsonObject]) -> str:
    """The declaration of the `functions` namespace."""
    return "\n\n".join(["namespace functions {", *map(_declare, functions), "} // namespace functions"])


def _declare(function: JsonObject) -> str:
    lines = function["description"].split("\n") if function.get("description") else []
    comment = "".join(f"// {line}\n" for line in lines)
    parameters = function.get("parameters")
    argument = "" if parameters is None else f"_: {_type(parameters, '')}"
    return f"{comment}type {function['name']} = ({argument}) => any;"


def _type(schema: Any, indent: str) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(variants := schema.get("oneOf"), list):
        return "".join(f"\n{indent} | {_variant(variant, indent)}" for variant in variants)
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join("number" if one == "integer" else str(one) for one in kind) or "any"
    match kind:
        case "object":
            return _object(schema, indent)
        case "string":
            names = [value for value in schema.get("enum") or () if isinstance(value, str)]
            return " | ".join(f'"{name}"' for name in names) or "string"
        case "number" | "integer":
            return "number"
        case "boolean":
            return "boolean"
        case "array":
            return f"{_type(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    return "any"


def _variant(variant: Any, indent: str) -> str:
    text = _nullable(variant, _type(variant, indent + "   "))
    notes = [variant["description"]] if isinstance(variant.get("description"), str) else []
    if "default" in variant:
        notes.append(f"default: {_default(variant)}")
    return f"{text} // {' '.join(notes)}" if notes else text


def _object(schema: Mapping[str, Any], indent: str) -> str:
    lines = [f"{indent}// {schema['description']}\n"] if isinstance(schema.get("description"), str) else []
    lines.append("{\n")
    required = schema.get("required") or ()
    for name, value in (schema.get("properties") or {}).items():
        lines += _property(name, value, "" if name in required else "?", indent)
    return "".join([*lines, f"{indent}}}"])


def _property(name: str, schema: Any, optional: str, indent: str) -> Iterable[str]:
    if not isinstance(schema, Mapping):
        yield f"{indent}{name}{optional}: any,\n"
        return
    if isinstance(schema.get("title"), str):
        yield f"{indent}// {schema['title']}\n{indent}//\n"
    if isinstance(schema.get("description"), str):
        yield f"{indent}// {schema['description']}\n"
    if examples := [example for example in schema.get("examples") or () if isinstance(example, str)]:
        yield f"{indent}// Examples:\n"
        for example in examples:
            yield f'{indent}// - "{example}"\n'
    if isinstance(variants := schema.get("oneOf"), list):
        if "default" in schema:
            yield f"{indent}// default: {_default(schema)}\n"
        yield f"{indent}{name}{optional}:\n"
        for variant in variants:
            yield f"{indent} | {_variant(variant, indent)}\n"
        yield f"{indent},\n"
        return
    note = f" // default: {_default(schema)}" if "default" in schema else ""
    yield f"{indent}{name}{optional}: {_nullable(schema, _type(schema, indent + '    '))},{note}\n"


def _nullable(schema: Mapping[str, Any], text: str) -> str:
    return f"{text} | null" if schema.get("nullable") is True and "null" not in text else text


def _default(schema: Mapping[str, Any]) -> str:
    default = schema["default"]
    if isinstance(default, str):
        return default if schema.get("enum") else f'"{default}"'
    return json.dumps(default, ensure_ascii=False, separators=(",", ":"))
