"""The OpenAPI document for routes that read their own bodies.

A route declares its body with `openapi_extra=body_schema(Model, example)`. `describe` then moves the definitions inside
these schemas to `#/components/schemas`, where their references point.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from tasks.protocol.base import ErrorEnvelope

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorEnvelope, "description": description}
    for status, description in (
        (400, "The request is not valid; `param` names the field."),
        (401, "The API key is missing or wrong."),
        (404, "The model or the job does not exist."),
        (409, "The request conflicts with an earlier one, or with the job's state."),
        (413, "The body is too large."),
        (415, "The body's Content-Encoding is not supported."),
        (429, "Too many requests are queued; see `Retry-After`."),
        (500, "Something went wrong in Tokenyard; the log has the request's id."),
        (502, "The engine failed."),
        (503, "No worker or engine is available; see `Retry-After`."),
        (504, "The request's deadline passed."),
    )
}
"""What a route that takes a body may answer with."""
LOOKUP_ERRORS: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (400, 401, 404, 409, 503)}
"""What a route that looks something up may answer with."""


def body_schema(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON body of this model, with an example."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app, in which every reference resolves."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for path in document["paths"].values():
        for operation in path.values():
            # The framework describes wrong parameters as 422; every wrong request is a 400 here.
            if operation["responses"].pop("422", None) is not None:
                operation["responses"].setdefault("400", {"description": ERRORS[400]["description"]})
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for name, definition in content["schema"].pop("$defs", {}).items():
                    components.setdefault(name, definition)
    return document
