"""The module docstring draws the real tree of errors, and errors survive the ledger."""

from __future__ import annotations

import json
import re

import pytest

from tasks import errors
from tasks.errors import TokenyardError, error_from_json, error_to_json


def tree(cls: type[TokenyardError], depth: int = 0) -> list[tuple[int, type[TokenyardError]]]:
    return [(depth, cls)] + [node for child in cls.__subclasses__() for node in tree(child, depth + 1)]


TREE = [(depth, cls) for depth, cls in tree(TokenyardError) if cls.__module__ == errors.__name__]


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)([A-Z]\w+) +(\d{3})( .*)?$", line):
            drawn.append((len(found[1]) // 4, found[2], int(found[3]), "retryable" in (found[4] or "")))
    real = [(depth, cls.__name__, cls.status) for depth, cls in TREE]
    assert sorted(row[:3] for row in drawn) == sorted(real)
    parents: dict[int, str] = {}
    pairs = set()
    for depth, name, *_ in drawn:
        parents[depth] = name
        pairs.add((parents.get(depth - 1), name))
    assert pairs == {(cls.__base__.__name__ if depth else None, cls.__name__) for depth, cls in TREE if cls.__base__}
    retryable = {name for _, name, _, flag in drawn if flag}
    for _, cls in TREE:
        assert cls.retryable == bool(retryable & {base.__name__ for base in cls.__mro__}), cls


def test_codes_are_unique_and_docstrings_are_messages() -> None:
    codes = [cls.code for _, cls in TREE]
    assert len(set(codes)) == len(codes)
    for _, cls in TREE:
        assert cls().message == (cls.__doc__ or "").strip() and cls().message.endswith(".")


@pytest.mark.parametrize("cls", [cls for _, cls in TREE])
def test_an_error_survives_the_ledger(cls: type[TokenyardError]) -> None:
    error = cls("naïve 🙂", param="messages.0", retry_after_s=3)
    restored = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert type(restored) is cls
    assert (restored.message, restored.param, restored.retry_after_s) == ("naïve 🙂", "messages.0", 3)


def test_an_error_of_another_version_is_still_an_error() -> None:
    assert type(error_from_json({"kind": "Unheard", "message": "m"})) is TokenyardError
    assert type(error_from_json({})) is TokenyardError
