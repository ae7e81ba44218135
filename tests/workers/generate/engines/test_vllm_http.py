"""What is sent to vLLM, and what is read from its answers."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from tasks.protocol.tokens import CandidateLogprob, GenerateRequest, PositionLogprobs, TokenChunk
from tasks.settings import EngineSettings
from tests.workers.generate.engines.fake_server import GOOD, Start, choices, events, status
from workers.generate.engines.vllm_http import VllmEngine


def engine(*urls: str, **settings: Any) -> VllmEngine:
    return VllmEngine(EngineSettings(kind="vllm", urls=urls or ("http://a",), **settings))


def request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=[1, 2], **{"sampling_params": {"temperature": 0}, **fields})


async def chunks_of(url: str, *, stream: bool, **fields: Any) -> list[TokenChunk]:
    vllm = engine(url)
    async with aclosing(vllm.generate(request(**fields), stream=stream)) as chunks:
        read = [chunk async for chunk in chunks]
    await vllm.close()
    return read


def test_only_what_was_set_is_sent() -> None:
    assert engine().body(request(), stream=False) == {
        "token_ids": [1, 2],
        "sampling_params": {"temperature": 0},
        "stream": False,
    }


def test_everything_that_the_engine_reads_is_sent() -> None:
    full = request(
        request_id="job_1",
        model="alias",
        reasoning_ended=False,
        reasoning_parser_kwargs={"chat_template_kwargs": {"enable_thinking": True}},
        cache_salt="s",
        kv_transfer_params={"a": 1},
        ec_transfer_params={"b": 2},
        features={"mm_hashes": {}, "mm_placeholders": {}},
        return_token_ids=True,
        parse_context={"tools": []},
        output_mode="derender",
        priority=4,
        token_offsets=[(0, 1), (1, 2)],
    )
    assert engine(model="theirs").body(full, stream=True) == {
        "request_id": "job_1",
        "model": "theirs",
        "token_ids": [1, 2],
        "sampling_params": {"temperature": 0},
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_ended": False,
        "reasoning_parser_kwargs": {"chat_template_kwargs": {"enable_thinking": True}},
        "cache_salt": "s",
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"b": 2},
        "features": {"mm_hashes": {}, "mm_placeholders": {}},
        "return_token_ids": True,
    }


@pytest.mark.parametrize(("option", "priority", "sent"), [(True, 4, 4), (True, 0, None), (False, 4, None)])
def test_a_priority_is_sent_where_it_is_configured_and_not_zero(option: bool, priority: int, sent: int | None) -> None:
    body = engine(options={"send_priority": option}).body(request(priority=priority), stream=False)
    assert body.get("priority") == sent


def test_stop_strings_are_kept_from_servers_without_a_tokenizer() -> None:
    params = {"stop": ["x"], "include_stop_str_in_output": True, "stop_token_ids": [3]}
    vllm = engine(options={"send_stop": False})
    assert not vllm.capabilities.stops_on_strings
    assert vllm.body(request(sampling_params=params), stream=False)["sampling_params"] == {"stop_token_ids": [3]}
    assert engine().body(request(sampling_params=params), stream=False)["sampling_params"] == params


LOGPROBS = {
    "content": [
        {
            "token_id": 5,
            "logprob": -0.5,
            "rank": 2,
            "top_logprobs": [
                {"token_id": 5, "logprob": -0.5, "rank": 2},
                {"token_id": 9, "logprob": -0.4, "rank": 1},
            ],
        },
        {"token_id": 6, "logprob": -9999.0, "rank": None, "top_logprobs": []},
    ]
}
POSITIONS = (
    PositionLogprobs(CandidateLogprob(5, -0.5, 2), (CandidateLogprob(5, -0.5, 2), CandidateLogprob(9, -0.4, 1))),
    PositionLogprobs(CandidateLogprob(6, -9999.0, None)),
)
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


async def test_a_stream_is_read_to_the_last_field(start: Start) -> None:
    url = await start(
        events(
            {**choices({"index": 1, "token_ids": [3]}), "prompt_token_ids": [1, 2]},
            choices({"index": 0, "token_ids": [5, 6], "logprobs": LOGPROBS}),
            choices({"index": 1, "token_ids": [], "finish_reason": "length", "weight_versions": [[0, 1]]}),
            choices({"index": 0, "token_ids": [8], "finish_reason": "stop", "stop_reason": "x"}),
            {"choices": [], "usage": USAGE, "metrics": {"m": 1}},
        )
    )
    assert await chunks_of(url, stream=True, sampling_params={"n": 2}) == [
        TokenChunk(1, (3,), extra={"prompt_token_ids": [1, 2]}),
        TokenChunk(0, (5, 6), POSITIONS),
        TokenChunk(1, (), None, "length", None, 2, None, {"weight_versions": [[0, 1]]}),
        TokenChunk(0, (8,), None, "stop", "x", 7, 4, {"metrics": {"m": 1}}),
    ]


async def test_a_stream_without_usage_counts_the_prompt_itself(start: Start) -> None:
    *_, last = await chunks_of(await start(GOOD), stream=True)
    assert (last.prompt_tokens, last.cached_tokens) == (2, None)


async def test_an_answer_at_once_is_read_to_the_last_field(start: Start) -> None:
    answer = {
        "request_id": "generate-tokens-x",
        "choices": [
            {"index": 0, "token_ids": [5, 6], "logprobs": LOGPROBS, "finish_reason": "stop", "stop_reason": 6},
            {"index": 1, "token_ids": [], "finish_reason": "abort", "sampling_mask": [[1]]},
        ],
        "usage": USAGE,
        "prompt_logprobs": [None, {"2": {"logprob": -1.0}}],
        "kv_transfer_params": {"a": 1},
        "metrics": None,
    }
    url = await start(status(200, answer))
    assert await chunks_of(url, stream=False, sampling_params={"n": 2}) == [
        TokenChunk(
            0,
            (5, 6),
            POSITIONS,
            "stop",
            6,
            7,
            4,
            {"prompt_logprobs": [None, {"2": {"logprob": -1.0}}], "kv_transfer_params": {"a": 1}},
        ),
        TokenChunk(1, (), None, "abort", None, 7, 4, {"sampling_mask": [[1]]}),
    ]


async def test_the_request_id_and_the_key_travel_in_headers(start: Start) -> None:
    seen: list[tuple[str, str]] = []

    async def look(incoming: Any) -> Any:
        seen.append((incoming.headers["x-request-id"], incoming.headers["authorization"]))
        return await GOOD(incoming)

    vllm = engine(await start(look), api_key="secret")
    async with aclosing(vllm.generate(request(request_id="job_1"), stream=True)) as chunks:
        assert [chunk async for chunk in chunks]
    await vllm.close()
    assert seen == [("job_1", "Bearer secret")]
