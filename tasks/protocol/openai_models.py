"""The list of models.

GET /v1/models
{"object": "list", "data": [{"id": "smollm2", "object": "model", "created": 1, "owned_by": "tokenyard",
 "root": "smollm2", "parent": null, "max_model_len": 8192, "permission": []}]}
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.protocol.base import JsonObject, WireModel
from tasks.settings import ModelSettings


class ModelCard(WireModel):
    """One name of a served model. For an alias, `root` is the model's own name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tokenyard"
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    permission: list[JsonObject] = Field(default_factory=list)


class ModelList(WireModel):
    """All served names in the order of the settings, each model followed by its aliases."""

    object: Literal["list"] = "list"
    data: list[ModelCard] = Field(default_factory=list)


def list_models(models: tuple[ModelSettings, ...], created: int) -> ModelList:
    """Build the answer to `GET /v1/models`; `created` is in Unix seconds."""
    return ModelList(
        data=[
            ModelCard(id=name, created=created, root=model.name, max_model_len=model.max_model_len)
            for model in models
            for name in (model.name, *model.aliases)
        ]
    )
