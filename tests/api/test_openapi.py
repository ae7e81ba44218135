"""The OpenAPI document is complete, and its examples are valid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

from api.app import create_app
from tests.conftest import quick_settings

DOCUMENT: dict[str, Any] = create_app(quick_settings()).openapi()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def body_of(path: str) -> dict[str, Any]:
    content: dict[str, Any] = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return content


def test_every_reference_resolves() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 5
    for reference in found:
        target: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_bodies_have_examples_that_are_valid() -> None:
    for path in ("/v1/chat/completions", "/v1/jobs"):
        schema = {**body_of(path)["schema"], "components": DOCUMENT["components"]}
        validator = Draft202012Validator(schema)
        validator.validate(body_of(path)["example"])
        assert not validator.is_valid({})


def test_every_operation_is_described_and_says_how_it_fails() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            assert operation["description"], path
    assert {"400", "404", "413", "429", "503"} <= DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"].keys()
    assert DOCUMENT["paths"].keys() >= {"/v1/models", "/v1/jobs/{job_id}/events", "/health/ready"}
