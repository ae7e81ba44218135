"""Jobs: submit, show, follow, fetch, cancel."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tasks.errors import ContextLengthExceeded, error_to_json
from tests.api.conftest import CHAT, Stage, chunk, sse_of


async def test_a_job_is_accepted_with_its_links(stage: Stage) -> None:
    changes: dict[str, Any] = {"metadata": {"row": "17"}, "class": "interactive"}
    reply = await stage.submit(**changes)
    job = reply.json()
    assert reply.status_code == 202
    assert reply.headers["location"] == job["links"]["self"] == f"/v1/jobs/{job['id']}"
    assert (job["object"], job["status"], job["stage"]) == ("job", "queued", "render")
    assert (job["model"], job["class"], job["metadata"]) == ("tiny", "interactive", {"row": "17"})
    assert job["stages"]["render"]["queued_at"] and not job["stages"]["generate"]["queued_at"]
    for link in job["links"].values():
        status = (await stage.client.get(link)).status_code if not link.endswith("/events") else 200
        assert status in (200, 409)
    assert CHAT["messages"][0]["content"] not in reply.text, "the prompt is shown to nobody"


async def test_its_body_is_checked_before_it_is_accepted(stage: Stage) -> None:
    for changes, param in (
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"body": {**CHAT, "temperature": "hot"}}, "body.temperature"),
        ({"body": "text"}, "body"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"class": "urgent"}, "class"),
    ):
        reply = await stage.submit(**changes)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text
    reply = await stage.submit(body={**CHAT, "model": "gpt-9"})
    assert reply.status_code == 404


async def test_an_idempotency_key_stands_for_one_request(stage: Stage) -> None:
    key = {"Idempotency-Key": "k1"}
    first, again = await stage.submit(key), await stage.submit(key)
    assert first.json()["id"] == again.json()["id"] and again.status_code == 202
    assert len(stage.store.queues["render"]) == 1
    other = await stage.submit(key, body={**CHAT, "temperature": 1})
    assert other.status_code == 409 and other.headers["x-should-retry"] == "false"
    assert (await stage.submit({"Idempotency-Key": "k2"})).json()["id"] != first.json()["id"]


async def test_jobs_are_paged_newest_first(stage: Stage) -> None:
    ids = [(await stage.submit()).json()["id"] for _ in range(5)][::-1]
    seen: list[str] = []
    after = ""
    for _ in range(3):
        page = (await stage.client.get(f"/v1/jobs?limit=2{after}")).json()
        seen += [job["id"] for job in page["data"]]
        assert page["first_id"] == page["data"][0]["id"] and page["last_id"] == page["data"][-1]["id"]
        assert page["has_more"] == (len(seen) < 5)
        after = f"&after={page['last_id']}"
    assert seen == ids


async def test_the_result_comes_with_the_end(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    assert (await stage.client.get(f"/v1/jobs/{job_id}/result")).status_code == 409
    claim = await stage.take()
    assert (await stage.client.get(f"/v1/jobs/{job_id}")).json()["status"] == "running"
    await stage.succeed(claim, b'r{"id":"chatcmpl-1"}')
    job = (await stage.client.get(f"/v1/jobs/{job_id}")).json()
    assert job["status"] == "succeeded" and job["stage"] is None and job["ended_at"] >= job["created_at"]
    assert (await stage.client.get(f"/v1/jobs/{job_id}/result")).json() == {"id": "chatcmpl-1"}


async def test_the_result_of_a_job_that_failed_is_its_error(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    error = ContextLengthExceeded("too long", param="messages")
    await stage.fail(await stage.take(), error_to_json(error))
    reply = await stage.client.get(f"/v1/jobs/{job_id}/result")
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"
    job = (await stage.client.get(f"/v1/jobs/{job_id}")).json()
    assert job["status"] == "failed" and job["error"] == reply.json()["error"]


async def test_a_job_is_followed_to_its_end(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    following = asyncio.create_task(stage.client.get(f"/v1/jobs/{job_id}/events"))
    claim = await stage.take()
    await stage.emit(claim, chunk("a"))
    await asyncio.sleep(0.1)
    await stage.succeed(claim, b'r{"id":1}')
    events = await sse_of(await following)
    assert [event["event"] for event in events] == ["status", "status", "chunk", "response", "done"]
    assert [event["id"] for event in events] == ["1", "2", "3", "4", "5"]
    assert json.loads(events[0]["data"])["state"] == "queued"


async def test_a_follower_resumes_behind_the_last_event_it_has(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    claim = await stage.take()
    await stage.emit(claim, chunk("a"), chunk("b"))
    path = f"/v1/jobs/{job_id}/events"
    following = asyncio.create_task(stage.client.get(path, headers={"Last-Event-ID": "3"}))
    await asyncio.sleep(0.1)
    await stage.succeed(claim, chunk("c"))
    assert [event["id"] for event in await sse_of(await following)] == ["4", "5", "6"]
    everything = await sse_of(await stage.client.get(path))
    for last in range(1, 6):
        rest = await sse_of(await stage.client.get(path, headers={"Last-Event-ID": str(last)}))
        assert rest == everything[last:]


async def test_a_follower_that_has_everything_is_told_not_to_come_back(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    await stage.succeed(await stage.take())
    reply = await stage.client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "3"})
    assert reply.status_code == 204


@pytest.mark.parametrize("given", ["x", "-1", "99", "٣", "1" * 30])
async def test_an_event_id_that_the_job_does_not_have_is_400(stage: Stage, given: str) -> None:
    job_id = (await stage.submit()).json()["id"]
    reply = await stage.client.get(f"/v1/jobs/{job_id}/events", headers=[(b"Last-Event-ID", given.encode())])
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "Last-Event-ID"


async def test_a_failed_job_ends_its_events_with_the_error(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    await stage.fail(await stage.take(), error_to_json(ContextLengthExceeded("too long")))
    events = await sse_of(await stage.client.get(f"/v1/jobs/{job_id}/events"))
    assert events[-1]["event"] == "error"
    assert json.loads(events[-1]["data"])["error"]["code"] == "context_length_exceeded"


async def test_a_follower_that_goes_away_leaves_the_job_alone(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    following = asyncio.create_task(stage.client.get(f"/v1/jobs/{job_id}/events"))
    claim = await stage.take()
    await asyncio.sleep(0.1)
    following.cancel()
    await asyncio.sleep(0.1)
    await stage.succeed(claim, b"r{}")
    assert (await stage.client.get(f"/v1/jobs/{job_id}")).json()["status"] == "succeeded"


async def test_a_cancelled_job_is_over_at_once_and_stays_so(stage: Stage) -> None:
    job_id = (await stage.submit()).json()["id"]
    for _ in range(2):
        reply = await stage.client.delete(f"/v1/jobs/{job_id}")
        assert reply.status_code == 200 and reply.json()["status"] == "cancelled"
    assert (await stage.client.get(f"/v1/jobs/{job_id}/result")).status_code == 499
    done = (await stage.submit()).json()["id"]
    stage.store.take("render")  # skip the cancelled job's message
    await stage.succeed(await stage.take(), b"r{}")
    assert (await stage.client.delete(f"/v1/jobs/{done}")).json()["status"] == "succeeded"


async def test_a_job_that_is_not_there_is_404(stage: Stage) -> None:
    for path in ("", "/result", "/events"):
        reply = await stage.client.get(f"/v1/jobs/job_none{path}")
        assert reply.status_code == 404 and reply.json()["error"]["code"] == "job_not_found"
    assert (await stage.client.delete("/v1/jobs/job_none")).status_code == 404
