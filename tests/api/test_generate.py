"""The generate route's bodies become jobs that start with the generate stage."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tasks.ledger.store import Claim, Status
from tasks.protocol.base import JsonObject
from tasks.protocol.tokens import unpack_token_ids
from tests.api.conftest import Serve, Stage, eventually, sse_of

PATH = "/inference/v1/generate"
QUEUE = "generate.tiny.interactive"
BODY: JsonObject = {
    "model": "tiny",
    "token_ids": [5, 6, 7],
    "sampling_params": {"temperature": 0, "a_newer_one": 1},
    "parse_context": {"tools": None},
}


async def claimed(stage: Stage, **more: Any) -> tuple[Claim, Any]:
    """Send a request, claim its generate stage, and return the claim, its payloads and the pending request."""
    request = asyncio.create_task(stage.client.post(PATH, json={**BODY, **more}, headers=more.pop("headers", None)))
    message = await eventually(lambda: stage.store.take(QUEUE))
    claim = await stage.store.claim(message.job_id, "generate", "w1", ("request", "prompt", "generate", "context"))
    assert isinstance(claim, Claim)
    return claim, request


async def test_what_the_stages_read(stage: Stage) -> None:
    claim, request = await claimed(stage)
    assert (
        claim.job.stages == ("generate",)
        and not claim.job.followed
        and claim.payloads.keys()
        == {
            "prompt",
            "generate",
            "context",
        }
    )
    assert unpack_token_ids(claim.payloads["prompt"]) == [5, 6, 7]
    asked = json.loads(claim.payloads["generate"])
    assert asked["sampling_params"] == BODY["sampling_params"] and "token_ids" not in asked
    await stage.succeed(claim, b'r{"request_id": "x"}')
    assert (await request).json() == {"request_id": "x"}


@pytest.mark.parametrize("mode", ["text", "derender"])
async def test_texts_and_messages_are_derendered(stage: Stage, mode: str) -> None:
    claim, request = await claimed(stage, output_mode=mode)
    assert claim.job.stages == ("generate", "derender")
    about = json.loads(claim.payloads["context"])
    assert about["output_mode"] == mode and about["parse_context"] == {"tools": None}
    request.cancel()


async def test_a_stream_is_relayed(stage: Stage) -> None:
    claim, request = await claimed(stage, stream=True)
    assert claim.job.stream
    await stage.succeed(claim, b'c{"choices": [1]}', b'c{"choices": [2]}')
    assert [event["data"] for event in await sse_of(await request)] == [
        '{"choices": [1]}',
        '{"choices": [2]}',
        "[DONE]",
    ]


async def test_the_header_names_the_request(stage: Stage) -> None:
    claim, request = await claimed(stage, request_id="body", headers={"X-Request-Id": "header"})
    assert json.loads(claim.payloads["generate"])["request_id"] == "header"
    reply = await stage.client.post("/inference/v1/abort_requests", json={"request_ids": ["generate-tokens-header"]})
    assert (reply.status_code, reply.content) == (200, b"")
    assert await stage.status_of(claim.job.id) is Status.CANCELLED
    assert (await request).status_code >= 400


@pytest.mark.parametrize(("send_stop", "followed"), [(True, False), (False, True)])
async def test_stop_strings_of_an_engine_that_knows_no_text_are_watched(
    serving: Serve, send_stop: bool, followed: bool
) -> None:
    engine = {"kind": "vllm", "urls": ["http://engine"], "options": {"send_stop": send_stop}}
    stage = await serving(models=[{"name": "tiny", "tokenizer": "x", "engine": engine}])
    claim, request = await claimed(stage, sampling_params={"stop": "so"})
    assert claim.job.followed is followed
    assert claim.job.stages == (("generate", "derender") if followed else ("generate",))
    assert bool(stage.store.take("derender")) is followed
    request.cancel()
    for body, watched in (({"stop": "so"}, followed), ({}, False)):
        request = asyncio.create_task(stage.chat(**body))
        chat = await stage.take("render")
        assert chat.job.followed is watched
        request.cancel()


async def test_a_model_with_parsers_needs_the_context(serving: Serve) -> None:
    stage = await serving(models=[{"name": "tiny", "tokenizer": "x", "tool_parser": "hermes", "max_output_tokens": 9}])
    reply = await stage.client.post(PATH, json={**BODY, "output_mode": "derender", "parse_context": None})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "parse_context"
    claim, request = await claimed(stage, output_mode="derender", sampling_params={"max_tokens": 20})
    assert json.loads(claim.payloads["generate"])["sampling_params"] == {"max_tokens": 9}
    request.cancel()


@pytest.mark.parametrize("parser", [None, "none"])
async def test_whether_a_parser_is_found_is_left_to_the_worker(serving: Serve, parser: str | None) -> None:
    stage = await serving(models=[{"name": "tiny", "tokenizer": "x", "tool_parser": parser}])
    claim, request = await claimed(stage, output_mode="derender", parse_context=None)
    assert claim.job.stages == ("generate", "derender")
    request.cancel()


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"sampling_params": {"n": 129}}, 400, "n"),
        ({"token_ids": [5] * 9000}, 400, "token_ids"),
        ({"token_ids": []}, 400, "token_ids"),
        ({"sampling_params": 5}, 400, "sampling_params"),
        ({"model": "other"}, 404, "model"),
    ],
)
async def test_bad_bodies_enter_no_queue(stage: Stage, changes: JsonObject, status: int, param: str) -> None:
    reply = await stage.client.post(PATH, json={**BODY, **changes})
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    job = await stage.client.post("/v1/jobs", json={"endpoint": PATH, "body": {**BODY, **changes}})
    assert (job.status_code, job.json()["error"]["param"].removeprefix("body.")) == (status, param)
    assert stage.store.take(QUEUE) is None
