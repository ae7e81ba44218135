"""The OpenAPI document for routes that read their own bodies.

A route declares its body with `openapi_extra=body_schema(Model, example)`. `describe` then moves the definitions inside
these schemas to `#/components/schemas`, where their references point.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel


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
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for name, definition in content["schema"].pop("$defs", {}).items():
                    components.setdefault(name, definition)
    return document
