"""Relaying answers: order, gaps, errors before and after the first chunk, clients that disconnect."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest

from api import relay
from tasks.errors import EngineFailed, EngineUnavailable, error_to_json
from tasks.ledger.store import Status
from tasks.protocol.base import compact_json
from tests.api.conftest import CHAT, Serve, Stage, chunk, eventually, sse_of, texts_of

ANSWER = {"id": "chatcmpl-1", "choices": []}


def streamed(stage: Stage) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(stage.chat(stream=True))


async def test_a_whole_answer_is_what_the_worker_wrote(stage: Stage) -> None:
    asked = asyncio.create_task(stage.chat())
    claim = await stage.take()
    assert json.loads(claim.payloads["request"]) == CHAT
    await stage.succeed(claim, b"r" + compact_json(ANSWER))
    reply = await asked
    assert reply.status_code == 200 and reply.json() == ANSWER


async def test_chunks_come_in_order_and_done_is_the_last(stage: Stage) -> None:
    asked = streamed(stage)
    claim = await stage.take()
    for number in range(50):
        await stage.emit(claim, chunk(f"{number} "), chunk("and "))
    await stage.succeed(claim, chunk("end"))
    reply = await asked
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = await sse_of(reply)
    assert "".join(texts_of(events)) == "".join(f"{number} and " for number in range(50)) + "end"
    assert events[-1] == {"data": "[DONE]"} and [e["data"] for e in events].count("[DONE]") == 1


@pytest.mark.parametrize("lost", [{0}, {1}, {1, 2, 3}, {4}])
async def test_what_the_inbox_lost_is_read_from_the_channel(
    stage: Stage, lost: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("api.relay", "api.routes.openai"):
        monkeypatch.setattr(f"{module}.SILENCE_S", 0.2)
    stage.buses[0].lost = frozenset(lost)
    asked = streamed(stage)
    claim = await stage.take()
    for number in range(4):
        await stage.emit(claim, chunk(str(number)))
        await asyncio.sleep(0.02)
    await stage.succeed(claim, chunk("4"))
    assert texts_of(await sse_of(await asked)) == ["0", "1", "2", "3", "4"]


async def test_a_message_that_comes_twice_is_told_once(stage: Stage) -> None:
    asked = streamed(stage)
    claim = await stage.take()
    await stage.emit(claim, chunk("a"), chunk("b"))
    (name,) = [name for name in stage.store._inboxes if name.startswith("api-")]
    again = f"e {claim.job.id} 1\n".encode() + chunk("a") + b"\n" + chunk("b")
    stage.store._inboxes[name].append(again)
    await stage.succeed(claim, chunk("c"))
    assert texts_of(await sse_of(await asked)) == ["a", "b", "c"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_chunk_is_a_status(stage: Stage, stream: bool) -> None:
    asked = asyncio.create_task(stage.chat(stream=stream))
    claim = await stage.take()
    await stage.fail(claim, error_to_json(EngineUnavailable("no engine answers", retry_after_s=7)))
    reply = await asked
    assert reply.status_code == 503 and reply.headers["retry-after"] == "7"
    assert reply.json()["error"]["code"] == "engine_unavailable"


async def test_an_error_after_the_first_chunk_is_an_event(stage: Stage) -> None:
    asked = streamed(stage)
    claim = await stage.take()
    await stage.emit(claim, chunk("begun"))
    await asyncio.sleep(0.1)
    await stage.fail(claim, error_to_json(EngineFailed("it broke")))
    reply = await asked
    events = await sse_of(reply)
    assert reply.status_code == 200 and texts_of(events) == ["begun"]
    error = json.loads(events[1]["data"])["error"]
    assert (error["message"], error["code"]) == ("it broke", "engine_failed")
    assert events[2:] == [{"data": "[DONE]"}]


async def test_a_short_outage_of_the_store_is_waited_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SILENCE_S", 0.1)
    asked = streamed(stage)
    claim = await stage.take()
    await stage.emit(claim, chunk("a"))
    await asyncio.sleep(0.1)
    stage.store.down = True
    await asyncio.sleep(0.5)
    stage.store.down = False
    await stage.succeed(claim, chunk("b"))
    assert texts_of(await sse_of(await asked)) == ["a", "b"]


async def test_a_long_outage_ends_the_stream_with_an_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SILENCE_S", 0.1)
    monkeypatch.setattr(relay, "OUTAGE_S", 0.3)
    asked = streamed(stage)
    claim = await stage.take()
    await stage.emit(claim, chunk("a"))
    await asyncio.sleep(0.1)
    stage.store.down = True
    events = await sse_of(await asked)
    assert texts_of(events) == ["a"]
    assert json.loads(events[1]["data"])["error"]["code"] == "broker_unavailable"


async def test_a_silent_stream_is_kept_alive(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SILENCE_S", 0.05)
    stage = await serving(api={"heartbeat_s": 0.1})
    asked = streamed(stage)
    claim = await stage.take()
    await stage.emit(claim, chunk("a"))
    await asyncio.sleep(0.5)
    await stage.succeed(claim, chunk("b"))
    reply = await asked
    assert reply.content.count(b": waiting\n\n") >= 2
    assert texts_of(await sse_of(reply)) == ["a", "b"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_before_an_answer_cancels_its_job(
    stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("api.routes.openai.SILENCE_S", 0.1)
    with caplog.at_level(logging.ERROR):
        asked = asyncio.create_task(stage.chat(stream=stream))
        claim = await stage.take()
        asked.cancel()
        async with asyncio.timeout(20):
            while await stage.status_of(claim.job.id) is not Status.CANCELLED:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
    assert not caplog.records, "going away is not an error of ours"


async def test_a_client_that_goes_away_in_the_middle_of_its_stream_cancels_its_job(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        body = {**CHAT, "stream": True}

        async def read_one() -> str:
            async with stage.client.stream("POST", "/v1/chat/completions", json=body) as reply:
                async for line in reply.aiter_lines():
                    return line
            raise AssertionError

        reading = asyncio.create_task(read_one())
        claim = await stage.take()
        await stage.emit(claim, chunk("a"))
        assert "a" in await reading
        async with asyncio.timeout(20):
            while await stage.status_of(claim.job.id) is not Status.CANCELLED:
                await asyncio.sleep(0.01)
    assert not caplog.records


async def test_subscriptions_end_with_their_requests(serving: Serve) -> None:
    stage = await serving()
    hubs = []
    original = relay.Hub.subscribe

    def noted(self: relay.Hub, job_id: str, after: int = 0) -> relay.Subscription:
        hubs.append(self)
        return original(self, job_id, after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay.Hub, "subscribe", noted)
        asked = [asyncio.create_task(stage.chat(stream=number % 2 == 0)) for number in range(6)]
        for _ in asked:
            claim = await stage.take()
            await stage.succeed(claim, chunk("x"), b"r{}")
        await asyncio.gather(*asked)
    await eventually(lambda: not hubs[0]._subscriptions)


async def test_many_streams_at_once_each_get_their_own(stage: Stage) -> None:
    asked = {}
    for number in range(30):
        task = streamed(stage)
        claim = await stage.take()
        asked[claim.job.id] = (task, claim, number)
    for step in range(5):
        await asyncio.gather(*(stage.emit(claim, chunk(f"{n}.{step} ")) for _, claim, n in asked.values()))
    for task, claim, number in asked.values():
        await stage.succeed(claim)
        expected = "".join(f"{number}.{step} " for step in range(5))
        assert "".join(texts_of(await sse_of(await task))) == expected
