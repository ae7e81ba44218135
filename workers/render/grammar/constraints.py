"""Constraints on the output, from the request's response format, tools and tool choice."""

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
"""How a family without structural tags writes a forced call: in its usual format, or as a JSON array of calls."""

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The kinds of constraint; an output takes one."""


def resolve_constraint(
    conversation: Conversation,
    *,
    tool_parser: str | None = None,
    forced: Forced = "native",
    harmony: bool = False,
    suffix: str = "",
) -> JsonObject | None:
    """`structured_outputs` for the engine's sampling parameters; None leaves the output free.

    A forced call takes precedence over a response format. With `auto`, calls must follow the family's format if a tool
    is strict, if only one call is allowed, or if the family always requires it; a response format is then the
    alternative to calling. `suffix` is what the checkpoint appends to the names of its markers.

    Raises:
        InvalidRequest: `tool_choice` names a tool that the request does not have, or the response format is invalid.
    """
    own = format_constraint(conversation)
    if harmony and own is not None and (content := _as_format(own)) is not None:
        own = {"structural_tag": json.dumps(tag_answer(content))}
    choice = conversation.tool_choice
    if tool_parser is None or not conversation.tools or choice in (None, "none"):
        return own
    tools = _chosen(conversation)
    family = FAMILY_OF_PARSER.get(tool_parser)
    if family is None:
        has_own_tag = own is not None and "structural_tag" in own and conversation.response_format is None
        if forced == "native" or choice == "auto" or has_own_tag:
            return own
        return {"json": _calls_schema(conversation, tools)}
    single = conversation.parallel_tool_calls is False
    if choice != "auto":
        tag = build_tag(family, tools, "required" if choice == "required" else "named", single=single, suffix=suffix)
        return {"structural_tag": json.dumps(tag)}
    strict = any(tool["function"].get("strict") is True for tool in tools)
    if not (strict or tool_parser in ALWAYS_CONSTRAINED or (single and own is None)):
        return own
    if own is None and tool_parser in FREE_UNLESS_FORCED:
        return None
    if own is None:
        return {"structural_tag": json.dumps(build_tag(family, tools, "auto", single=single))}
    alternative = _as_format(own)
    if alternative is None:
        return own
    tag = build_tag(family, tools, "required", single=single, suffix=suffix)
    tag["format"] = {"type": "or", "elements": [tag["format"], alternative]}
    return {"structural_tag": json.dumps(tag)}


def check_choice(conversation: Conversation, *, tool_parser: str | None) -> None:
    """Raises InvalidRequest if the tool choice allows calls and the model has no tool parser."""
    choice = conversation.tool_choice
    if tool_parser is None and choice not in (None, "none"):
        raise InvalidRequest(
            "this model cannot call tools: send tool_choice 'none', or set tool_parser in the model's settings"
        )


def format_constraint(request: Conversation | Prompt) -> JsonObject | None:
    """The constraint in the request's own `response_format` or `structured_outputs`; raises InvalidRequest."""
    given = dict(request.structured_outputs) if request.structured_outputs is not None else None
    form = request.response_format
    match form:
        case None | {"type": "text"}:
            return given
        case {"type": "json_object"}:
            override: JsonObject = {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            override = {"json": schema}
        case {"type": "json_schema"}:
            raise InvalidRequest(
                "response_format of type json_schema needs the schema in json_schema.schema", param="response_format"
            )
        case _:
            override = {"structural_tag": json.dumps(form)}
    return (given or {}) | override


def check_constraint(constraint: JsonObject) -> None:
    """Raises InvalidRequest unless the constraint is of exactly one kind."""
    kinds = [kind for kind in KINDS if constraint.get(kind) is not None]
    if len(kinds) != 1:
        raise InvalidRequest(
            f"an output takes exactly one constraint of {', '.join(KINDS)}; this request has "
            f"{', '.join(kinds) or 'none'}",
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
        raise InvalidRequest(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return named


def _calls_schema(conversation: Conversation, tools: Sequence[JsonObject]) -> JsonObject:
    """A schema for the named tool's arguments, or for an array of `{"name", "parameters"}` if any tool will do."""
    if conversation.tool_choice != "required":
        return _parameters(tools[0])
    schemas = []
    definitions: JsonObject = {}
    for tool in tools:
        parameters = dict(_parameters(tool))
        for name, definition in parameters.pop("$defs", {}).items():
            if definitions.setdefault(name, definition) != definition:
                raise InvalidRequest(f"two tools define $defs.{name} differently: rename one of them", param="tools")
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
    """The constraint as a branch of a structural tag; None if it cannot be one."""
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
