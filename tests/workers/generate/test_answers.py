"""Tokens to the generate route's streamed and whole answers, without a tokenizer, in the reference's own shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.tokens import CandidateLogprob, PositionLogprobs, TokenChunk
from tasks.protocol.vllm_generate import TokensResponse, TokensStreamResponse
from workers.generate.answers import TokenAnswer, respond
from workers.surfaces.base import AnswerFacts
from workers.surfaces.vllm_generate import GENERATE

SAMPLED = CandidateLogprob(57, -0.1, 1)
OTHER = CandidateLogprob(60, -2.5, 2)
CHUNKS = [
    TokenChunk(0, (57,), (PositionLogprobs(SAMPLED, (SAMPLED, OTHER)),), extra={"prompt_token_ids": [1, 2, 9]}),
    TokenChunk(
        0,
        (58, 2),
        (PositionLogprobs(OTHER, ()), PositionLogprobs(SAMPLED, ())),
        finish_reason="stop",
        stop_reason=2,
        cached_tokens=7,
        extra={"metrics": {"tokens_per_second": 3.0}, "kv_transfer_params": {"to": "b"}},
    ),
]


def about(**changes: Any) -> DerenderContext:
    params = changes.pop("sampling_params", {"logprobs": 1})
    body = {"token_ids": [1, 2, 3], "sampling_params": params, **changes}
    return GENERATE.describe(GENERATE.read(body), AnswerFacts("m", "generate-tokens-1", 7, (1, 2, 3)))


def events_of(context: DerenderContext, chunks: list[TokenChunk]) -> list[JsonObject]:
    answer = TokenAnswer(context)
    events = [event for chunk in chunks for event in answer.add(chunk)] + answer.finish()
    for event in events:
        TokensStreamResponse.model_validate(event, strict=True)
    return events


def choice(**fields: Any) -> JsonObject:
    return {
        "index": 0,
        "finish_reason": None,
        "stop_reason": None,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
        **fields,
    }


ROW = {"token_id": 57, "logprob": -0.1, "rank": 1}
OTHER_ROW = {"token_id": 60, "logprob": -2.5, "rank": 2}
FIRST = choice(token_ids=[57], logprobs={"content": [{**ROW, "top_logprobs": [ROW, OTHER_ROW]}]})
LAST = choice(
    token_ids=[58, 2],
    finish_reason="stop",
    stop_reason=2,
    logprobs={"content": [{**OTHER_ROW, "top_logprobs": []}, {**ROW, "top_logprobs": []}]},
)


def test_a_plain_stream() -> None:
    head = {"request_id": "generate-tokens-1", "output_mode": "tokens", "usage": None}
    assert events_of(about(stream=True), CHUNKS) == [{**head, "choices": [FIRST]}, {**head, "choices": [LAST]}]


def test_a_stream_with_everything_that_can_be_requested() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    first, last, usage = events_of(about(stream=True, stream_options=options, return_token_ids=True), CHUNKS)
    assert first["prompt_token_ids"] == [1, 2, 9] and "prompt_token_ids" not in last
    assert [event["usage"]["completion_tokens"] for event in (first, last)] == [1, 3]
    assert usage == {
        "request_id": "generate-tokens-1",
        "output_mode": "tokens",
        "choices": [],
        # Cached tokens of a resumed request's own output are not the prompt's.
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 6,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "metrics": {"tokens_per_second": 3.0},
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_whole_answer(stream: bool) -> None:
    answer = respond(about(stream=stream, return_token_ids=True), CHUNKS)
    TokensResponse.model_validate(answer, strict=True)
    logprobs = {"content": FIRST["logprobs"]["content"] + LAST["logprobs"]["content"]}
    assert answer == {
        "request_id": "generate-tokens-1",
        "model": "m",
        "created": 7,
        "output_mode": "tokens",
        "choices": [{**LAST, "token_ids": [57, 58, 2], "logprobs": logprobs}],
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 6,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 3, "created_cache_tokens": None, "multimodal_tokens": None},
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": [1, 2, 9],
        "mm_placeholders": None,
        "metrics": {"tokens_per_second": 3.0},
        "kv_transfer_params": {"to": "b"},
        "ec_transfer_params": None,
    }


def test_an_answer_does_not_depend_on_how_its_tokens_came() -> None:
    choices = [TokenChunk(i, (5 + i, 6, 7), finish_reason="length") for i in range(2)]
    single = [
        TokenChunk(i, (token_id,), finish_reason=None if token_id < 7 else "length")
        for i in range(2)
        for token_id in (5 + i, 6)
    ]
    parts = [*single, *(TokenChunk(i, (7,), finish_reason="length") for i in range(2))]
    context = about(sampling_params={"n": 2})
    assert respond(context, parts) == respond(context, choices)
    assert [one["token_ids"] for one in respond(context, choices)["choices"]] == [[5, 6, 7], [6, 6, 7]]


def test_empty_chunks_are_not_sent() -> None:
    chunks = [TokenChunk(0), TokenChunk(0, (5,)), TokenChunk(0, (), finish_reason="abort")]
    events = events_of(about(stream=True, sampling_params={}), chunks)
    assert [(one["token_ids"], one["finish_reason"]) for e in events for one in e["choices"]] == [
        ([5], None),
        ([], "abort"),
    ]
    assert json.loads(json.dumps(events)) == events
