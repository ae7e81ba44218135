"""What an output must look like, for the engine's grammar: from response formats, tools and the choice among them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation, JsonObject, Prompt
from workers.render.grammar.argument_tags import json_form
from workers.render.grammar.families import ALWAYS_CONSTRAINED, FAMILY_OF_PARSER, FREE_UNLESS_FORCED
from workers.render.grammar.harmony_tags import tag_answer
from workers.render.grammar.structural_tags import build_tag

Forced = Literal["native", "json"]
"""How a family without tags writes a call that it must make: as it always does, or as a JSON array of calls."""

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""What an output can be held to; one at a time."""


def resolve_constraint(
    conversation: Conversation,
    *,
    tool_parser: str | None = None,
    forced: Forced = "native",
    harmony: bool = False,
    suffix: str = "",
) -> JsonObject | None:
    """`structured_outputs` for the engine's sampling parameters; None leaves the output free.

    A choice that must call a tool wins over a response format. With `auto`, calls are held to the family's form where
    a tool is strict, where only one call may be made, or where the family always is; a response format then remains
    the alternative to calling. `suffix` is what the checkpoint adds to the names of its markers. Raises InvalidRequest
    for a choice of a tool that is not there.
    """
    asked = format_constraint(conversation)
    if harmony and asked is not None and (content := _as_format(asked)) is not None:
        asked = {"structural_tag": json.dumps(tag_answer(content))}
    choice = conversation.tool_choice
    if tool_parser is None or not conversation.tools or choice in (None, "none"):
        return asked
    tools = _chosen(conversation)
    family = FAMILY_OF_PARSER.get(tool_parser)
    if family is None:
        by_hand = asked is not None and "structural_tag" in asked and conversation.response_format is None
        if forced == "native" or choice == "auto" or by_hand:
            return asked
        return {"json": _calls_schema(conversation, tools)}
    single = conversation.parallel_tool_calls is False
    if choice != "auto":
        tag = build_tag(family, tools, "required" if choice == "required" else "named", single=single, suffix=suffix)
        return {"structural_tag": json.dumps(tag)}
    strict = any(tool["function"].get("strict") is True for tool in tools)
    if not (strict or tool_parser in ALWAYS_CONSTRAINED or (single and asked is None)):
        return asked
    if asked is None and tool_parser in FREE_UNLESS_FORCED:
        return None
    if asked is None:
        return {"structural_tag": json.dumps(build_tag(family, tools, "auto", single=single))}
    alternative = _as_format(asked)
    if alternative is None:
        return asked
    tag = build_tag(family, tools, "required", single=single, suffix=suffix)
    tag["format"] = {"type": "or", "elements": [tag["format"], alternative]}
    return {"structural_tag": json.dumps(tag)}


def check_choice(conversation: Conversation, *, tool_parser: str | None) -> None:
    """Raises InvalidRequest where tools may or must be called and the model has no parser for calls."""
    choice = conversation.tool_choice
    if tool_parser is None and choice not in (None, "none"):
        raise InvalidRequest("this model is served without a tool parser, so it cannot be asked to call tools")


def format_constraint(asked: Conversation | Prompt) -> JsonObject | None:
    """The constraint that the request itself names, by `response_format` or in the engine's own form."""
    given = dict(asked.structured_outputs) if asked.structured_outputs is not None else None
    form = asked.response_format
    match form:
        case None | {"type": "text"}:
            return given
        case {"type": "json_object"}:
            override: JsonObject = {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            override = {"json": schema}
        case {"type": "json_schema"}:
            raise InvalidRequest("response_format has no json_schema with a schema", param="response_format")
        case _:
            override = {"structural_tag": json.dumps(form)}
    return (given or {}) | override


def check_constraint(constraint: JsonObject) -> None:
    """Raises InvalidRequest unless the constraint is of exactly one kind."""
    kinds = [kind for kind in KINDS if constraint.get(kind) is not None]
    if len(kinds) != 1:
        raise InvalidRequest(
            f"the output can be held to one of {', '.join(KINDS)}, not to {', '.join(kinds) or 'none'}",
            param="structured_outputs",
        )


def _chosen(conversation: Conversation) -> list[JsonObject]:
    tools = list(conversation.tools or ())
    choice = conversation.tool_choice
    if not isinstance(choice, Mapping):
        return tools
    name = choice["function"]["name"]
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        raise InvalidRequest(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
    return named


def _calls_schema(conversation: Conversation, tools: Sequence[JsonObject]) -> JsonObject:
    """The arguments of the one named tool, or an array of `{"name", "parameters"}` for a choice among all."""
    if conversation.tool_choice != "required":
        return _parameters(tools[0])
    schemas = []
    definitions: JsonObject = {}
    for tool in tools:
        parameters = dict(_parameters(tool))
        for name, definition in parameters.pop("$defs", {}).items():
            if definitions.setdefault(name, definition) != definition:
                raise InvalidRequest(f"the tools define {name!r} in different ways", param="tools")
        schemas.append(
            {
                "properties": {
                    "name": {"type": "string", "enum": [tool["function"]["name"]]},
                    "parameters": parameters,
                },
                "required": ["name", "parameters"],
            }
        )
    schema: JsonObject = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": schemas}}
    if conversation.parallel_tool_calls is False:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def _parameters(tool: JsonObject) -> JsonObject:
    return tool["function"].get("parameters") or {"type": "object", "properties": {}}


def _as_format(constraint: JsonObject) -> JsonObject | None:
    """The constraint as one branch of a structural tag; None where it cannot be one."""
    match constraint:
        case {"json_object": True}:
            return json_form({"type": "object"})
        case {"json": schema}:
            return json_form(json.loads(schema) if isinstance(schema, str) else schema)
        case {"regex": pattern}:
            return {"type": "regex", "pattern": pattern}
        case {"choice": choices}:
            return {"type": "or", "elements": [{"type": "const_string", "value": choice} for choice in choices]}
        case {"grammar": grammar} if "::=" in grammar:
            return {"type": "grammar", "grammar": grammar}
        case {"structural_tag": str(tag)} if isinstance(inner := json.loads(tag).get("format"), dict):
            return inner
    return None
