"""A derender context survives a round trip through JSON."""

from __future__ import annotations

import json

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.derender_context import DerenderContext, context_from_json, context_to_json


def test_context_survives_json() -> None:
    context = DerenderContext(
        surface="openai_chat",
        model="m",
        response_id="chatcmpl-1",
        created=1,
        prompt_tokens=3,
        stops=("a", "b"),
        logprobs=0,
        prompt_token_ids=(1, 2, 3),
        parse={"tool_choice": "auto"},
    )
    data = context_to_json(context)
    assert "n" not in data
    assert context_from_json(json.loads(json.dumps(data))) == context


def test_what_is_no_context_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        context_from_json({"surface": "openai_chat"})
