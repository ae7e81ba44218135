"""Shared by all wire models: the policy for unknown fields, bounds, usage, and the error envelope."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from tasks.errors import InvalidRequest

JsonObject = dict[str, Any]

MAX_STOPS = 4
MAX_BAD_WORDS = 128
MAX_SALT_CHARS = 128
INT64 = 2**63

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The keys of `structured_outputs`; a request sets exactly one."""


def refuse(param: str, message: str) -> PydanticCustomError:
    """Build a validation error about the field `param`, for a validator to raise."""
    return PydanticCustomError("invalid_field", "{message}", {"message": message, "param": param})


def _whole(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise PydanticCustomError("whole_number", "Input should be a whole number")
    return value


WholeNumber = Annotated[int, BeforeValidator(_whole)]
"""An integer; a string of digits is refused."""


class WireModel(BaseModel):
    """A request or response as clients see it.

    Unknown fields are kept: vLLM accepts them, and newer clients must not break.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class PromptTokensDetails(WireModel):
    cached_tokens: int | None = None


class CompletionTokensDetails(WireModel):
    reasoning_tokens: int | None = None


class Usage(WireModel):
    """Token counts of one request, summed over its choices."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class ErrorInfo(WireModel):
    message: str
    type: str
    param: str | None = None
    code: int | str | None = None


class ErrorEnvelope(WireModel):
    """`{"error": {"message", "type", "param", "code"}}`, the error body of OpenAI and vLLM."""

    error: ErrorInfo


W = TypeVar("W", bound=BaseModel)


def read_wire(model: type[W], value: Any) -> W:
    """Validate a body, or a part of one, as `model`.

    Raises:
        InvalidRequest: with `param`, the dotted path of the first wrong field.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid_request_from(error) from error


def invalid_request_from(error: ValidationError) -> InvalidRequest:
    """Build the client's error from the first wrong field: what is wrong with it, and its dotted path as `param`."""
    errors = error.errors(include_url=False, include_input=False)
    named = [(_param_of(e), e["msg"]) for e in errors]
    first = named[0][0]
    # A union fails once for each of its types; the deepest failure belongs to the type that the client meant.
    param = max((name for name, _ in named if name == first or name.startswith(f"{first}.")), key=len)
    reasons = dict.fromkeys(message for name, message in named if name == param)
    others = len({name for name, _ in named if not f"{param}.".startswith(f"{name}.")})
    message = f"{param}: {', or '.join(reasons)}" if param else ", or ".join(reasons)
    if others:
        message += f" (and {others} more wrong {'field' if others == 1 else 'fields'})"
    return InvalidRequest(message[:_MAX_MESSAGE_CHARS], param=param or None)


_MAX_MESSAGE_CHARS = 1000
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "list", "dict", "tuple", "none"})


def _param_of(error: Any) -> str:
    named = error.get("ctx", {}).get("param")
    if isinstance(named, str):
        return named
    return ".".join(str(part) for part in error["loc"] if isinstance(part, int) or _is_field(part))


def _is_field(part: str) -> bool:
    """Return whether a part of an error's location is a field, not pydantic's name for a union branch or validator."""
    return part not in _TYPE_NAMES and not part[:1].isupper() and not any(char in part for char in "[(-")


def compact_json(value: Any) -> bytes:
    """Encode a value as UTF-8 JSON, on one line and without spaces."""
    try:
        return orjson.dumps(value)
    except TypeError:  # orjson takes neither integers above 64 bits nor keys that are not strings
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
