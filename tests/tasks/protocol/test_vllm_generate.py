"""What the generate route accepts, and what it refuses before anything enters a queue."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.errors import InvalidRequest
from tasks.protocol.base import invalid_request_from
from tasks.protocol.vllm_generate import GenerateBody

BODY = {"token_ids": [1, 2, 3], "sampling_params": {}}
TOOL = {"type": "function", "function": {"name": "look"}}


def features(**changes: Any) -> dict[str, Any]:
    place = {"offset": 0, "length": 2}
    return {"mm_hashes": {"image": ["x"]}, "mm_placeholders": {"image": [place]}, **changes}


def test_sampling_parameters_keep_just_the_keys_that_were_sent() -> None:
    params = {"max_tokens": None, "stop": "x", "a_newer_one": [1], "temperature": 0}
    body = GenerateBody.model_validate({**BODY, "sampling_params": params})
    assert body.sampling_params == params
    assert (body.n, body.stops) == (1, ("x",))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -1]}, "token_ids.1"),
        ({"token_ids": [2**31]}, "token_ids.0"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"sampling_params": {"stop": ["a", ""]}}, "sampling_params.stop.1"),
        ({"sampling_params": {"detokenize": False, "stop": ["a"]}}, "sampling_params.stop"),
        ({"sampling_params": {"detokenize": False}, "output_mode": "text"}, "sampling_params.detokenize"),
        (
            {"sampling_params": {"prompt_logprob_token_ids": [1]}, "stream": True},
            "sampling_params.prompt_logprob_token_ids",
        ),
        ({"output_mode": "verse"}, "output_mode"),
        ({"output_mode": "derender", "parse_context": {"tense": 1}}, "parse_context"),
        ({"parse_context": {"history_tool_call_cnt": -1}}, "parse_context.history_tool_call_cnt"),
        ({"cache_salt": "a@b"}, "cache_salt"),
        ({"priority": 2**63}, "priority"),
        ({"reasoning_parser_kwargs": {"model": "x"}}, "reasoning_parser_kwargs.model"),
        ({"features": features(kwargs_data={"image": []})}, "features.kwargs_data"),
        ({"features": features(mm_hashes={"image": ["x"], "audio": []})}, "features.mm_placeholders"),
        (
            {
                "features": features(
                    mm_hashes={"image": ["x", "y"]},
                    mm_placeholders={"image": [{"offset": 1, "length": 1}, {"offset": 0, "length": 2}]},
                )
            },
            "features.mm_placeholders",
        ),
        (
            {"features": features(mm_placeholders={"image": [{"offset": 2, "length": 2}]})},
            "features.mm_placeholders",
        ),
        ({"features": features(mm_metadata={"image": ["m"]})}, "features.mm_metadata"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GenerateBody.model_validate({**BODY, **changes})
    assert invalid_request_from(caught.value).param == param


def test_fields_of_a_newer_renderer_pass_where_nobody_reads_them() -> None:
    assert GenerateBody.model_validate({**BODY, "parse_context": {"tense": "future"}}).output_mode == "tokens"


def test_media_with_metadata_alone_come_over_a_connector() -> None:
    described = features(mm_metadata={"image": ["m"]})
    GenerateBody.model_validate({**BODY, "features": described, "ec_transfer_params": {"from": "x"}})
    GenerateBody.model_validate({**BODY, "features": {**described, "kwargs_data": {"image": ["data"]}}})


def test_a_message_is_parsed_with_its_context() -> None:
    named = {"type": "function", "function": {"name": "look"}}
    body = GenerateBody.model_validate({**BODY, "parse_context": {"tools": [TOOL], "tool_choice": named}})
    assert body.require_parse_context().tools
    for context, param in (
        (None, "parse_context"),
        ({"tools": None, "tool_choice": named}, "parse_context.tool_choice"),
    ):
        body = GenerateBody.model_validate({**BODY, "parse_context": context})
        with pytest.raises(InvalidRequest) as caught:
            body.require_parse_context()
        assert caught.value.param == param
