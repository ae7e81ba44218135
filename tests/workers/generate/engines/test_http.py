"""Servers that fail, and what a caller sees."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from tasks.errors import EngineFailed, EngineRefused, EngineUnavailable, TokenyardError
from tasks.protocol.tokens import GenerateRequest, TokenChunk
from tasks.settings import EngineSettings
from tests.workers.generate.engines.fake_server import END, GOOD, TOKENS, Handler, Start, choices, events, status
from workers.generate.engines.base import Engine
from workers.generate.engines.http import ServerPool
from workers.generate.engines.registry import create_engine
from workers.generate.engines.vllm_http import VllmEngine


def refused_url() -> str:
    return f"http://127.0.0.1:{unused_port()}"


async def ask(*urls: str, **params: Any) -> list[TokenChunk]:
    engine = create_engine(EngineSettings(kind="vllm", urls=urls, connect_timeout_s=1))
    try:
        return await read(engine, **params)
    finally:
        await engine.close()


async def read(engine: Engine, **params: Any) -> list[TokenChunk]:
    async with aclosing(engine.generate(GenerateRequest(token_ids=[1], sampling_params=params), stream=True)) as chunks:
        return [chunk async for chunk in chunks]


async def error_of(*urls: str) -> TokenyardError:
    with pytest.raises(TokenyardError) as caught:
        await ask(*urls)
    return caught.value


async def test_nothing_listens() -> None:
    error = await error_of(refused_url(), refused_url())
    assert isinstance(error, EngineUnavailable)
    assert error.retry_after_s is not None and error.retry_after_s >= 1


async def test_a_server_that_is_down_is_passed_over(start: Start) -> None:
    chunks = await ask(refused_url(), await start(GOOD))
    assert [t for chunk in chunks for t in chunk.token_ids] == [5, 6]


@pytest.mark.parametrize(
    ("code", "body", "kind", "message", "param"),
    [
        (400, {"error": {"message": "bad top_p", "param": "top_p", "type": "x"}}, EngineRefused, "bad top_p", "top_p"),
        (422, {"error": {"message": "no", "type": "x"}}, EngineRefused, "no", None),
        (404, {"error": {"message": "no model", "type": "NotFoundError"}}, EngineRefused, "no model", None),
        (404, {"detail": "Not Found"}, EngineFailed, "Not Found", None),
        (401, {"error": "Unauthorized"}, EngineFailed, "key: Unauthorized", None),
        (500, {"error": {"message": "out of memory"}}, EngineFailed, "out of memory", None),
        (502, "<html>bad gateway</html>", EngineFailed, "bad gateway", None),
        (503, {"error": {"message": "Loading model"}}, EngineUnavailable, "Loading model", None),
        (429, "slow down", EngineUnavailable, "slow down", None),
    ],
)
async def test_a_status_becomes_an_error(
    start: Start, code: int, body: Any, kind: type[TokenyardError], message: str, param: str | None
) -> None:
    error = await error_of(await start(status(code, body)))
    assert type(error) is kind
    assert message in error.message
    assert error.param == param


async def test_retry_after_is_passed_on(start: Start) -> None:
    error = await error_of(await start(status(503, "busy", {"Retry-After": "17"})))
    assert error.retry_after_s == 17


@pytest.mark.parametrize("code", [500, 503])
async def test_a_failure_before_the_first_token_goes_to_another_server(start: Start, code: int) -> None:
    urls = await start(status(code, "no")), await start(GOOD)
    assert len(await ask(*urls)) == 2


async def test_a_refusal_is_not_tried_elsewhere(start: Start) -> None:
    urls = await start(status(400, {"error": {"message": "no", "type": "x"}})), await start(GOOD)
    assert isinstance(await error_of(*urls), EngineRefused)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (events(choices(TOKENS)), "1 of 1 choices unfinished"),
        (events(), "1 of 1 choices unfinished"),
        (events(choices(TOKENS), done=False), "unfinished"),
        (events(choices(END), choices(TOKENS)), "after the end of every choice"),
        (events(choices({**TOKENS, "index": 1})), "choice 1 of 1"),
        (events(choices(TOKENS), {"error": {"message": "engine died", "code": 500}}), "engine died"),
        (events(choices(TOKENS), [1]), "not an object"),
        (events(choices({**TOKENS, "finish_reason": "error"})), "with an error"),
        (events({"output_mode": "text", **choices(END)}), "mode 'text'"),
    ],
)
async def test_a_stream_that_is_not_whole_fails(start: Start, handler: Handler, message: str) -> None:
    error = await error_of(await start(handler))
    assert isinstance(error, EngineFailed)
    assert message in error.message


async def test_a_connection_that_breaks_in_a_stream_fails(start: Start) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        assert request.transport is not None
        request.transport.abort()
        return response

    first = await start(break_off)
    with pytest.raises(EngineFailed, match="broke"):
        await ask(first, await start(GOOD))


async def begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"data: " + json.dumps(choices(TOKENS)).encode() + b"\n\n")
    await asyncio.sleep(0.05)
    return response


async def test_a_connection_that_closes_before_an_answer_goes_to_another_server(start: Start) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert len(await ask(await start(hang_up), await start(GOOD))) == 2


async def test_a_server_that_came_back_is_used_again(start: Start) -> None:
    down = [True]

    async def sometimes(request: web.Request) -> web.StreamResponse:
        return await (status(503, "no") if down[0] else GOOD)(request)

    engine = create_engine(EngineSettings(kind="vllm", urls=(await start(sometimes),)))
    with pytest.raises(EngineUnavailable):
        await read(engine)
    down[0] = False
    assert len(await read(engine)) == 2
    await engine.close()


async def test_the_server_with_the_fewest_requests_is_next(start: Start) -> None:
    requests = [0, 0]

    def slow(number: int) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            requests[number] += 1
            await asyncio.sleep(0.1)
            return await GOOD(request)

        return answer

    engine = create_engine(EngineSettings(kind="vllm", urls=(await start(slow(0)), await start(slow(1)))))
    await asyncio.gather(*(read(engine) for _ in range(20)))
    assert requests == [10, 10]
    await engine.close()


async def test_a_server_that_is_done_counts_as_free_again(start: Start) -> None:
    engine = VllmEngine(EngineSettings(kind="vllm", urls=(await start(GOOD), await start(status(500, "no")))))
    for _ in range(3):
        await read(engine)
    assert [server.in_flight for server in engine.pool.servers] == [0, 0]
    await engine.close()


async def test_a_stream_ends_with_done_even_if_the_connection_stays(start: Start) -> None:
    async def linger(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await response.write(b"data: " + json.dumps(choices(END)).encode() + b"\n\ndata: [DONE]\n\n")
        await asyncio.sleep(30)
        return response

    assert len(await asyncio.wait_for(ask(await start(linger)), 20)) == 2


async def test_closing_the_stream_closes_the_connection(start: Start) -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"data: " + json.dumps(choices(TOKENS)).encode() + b"\n\n")
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            ended.set()
            raise

    engine = create_engine(EngineSettings(kind="vllm", urls=(await start(endless),)))
    stream = engine.generate(GenerateRequest(token_ids=[1]), stream=True)
    await anext(stream)
    await stream.aclose()
    await asyncio.wait_for(ended.wait(), 20)
    await engine.close()


async def test_no_event_is_too_long_and_comments_are_passed_over(start: Start) -> None:
    many = list(range(300_000))

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b": ping\n\n")
        line = b"data: " + json.dumps(choices({**END, "token_ids": many})).encode() + b"\r\n\r\n"
        for start_at in range(0, len(line), 50_001):
            await response.write(line[start_at : start_at + 50_001])
        await response.write(b"data: [DONE]\n\n")
        return response

    (chunk,) = await ask(await start(answer))
    assert chunk.token_ids == tuple(many)


def test_servers_that_are_down_come_last_and_the_soonest_first() -> None:
    pool = ServerPool(("http://a", "http://b/", "http://c"))
    a, b, c = pool.servers
    now_s = 1e12
    a.note_failure(now_s)
    a.note_failure(now_s)
    b.note_failure(now_s)
    assert [server.url for server in pool.in_order()] == ["http://c", "http://b", "http://a"]
    a.note_success()
    a.in_flight = 3
    assert [server.url for server in pool.in_order()] == ["http://c", "http://a", "http://b"]
    assert c.failures == 0


def test_a_url_is_needed() -> None:
    with pytest.raises(ValueError, match="needs at least one URL"):
        create_engine(EngineSettings(kind="vllm"))


@pytest.mark.parametrize("kind", ["vllm", "llamacpp", "scripted"])
def test_an_unknown_option_is_refused(kind: Any) -> None:
    settings = EngineSettings(kind=kind, urls=("http://a",), options={"sendstop": True})
    with pytest.raises(ValueError, match="no option sendstop"):
        create_engine(settings)
