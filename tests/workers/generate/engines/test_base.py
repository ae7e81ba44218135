"""Continued requests, and chunks joined into answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.tokens import CandidateLogprob, GenerateRequest, PositionLogprobs, TokenChunk
from workers.generate.engines.base import choice_count, continue_request, fold_chunks


def request(**params: Any) -> GenerateRequest:
    return GenerateRequest(request_id="r", token_ids=[1, 2], sampling_params=params, priority=3)


def test_a_continued_request_asks_for_the_rest() -> None:
    rest = continue_request(request(max_tokens=10, min_tokens=3, temperature=0, seed=5, n=4), [7, 8], index=2)
    assert rest.token_ids == [1, 2, 7, 8]
    assert rest.sampling_params == {"max_tokens": 8, "min_tokens": 1, "temperature": 0, "seed": 7, "n": 1}
    assert (rest.request_id, rest.priority) == ("r", 3)


def test_what_was_not_sent_is_still_not_sent() -> None:
    assert continue_request(request(), [7]).sampling_params == {}


def test_the_request_itself_is_not_changed() -> None:
    first = request(max_tokens=10)
    continue_request(first, [7])
    assert (first.token_ids, first.sampling_params) == ([1, 2], {"max_tokens": 10})


@pytest.mark.parametrize("n", [0, -1, "2", 1.5, True])
def test_n_is_a_positive_integer(n: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        choice_count(request(n=n))
    assert caught.value.param == "n"


async def test_folding_joins_each_choice() -> None:
    position = PositionLogprobs(CandidateLogprob(5, -0.1, 1))

    async def chunks() -> AsyncGenerator[TokenChunk, None]:
        yield TokenChunk(1, (9,), extra={"a": 1})
        yield TokenChunk(0, (5,), (position,), cached_tokens=0)
        yield TokenChunk(1, (), finish_reason="stop", stop_reason=0, prompt_tokens=2, extra={"b": 2})
        yield TokenChunk(0, (6,), (position,), finish_reason="length", prompt_tokens=2)

    assert await fold_chunks(chunks()) == [
        TokenChunk(0, (5, 6), (position, position), "length", None, 2, 0),
        TokenChunk(1, (9,), None, "stop", 0, 2, None, {"a": 1, "b": 2}),
    ]
