"""Refused requests: OpenAI's envelope, the right status, and `Retry-After`."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.app import create_app
from tests.api.conftest import CHAT, Serve, Stage, chunk
from tests.conftest import quick_settings


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


async def test_an_unknown_model_is_404_and_named(stage: Stage) -> None:
    error = error_of(await stage.chat(model="gpt-9"), 404)
    assert error["code"] == "model_not_found" and error["param"] == "model" and "gpt-9" in error["message"]
    error_of(await stage.client.get("/v1/models/gpt-9"), 404)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": "Hello"}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 100_000}, "n"),
        ({"model": 7}, "model"),
        ({"messages": [{"content": "nobody says this"}]}, "messages"),
    ],
)
async def test_an_invalid_field_is_400_and_named(stage: Stage, changes: dict[str, Any], param: str) -> None:
    error = error_of(await stage.chat(**changes), 400)
    assert error["type"] == "invalid_request_error"
    assert str(error["param"]).startswith(param)
    assert not any(stage.store.queues.values()), "nothing was enqueued"


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b""])
async def test_a_body_that_is_no_json_object_is_400(stage: Stage, body: bytes) -> None:
    error_of(await stage.client.post("/v1/chat/completions", content=body), 400)
    error_of(await stage.client.post("/v1/jobs", content=body), 400)


async def test_a_body_that_is_too_large_is_413_whether_its_length_is_told_or_not(serving: Serve) -> None:
    stage = await serving(limits={"max_body_bytes": 2000})
    body = json.dumps({**CHAT, "user": "x" * 3000}).encode()
    for path in ("/v1/chat/completions", "/v1/jobs"):
        error = error_of(await stage.client.post(path, content=body), 413)
        assert error["code"] == "payload_too_large"

        async def chunks() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 500):
                yield body[at : at + 500]

        error_of(await stage.client.post(path, content=chunks()), 413)
    assert not any(stage.store.queues.values())


async def test_a_stage_without_a_live_worker_is_503_with_retry_after(serving: Serve) -> None:
    stage = await serving(queues=("render", "derender"))
    reply = await stage.chat()
    assert "generate" in error_of(reply, 503)["message"]
    assert int(reply.headers["retry-after"]) > 0
    assert reply.json()["error"]["code"] == "no_live_worker"
    assert (await stage.submit()).status_code == 202, "a job waits for its worker"


async def test_a_full_queue_is_429_with_retry_after(serving: Serve) -> None:
    stage = await serving(limits={"max_queued": 1})
    assert (await stage.submit()).status_code == 202
    for reply in (await stage.chat(), await stage.chat(stream=True), await stage.submit()):
        assert error_of(reply, 429)["code"] == "queue_full"
        assert int(reply.headers["retry-after"]) > 0


async def test_a_broker_that_is_down_is_503(stage: Stage) -> None:
    stage.store.down = True
    for reply in (await stage.chat(), await stage.submit(), await stage.client.get("/v1/jobs/job_1")):
        assert error_of(reply, 503)["code"] == "broker_unavailable"
        assert reply.headers["retry-after"] == "5"


async def test_the_process_starts_without_its_broker_and_serves_once_it_is_there(serving: Serve) -> None:
    stage = await serving(down=True)
    assert error_of(await stage.chat(), 503)
    assert (await stage.client.get("/health/ready")).status_code == 503
    stage.store.down = False
    assert (await stage.client.get("/health/ready")).status_code == 200
    assert (await stage.submit()).status_code == 202


async def test_unknown_routes_and_methods_answer_in_the_envelope(stage: Stage) -> None:
    assert error_of(await stage.client.get("/v1/nothing"), 404)["code"] == "not_found"
    error_of(await stage.client.get("/v1/chat/completions"), 405)


async def test_a_query_parameter_out_of_range_is_400_and_named(stage: Stage) -> None:
    assert error_of(await stage.client.get("/v1/jobs?limit=1000"), 400)["param"] == "limit"


async def test_an_error_that_nobody_expected_says_nothing_of_the_inside() -> None:
    app = create_app(quick_settings())

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        error = error_of(await client.get("/broken"), 500)
    assert "secret" not in error["message"] and error["code"] == "internal_error"


async def test_keys_are_asked_for_where_there_are_any(serving: Serve) -> None:
    stage = await serving(api={"keys": ["one", "two"]})
    for headers in ({}, {"authorization": "Bearer three"}, {"authorization": "Bearer"}, {"x-api-key": "on"}):
        reply = await stage.client.get("/v1/models", headers=headers)
        assert error_of(reply, 401)["code"] == "invalid_api_key"
    for headers in ({"authorization": "Bearer two"}, {"x-api-key": "one"}):
        assert (await stage.client.get("/v1/models", headers=headers)).status_code == 200
    for path in ("/v1/jobs", "/v1/jobs/job_1", "/v1/jobs/job_1/events"):
        error_of(await stage.client.get(path), 401)
    error_of(await stage.client.post("/v1/chat/completions", json=CHAT), 401)
    assert (await stage.client.get("/health/live")).status_code == 200


async def test_every_response_has_a_request_id(stage: Stage) -> None:
    replies = [
        await stage.client.get("/health/live"),
        await stage.client.get("/v1/models"),
        await stage.chat(model="x"),
    ]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len(set(ids)) == len(ids)
    reply = await stage.client.get("/v1/models", headers={"x-request-id": "mine"})
    assert reply.headers["x-request-id"] == "mine"


class Log:
    """What the middleware logs of requests that raise."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def error(self, event: str, **fields: Any) -> None:
        self.errors.append({"event": event, **fields})


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr("api.app.log", log)
    return log


FAULTY = {
    "unexpected": (b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}', {}, 500),
    "not JSON": (b"{", {}, 400),
    "lone surrogate": (rb'{"model": "tiny", "messages": [{"role": "user", "content": "\ud800"}]}', {}, 400),
    "nested too deeply": (b'{"model": ' + b"[" * 100_000, {}, 400),
    "too large": (b'{"model": "' + b"x" * 3_000_000 + b'"}', {}, 413),
    "compressed": (b"(\xb5/\xfd", {"Content-Encoding": "zstd"}, 415),
    "unknown model": (b'{"model": "gpt-9"}', {}, 404),
}


@pytest.mark.parametrize("fault", FAULTY)
async def test_an_error_leaves_the_connection_usable(
    serving: Serve, monkeypatch: pytest.MonkeyPatch, log: Log, fault: str
) -> None:
    stage = await serving(limits={"max_body_bytes": 1_000_000})
    body, headers, status = FAULTY[fault]
    if fault == "unexpected":

        async def raise_unexpectedly(*_: Any) -> None:
            raise RuntimeError("a secret of the server")

        monkeypatch.setattr("api.routes.openai.run", raise_unexpectedly)

    def ask() -> tuple[int, dict[str, Any], int, bool]:
        url = stage.client.base_url
        connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=30)
        connection.connect()
        socket = connection.sock
        connection.request("POST", "/v1/chat/completions", body, {"X-Request-Id": "mine", **headers})
        reply = connection.getresponse()
        error = json.loads(reply.read())
        assert reply.getheader("x-request-id") == "mine"
        closes = reply.getheader("connection") == "close"
        connection.request("GET", "/v1/models")
        again = connection.getresponse()
        again.read()
        same = connection.sock is socket
        connection.close()
        return reply.status, error, again.status, same or closes

    told, error, again, kept = await asyncio.to_thread(ask)
    assert (told, again, kept) == (status, 200, True)
    assert error["error"]["message"] and "secret" not in str(error)
    assert [(one["request_id"], str(one["exc_info"])) for one in log.errors] == (
        [("mine", "a secret of the server")] if status == 500 else []
    )


async def test_an_answer_that_breaks_off_closes_the_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    async def break_off(*_: Any) -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr("api.routes.openai.relay_chunks", break_off)
    asking = asyncio.create_task(stage.chat(stream=True))
    await stage.emit(await stage.take(), chunk("Hi"))
    with pytest.raises(httpx.RemoteProtocolError):
        await asking
    (logged,) = log.errors
    assert str(logged["exc_info"]) == "a secret of the server"
    assert (await stage.client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    ("path", "carrier"),
    [
        ("/v1/chat/completions/derender", "chat_request"),
        ("/v1/completions/derender", "completion_request"),
        ("/v1/responses/derender", "responses_request"),
        ("/v1/messages/derender", "messages_request"),
        ("/v1/chat/completions/derender", "stream_state"),
    ],
)
async def test_a_derender_body_may_name_the_model_in_what_it_carries(serving: Serve, path: str, carrier: str) -> None:
    stage = await serving(
        models=[{"name": name, "tokenizer": "/nowhere"} for name in ("one", "two")], queues=("derender",)
    )
    named: dict[str, Any] = {"model": "two"}
    choice = {"index": 0, "token_ids": [1], "finish_reason": "stop"}
    body: dict[str, Any] = {"generate_response": {"choices": [choice]}, "generate_responses": [{"choices": [choice]}]}
    if carrier == "stream_state":
        body = {"stream": True, "generate_chunk": {"choices": [choice]}}
        named = {"context": named}
    error = error_of(await stage.client.post(path, json=body), 400)
    assert error["param"] == "model"
    asking = asyncio.create_task(stage.client.post(path, json={**body, carrier: named}))
    claim = await stage.take("derender")
    assert claim.job.model == "two"
    await stage.succeed(claim, b"r{}")
    assert (await asking).status_code == 200


CHAT_PATH, GENERATE_PATH = "/v1/chat/completions", "/inference/v1/generate"


def tokens(**params: Any) -> dict[str, Any]:
    return {"model": "tiny", "token_ids": [1], "sampling_params": params}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": 6}, "top_logprobs"),
        (CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT_PATH, {**CHAT, "prompt_logprobs": 6}, "prompt_logprobs"),
        (GENERATE_PATH, tokens(logprobs=6), "sampling_params.logprobs"),
        (GENERATE_PATH, tokens(logprobs=-1), "sampling_params.logprobs"),
        (GENERATE_PATH, tokens(prompt_logprobs=6), "sampling_params.prompt_logprobs"),
    ],
)
async def test_more_candidates_than_the_model_gives_are_refused(
    serving: Serve, path: str, body: dict[str, Any], param: str
) -> None:
    model = {"name": "tiny", "tokenizer": "/nowhere", "max_logprobs": 5}
    stage = await serving(models=[model])
    assert error_of(await stage.client.post(path, json=body), 400)["param"] == param
    job = {"endpoint": path, "body": body}
    assert param in str(error_of(await stage.client.post("/v1/jobs", json=job), 400)["param"])
    assert not any(stage.store.queues.values()), "nothing was queued"


async def test_candidates_have_no_limit_where_the_model_has_none(serving: Serve) -> None:
    stage = await serving(models=[{"name": "tiny", "tokenizer": "/nowhere", "max_logprobs": -1}])
    asking = asyncio.create_task(stage.chat(logprobs=True, top_logprobs=500))
    await stage.succeed(await stage.take(), b"r{}")
    assert (await asking).status_code == 200
