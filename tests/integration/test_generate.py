"""The generate route through real queues: token ids in; tokens, text or a message out, and nothing lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from tests.conftest import RedisServer
from tests.integration.harness import Yard, scripted_model, write_tokenizer

GENERATE = "/inference/v1/generate"
TEXT = "the yard runs every request through render and generate and derender, number {}: café 東京 🙂 "


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("generate")
    tokenizer = write_tokenizer(folder / "tokenizer")
    models = [
        scripted_model("echo", tokenizer, chunk_tokens=[1, 3, 2], delay_s=0.02),
        scripted_model("slow", tokenizer, chunk_tokens=[1, 2], delay_s=0.1),
        {**scripted_model("short", tokenizer), "max_output_tokens": 5, "max_model_len": 64},
    ]
    yard = Yard(folder, redis_server, models)
    yard.start_all(cpu=1, gpu=2)
    try:
        yard.await_ready()
        yield yard
    finally:
        yard.stop()


@pytest.fixture(scope="module")
def tokenizer(yard: Yard) -> Tokenizer:
    return Tokenizer.from_file(str(yard.folder / "tokenizer" / "tokenizer.json"))


@pytest.fixture
async def http(yard: Yard) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        await yard.until(session, lambda report: report["status"] == "ok" and len(report["workers"]) == 3)
        yield session


def body(ids: list[int], max_tokens: int = 20, *, model: str = "echo", params: Any = None, **more: Any) -> Any:
    sampling = {"max_tokens": max_tokens, **(params or {})}
    return {"model": model, "token_ids": ids, "sampling_params": sampling, **more}


def round_and_round(ids: list[int], count: int, choice: int = 0) -> list[int]:
    """The scripted engine's answer."""
    return [ids[(choice + at) % len(ids)] for at in range(count)]


async def post(yard: Yard, http: aiohttp.ClientSession, sent: Any, path: str = GENERATE, **headers: str) -> Any:
    async with http.post(yard.url + path, json=sent, headers=headers) as reply:
        return {"status": reply.status, **(await reply.json())}


async def stream(yard: Yard, http: aiohttp.ClientSession, sent: Any) -> list[Any]:
    """Return all events of a stream; fail unless the stream is complete."""
    lines = []
    async with http.post(yard.url + GENERATE, json={**sent, "stream": True}) as reply:
        assert reply.status == 200, await reply.text()
        lines = [line[6:].strip() async for line in reply.content if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def tokens_of(events: list[Any], choice: int = 0) -> list[int]:
    parts = [part for event in events for part in event["choices"] if part["index"] == choice]
    assert [part["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]
    return [token_id for part in parts for token_id in part["token_ids"]]


def busy(report: Any) -> int:
    return sum(sum(worker["busy"].values()) for worker in report["workers"] if worker["role"] == "gpu")


async def test_tokens_whole_and_streamed(yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT.format(0)).ids
    sent = body(ids, params={"n": 3, "logprobs": 2}, return_token_ids=True, request_id="mine")
    answer = await post(yard, http, sent)
    assert answer["status"] == 200 and answer["output_mode"] == "tokens" and answer["model"] == "echo"
    assert answer["request_id"] == "generate-tokens-mine" and answer["prompt_token_ids"] == ids
    assert answer["usage"]["prompt_tokens"] == len(ids) and answer["usage"]["completion_tokens"] == 60
    for choice in answer["choices"]:
        expected = round_and_round(ids, 20, choice["index"])
        assert choice["token_ids"] == expected and choice["finish_reason"] == "length"
        assert [position["token_id"] for position in choice["logprobs"]["content"]] == expected
        assert all(len(position["top_logprobs"]) == 2 for position in choice["logprobs"]["content"])
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await stream(yard, http, {**sent, "stream_options": options})
    for index in range(3):
        assert tokens_of(events, index) == round_and_round(ids, 20, index)
    assert [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event] == [ids]
    assert events[0]["usage"]["completion_tokens"] == len(events[0]["choices"][0]["token_ids"])
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 60
    plain = await stream(yard, http, body(ids))
    assert plain[-1]["choices"] and all(event["usage"] is None for event in plain)


async def test_whose_id_an_answer_has(yard: Yard, http: aiohttp.ClientSession) -> None:
    assert (await post(yard, http, body([1, 2])))["request_id"].startswith("generate-tokens-job_")
    headed = await post(yard, http, body([1, 2], request_id="mine"), **{"X-Request-Id": "theirs"})
    assert headed["request_id"] == "generate-tokens-theirs"


async def test_texts_and_messages(yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer) -> None:
    text = TEXT.format(1)
    ids = tokenizer.encode(text).ids
    count = len(ids)
    answer = await post(yard, http, body(ids, count, output_mode="text", params={"logprobs": 1}))
    (choice,) = answer["choices"]
    assert answer["output_mode"] == "text" and choice["text"] == text and choice["token_ids"] == ids
    assert len(choice["logprobs"]["content"]) == count and choice["logprobs"]["content"][0]["token"] == "the"
    events = await stream(yard, http, body(ids, count, output_mode="text"))
    assert "".join(event["choices"][0]["text"] for event in events) == text and tokens_of(events) == ids
    answer = await post(yard, http, body(ids, count, output_mode="derender"))
    assert answer["output_mode"] == "derender" and answer["choices"][0]["message"]["content"] == text
    events = await stream(yard, http, body(ids, count, output_mode="derender"))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0]["role"] == "assistant" and "".join(delta.get("content", "") for delta in deltas) == text


@pytest.mark.parametrize("mode", ["tokens", "text", "derender"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_string_ends_what_the_engine_would_go_on_with(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer, mode: str, streamed: bool
) -> None:
    text = TEXT.format(2)
    ids = tokenizer.encode(text).ids
    sent = body(ids, 3000, model="slow", params={"stop": "runs"}, output_mode=mode)
    began = time.monotonic()
    if streamed:
        events = await stream(yard, http, sent)
        kept, last = tokens_of(events), events[-1]["choices"][0]
        said = "".join(
            event["choices"][0].get("text", event["choices"][0].get("delta", {}).get("content", "")) for event in events
        )
    else:
        last = (await post(yard, http, sent))["choices"][0]
        kept, said = last["token_ids"], last.get("text", last.get("message", {}).get("content", ""))
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "runs")
    assert tokenizer.decode(kept) == text[: text.index("runs") + 4] and kept == ids[: len(kept)]
    assert said == ("" if mode == "tokens" else text.split("runs")[0])
    await yard.until(http, lambda report: busy(report) == 0, timeout_s=20)
    assert time.monotonic() - began < 40, "the engine would take minutes"


async def test_a_stop_string_ends_a_chat_as_well(yard: Yard, http: aiohttp.ClientSession) -> None:
    answer = await yard.chat(http, TEXT.format(3), 3000, model="slow", stop=["every"])
    assert answer["choices"][0]["message"]["content"] == "the yard runs "
    assert answer["choices"][0]["stop_reason"] == "every"
    await yard.until(http, lambda report: busy(report) == 0, timeout_s=20)


async def test_a_killed_worker_leaves_no_gap_and_no_repeat(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    prompts = [tokenizer.encode(TEXT.format(number)).ids for number in range(6)]
    options = {"include_usage": True, "continuous_usage_stats": True}
    sent = [
        body(ids, 60, model="slow", params={"n": 2}, return_token_ids=True, stream_options=options) for ids in prompts
    ]
    streams = [asyncio.create_task(stream(yard, http, one)) for one in sent]
    report = await yard.until(http, lambda report: busy(report) == len(prompts))
    await asyncio.sleep(0.8)
    held = {worker["pid"]: sum(worker["busy"].values()) for worker in report["workers"] if worker["role"] == "gpu"}
    victim = yard.name_of(max(held, key=lambda pid: held[pid]))
    yard.kill(victim)
    yard.start_worker("gpu", victim)
    for ids, events in zip(prompts, await asyncio.gather(*streams), strict=True):
        for choice in range(2):
            assert tokens_of(events, choice) == round_and_round(ids, 60, choice)
        assert [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event] == [ids]
        counts = [event["usage"]["completion_tokens"] for event in events if event["choices"][:1]]
        assert max(counts) == 60 and events[-1]["usage"] == {
            "prompt_tokens": len(ids),
            "total_tokens": len(ids) + 120,
            "completion_tokens": 120,
        }


async def test_a_client_that_goes_away_frees_the_engine(yard: Yard, http: aiohttp.ClientSession) -> None:
    for asked in (stream, post):
        request = asyncio.create_task(asked(yard, http, body([5, 6, 7], 3000, model="slow")))
        await yard.until(http, lambda report: busy(report) == 1)
        request.cancel()
        await yard.until(http, lambda report: busy(report) == 0, timeout_s=20)


async def test_a_request_is_aborted_by_its_id(yard: Yard, http: aiohttp.ClientSession) -> None:
    for given in ("abort-1", "generate-tokens-abort-2"):
        sent = body([5, 6, 7], 3000, model="slow", request_id=given.removeprefix("generate-tokens-"))
        request = asyncio.create_task(post(yard, http, sent))
        await yard.until(http, lambda report: busy(report) == 1)
        async with http.post(f"{yard.url}/inference/v1/abort_requests", json={"request_ids": [given, "-"]}) as reply:
            assert reply.status == 200
        assert (await request)["error"]["code"] == "cancelled"
        await yard.until(http, lambda report: busy(report) == 0, timeout_s=20)
    assert (await post(yard, http, {}, "/inference/v1/abort_requests"))["error"]["param"] == "request_ids"


async def test_a_request_as_a_job(yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT.format(4)).ids
    for more in ({}, {"stream": True}, {"output_mode": "text"}):
        job = {"endpoint": GENERATE, "body": body(ids, **more)}
        submitted = await post(yard, http, job, "/v1/jobs")
        assert submitted["status"] in ("queued", "running"), submitted
        done = await yard.finished(http, submitted["id"])
        assert done["status"] == "succeeded"
        assert done["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 20}
        result = await yard.job(http, submitted["id"], "/result")
        assert result["choices"][0]["token_ids"] == round_and_round(ids, 20)
        assert result["choices"][0].get("text") == (
            tokenizer.decode(round_and_round(ids, 20)) if more.get("output_mode") else None
        )


async def test_what_the_model_limits(yard: Yard, http: aiohttp.ClientSession) -> None:
    for params in ({}, {"max_tokens": 30}):
        sent = {"model": "short", "token_ids": [5, 6, 7], "sampling_params": params}
        assert len((await post(yard, http, sent))["choices"][0]["token_ids"]) == 5
    long = await post(yard, http, body([5] * 64, model="short"))
    assert long["status"] == 400 and long["error"]["param"] == "token_ids"
