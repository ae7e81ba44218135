"""The list of models has each model and its aliases."""

from __future__ import annotations

from tasks.protocol.openai_models import list_models
from tasks.settings import ModelSettings


def test_aliases_are_listed_with_their_model_as_root() -> None:
    models = (
        ModelSettings(name="a", aliases=("b",), tokenizer="t", max_model_len=64),
        ModelSettings(name="c", tokenizer="t"),
    )
    listed = list_models(models, created=7).model_dump()
    assert listed["object"] == "list"
    assert [(card["id"], card["root"], card["max_model_len"]) for card in listed["data"]] == [
        ("a", "a", 64),
        ("b", "a", 64),
        ("c", "c", 8192),
    ]
    assert listed["data"][0].keys() == {
        "id",
        "object",
        "created",
        "owned_by",
        "root",
        "parent",
        "max_model_len",
        "permission",
    }
