"""The OpenAPI document of routes that read their bodies by themselves.

A route says with `openapi_extra=body_schema(Model, example)` what it takes; `describe` moves the definitions that such
schemas bring along to where their references point, `#/components/schemas`.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel


def body_schema(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """A JSON body of this model, with an example."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The document of the whole app, in which every reference resolves."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for path in document["paths"].values():
        for operation in path.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for name, definition in content["schema"].pop("$defs", {}).items():
                    components.setdefault(name, definition)
    return document
