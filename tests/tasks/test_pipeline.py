"""A job's way through its stages, and the reaper that recovers lost ones."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tasks import reaper
from tasks.broker.app import create_app
from tasks.ledger.memory_store import MemoryStore
from tasks.ledger.redis_store import RedisStore, connect
from tasks.ledger.store import Claim, Commit, Status
from tasks.pipeline import Pipeline, Submission
from tests.conftest import RedisServer, quick_settings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock | None = None) -> tuple[Pipeline, MemoryStore]:
    settings = quick_settings()
    store = MemoryStore(settings, clock or Clock())
    return Pipeline(settings, create_app(settings), store), store


async def submit(pipeline: Pipeline, stages: Sequence[str], **changes: object) -> str:
    base = {"endpoint": "/v1/x", "model": "tiny", "body": b"{}", "stream": False, "stages": tuple(stages)}
    return await pipeline.submit(Submission(**{**base, **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stages", "stream", "done", "following"),
    [
        (("render", "generate", "derender"), False, "render", ["generate"]),
        (("render", "generate", "derender"), False, "generate", ["derender"]),
        (("render", "generate", "derender"), False, "derender", []),
        (("render", "generate", "derender"), True, "render", ["generate", "derender"]),
        (("render", "generate", "derender"), True, "generate", []),
        (("generate", "derender"), False, "generate", ["derender"]),
        (("render", "generate"), True, "render", ["generate"]),
        (("render",), False, "render", []),
        (("generate",), True, "generate", []),
        (("derender",), False, "derender", []),
    ],
)
async def test_what_follows_a_stage(stages: tuple[str, ...], stream: bool, done: str, following: list[str]) -> None:
    pipeline, store = make()
    job = await store.get(await submit(pipeline, stages, stream=stream))
    assert job is not None
    assert [message.stage for message in pipeline.next_messages(job, done)] == following


@pytest.mark.parametrize(("stage", "queue"), [("render", "render"), ("generate", "generate.tiny.interactive")])
async def test_a_stage_of_its_own_is_a_whole_job(stage: str, queue: str) -> None:
    pipeline, store = make()
    job_id = await submit(pipeline, (stage,))
    message = store.take(queue)
    assert message is not None and (message.job_id, message.stage) == (job_id, stage)
    assert isinstance(await store.claim(job_id, stage, "w", ()), Claim)
    await store.commit(job_id, stage, "w", Commit(events=[b"r{}"], done=True, status=Status.SUCCEEDED))
    job = await store.get(job_id)
    assert job is not None and job.status is Status.SUCCEEDED and not any(store.queues.values())


async def test_batch_work_has_queues_of_its_own() -> None:
    pipeline, store = make()
    await submit(pipeline, ("generate",), job_class="batch")
    assert {queue for queue, waiting in store.queues.items() if waiting} == {"generate.tiny.batch"}


async def test_a_message_tells_how_long_the_prompt_is_once_that_is_known() -> None:
    pipeline, store = make()
    job_id = await submit(pipeline, ("render", "generate", "derender"))
    await store.claim(job_id, "render", "w", ())
    await store.commit(job_id, "render", "w", Commit(prompt_tokens=41, done=True))
    job = await store.get(job_id)
    assert job is not None
    shown = json.loads(pipeline.message_for(job, "generate").body)["headers"]["argsrepr"]
    assert shown == f"(job={job_id}, model=tiny, prompt_tokens=41)"


async def test_detached_jobs_live_longer_than_requests() -> None:
    pipeline, store = make()
    limits = quick_settings().limits
    for detached, timeout_s, ttl_s in (
        (False, limits.request_timeout_s, limits.response_ttl_s),
        (True, limits.job_timeout_s, limits.job_ttl_s),
    ):
        job = await store.get(await submit(pipeline, ("render",), detached=detached))
        assert job is not None and job.deadline_at - job.created_at == timeout_s and job.ttl_s == ttl_s


async def test_the_reaper_looks_away_while_a_claim_is_renewed() -> None:
    clock = Clock()
    pipeline, store = make(clock)
    job_id = await submit(pipeline, ("render",))
    store.take("render")
    await store.claim(job_id, "render", "w", ())
    for _ in range(20):
        clock.now += 0.3
        assert await store.renew("w", [(job_id, "render")]) == []
        assert await reaper.reap(pipeline) == 0
    clock.now += 0.5
    assert await reaper.reap(pipeline) == 1 and store.take("render") is not None


async def test_what_was_sent_again_is_not_sent_a_third_time_while_it_waits() -> None:
    clock = Clock()
    pipeline, store = make(clock)
    await submit(pipeline, ("render",))
    store.take("render")  # lost with its worker
    for _ in range(50):
        clock.now += 0.5
        await reaper.reap(pipeline)
    assert len(store.queues["render"]) == 1


async def test_a_key_is_free_again_once_its_job_is_forgotten(redis_server: RedisServer) -> None:
    settings = quick_settings(redis_server.url)
    client = connect(settings.redis_url)
    await client.flushdb()
    store = RedisStore(settings)
    pipeline = Pipeline(settings, create_app(settings), store)
    first = await submit(pipeline, ("render",), idempotency_key="k", detached=True)
    await client.delete(f"ty:job:{first}")  # as its time to live does
    second = await submit(pipeline, ("render",), idempotency_key="k", detached=True)
    assert second != first
    assert await submit(pipeline, ("render",), idempotency_key="k", detached=True) == second
    await store.close()
    await client.aclose()
