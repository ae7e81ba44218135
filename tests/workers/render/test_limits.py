"""What an engine would refuse is refused before it is queued, with the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from workers.render.limits import check_engine_request
from workers.text.tokenizer import LoadedTokenizer


def check(small: LoadedTokenizer, **sampling: Any) -> None:
    check_engine_request(small.tokenizer, {"sampling_params": sampling})


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"logit_bias": {"999999": 1.0}}, "logit_bias"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"stop_token_ids": [5, 2**31]}, "stop_token_ids"),
        ({"allowed_token_ids": [10**12]}, "allowed_token_ids"),
        ({"logprob_token_ids": [-7]}, "logprob_token_ids"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "[z-a]"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a{2,1}"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": 7}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {"type": "banana"}}}, "response_format"),
        ({"structured_outputs": {"json": {"properties": []}}}, "response_format"),
        ({"structured_outputs": {"json": {"properties": {"a": {"minimum": "low"}}}}}, "response_format"),
        ({"structured_outputs": {"json": "{"}}, "response_format"),
        ({"structured_outputs": {"json": 7}}, "response_format"),
        ({"structured_outputs": {"json": [1]}}, "response_format"),
    ],
)
def test_what_the_engine_would_refuse_is_named(small: LoadedTokenizer, sampling: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(small, **sampling)
    assert caught.value.param == param and caught.value.message


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"logit_bias": {"5": 1.0}, "stop_token_ids": [1, 2], "structured_outputs": None},
        {"structured_outputs": {"regex": r"\p{Lu}+(a|b){1,3}"}},
        {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {}}}},
        {"structured_outputs": {"json": '{"type": "string"}'}},
        {"structured_outputs": {"json": True}},
        {"structured_outputs": {"choice": ["a"]}},
    ],
)
def test_what_the_engine_takes_passes(small: LoadedTokenizer, sampling: Any) -> None:
    check(small, **sampling)
