"""The blocking half of the ledger: the same claims and commits, and messages taken without a consumer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tasks.broker.app import create_app
from tasks.ledger.blocking_store import BlockingLedger
from tasks.ledger.redis_store import RedisStore, connect
from tasks.ledger.store import Claim, ClaimLost, Commit, Refused, Status
from tasks.pipeline import Pipeline, Submission
from tasks.reaper import reap
from tasks.settings import Settings
from tests.conftest import RedisServer, quick_settings


@pytest.fixture
async def settings(redis_server: RedisServer) -> AsyncIterator[Settings]:
    settings = quick_settings(redis_server.url)
    client = connect(settings.redis_url)
    await client.flushdb()
    await client.aclose()
    yield settings


QUEUES = ("derender", "render")


@dataclass
class Ledgers:
    """A worker's ledger, and what submits to it."""

    worker: BlockingLedger
    store: RedisStore
    pipeline: Pipeline

    async def submit(self, **changes: Any) -> str:
        base: dict[str, Any] = {"model": "tiny", "body": b"{}", "stream": False, "stages": ("render",)}
        return await self.pipeline.submit(Submission("/v1/x", **{**base, **changes}))

    def take(self, owner: str = "w", wait_s: float = 0.0) -> Claim | Refused | None:
        taken = self.worker.take(owner, QUEUES, ("cpu",) if wait_s else (), wait_s)
        assert len(taken) < 2
        return taken[0].claim if taken else None

    async def handed(self, owner: str, waits_s: float = 30.0) -> Claim:
        """What a thread gets that began to wait before anything was submitted."""
        waiting = asyncio.create_task(asyncio.to_thread(self.take, owner, waits_s))
        await asyncio.sleep(0.1)
        await self.submit()
        async with asyncio.timeout(20):
            claim = await waiting
        assert isinstance(claim, Claim)
        return claim


@pytest.fixture
async def ledgers(settings: Settings) -> AsyncIterator[Ledgers]:
    store = RedisStore(settings)
    worker = BlockingLedger(settings)
    yield Ledgers(worker, store, Pipeline(settings, create_app(settings), store))
    worker.close()
    await store.close()


async def test_messages_are_taken_oldest_first_and_claimed(ledgers: Ledgers) -> None:
    ids = [await ledgers.submit() for _ in range(2)]
    (taken,) = ledgers.worker.take("w", QUEUES)
    assert (taken.headers["job"], taken.headers["task"]) == (ids[0], "tokenyard.render")
    claim = taken.claim
    assert isinstance(claim, Claim) and claim.payloads == {"request": b"{}"} and claim.attempt == 1
    assert claim.job == await ledgers.store.get(ids[0]) and claim.job.records["render"].owner == "w"
    assert ledgers.worker.claim(ids[0], "render", "other", ()) == Refused("held")
    with pytest.raises(ClaimLost):
        ledgers.worker.commit(ids[0], "render", "other", Commit(done=True))
    ledgers.worker.commit(ids[0], "render", "w", Commit(events=[b"r{}"], done=True, status=Status.SUCCEEDED))
    job = await ledgers.store.get(ids[0])
    assert job is not None and job.status is Status.SUCCEEDED
    second = ledgers.take()
    assert isinstance(second, Claim) and second.job.id == ids[1] and ledgers.take() is None


async def test_what_is_taken_and_not_worked_on_is_found(ledgers: Ledgers) -> None:
    job_id = await ledgers.submit()
    assert ledgers.take() is not None  # and its worker dies
    await asyncio.sleep(ledgers.pipeline._settings.queue.lease_s + 0.1)
    assert await reap(ledgers.pipeline) == 1
    again = ledgers.take("other")
    assert isinstance(again, Claim) and (again.job.id, again.attempt) == (job_id, 2)


async def test_messages_with_nothing_to_do_are_passed_over_and_what_must_end_is_told(ledgers: Ledgers) -> None:
    over, expired, good = await ledgers.submit(), await ledgers.submit(deadline_in_s=0.01), await ledgers.submit()
    await ledgers.pipeline.cancel(over)
    await asyncio.sleep(0.05)
    (taken,) = ledgers.worker.take("w", QUEUES)
    assert (taken.headers["job"], taken.claim) == (expired, Refused("expired"))
    claim = ledgers.take()
    assert isinstance(claim, Claim) and claim.job.id == good


async def test_a_thread_that_waits_is_handed_its_work_and_no_queue_has_it(ledgers: Ledgers) -> None:
    claim = await ledgers.handed("w")
    assert (claim.owner, claim.attempt, claim.payloads) == ("w", 1, {"request": b"{}"})
    assert claim.job == await ledgers.store.get(claim.job.id) and claim.job.records["render"].sent_at > 0
    assert await ledgers.store.queued(QUEUES) == [0, 0]
    ledgers.worker.commit(claim.job.id, "render", "w", Commit(events=[b"r{}"], done=True, status=Status.SUCCEEDED))
    await ledgers.submit()
    assert await ledgers.store.queued(QUEUES) == [0, 1], "it waits no more"


async def test_what_is_long_is_asked_for_by_whom_it_is_handed_to(ledgers: Ledgers) -> None:
    waiting = asyncio.create_task(asyncio.to_thread(ledgers.worker.take, "w", QUEUES, ("cpu",), 30.0))
    await asyncio.sleep(0.1)
    job_id = await ledgers.submit(body=b"x" * 10_000)
    async with asyncio.timeout(20):
        (taken,) = await waiting
    assert (taken.headers["job"], taken.claim) == (job_id, None)
    assert ledgers.worker.claim(job_id, "render", "other", ()) == Refused("held")
    claim = ledgers.worker.claim(job_id, "render", "w", ("request",))
    assert isinstance(claim, Claim) and claim.attempt == 1 and len(claim.payloads["request"]) == 10_000


async def test_a_thread_whose_time_is_over_is_handed_nothing(ledgers: Ledgers) -> None:
    assert ledgers.take(wait_s=0.05) is None
    await ledgers.submit()
    assert await ledgers.store.queued(QUEUES) == [0, 1]
    await ledgers.submit(stages=("generate",), payloads={"prompt": b"", "generate": b"{}"})
    assert await ledgers.store.queued(["generate.tiny.interactive"]) == [1]


async def test_what_was_handed_to_a_dead_worker_is_found(ledgers: Ledgers, settings: Settings) -> None:
    client = connect(settings.redis_url)
    await client.zadd("ty:waiting:cpu", {"dead 1": time.time() + 60})
    await client.aclose()
    job_id = await ledgers.submit()
    assert await ledgers.store.queued(QUEUES) == [0, 0] and ledgers.take() is None
    await asyncio.sleep(settings.queue.lease_s + 0.1)
    assert await reap(ledgers.pipeline) == 1
    claim = ledgers.take()
    assert isinstance(claim, Claim) and (claim.job.id, claim.attempt) == (job_id, 2)


async def test_a_stage_that_follows_is_handed_over_with_the_commit_before_it(ledgers: Ledgers) -> None:
    payloads = {"prompt": b"\x01", "generate": b"{}", "context": b"{}"}
    job_id = await ledgers.submit(stages=("generate", "derender"), payloads=payloads)
    claim = await ledgers.store.claim(job_id, "generate", "g", ("prompt",))
    assert isinstance(claim, Claim)
    waiting = asyncio.create_task(asyncio.to_thread(ledgers.take, "w", 30.0))
    await asyncio.sleep(0.1)
    messages = ledgers.pipeline.next_messages(claim.job, "generate")
    await ledgers.store.commit(job_id, "generate", "g", Commit(tokens=[b"{}"], done=True, messages=messages))
    async with asyncio.timeout(20):
        handed = await waiting
    assert isinstance(handed, Claim) and handed.stage == "derender" and handed.job.token_chunks == 1
    assert handed.payloads == {"prompt": b"\x01", "context": b"{}"}


async def test_scripts_are_loaded_again_after_redis_lost_them(settings: Settings) -> None:
    ledger = BlockingLedger(settings)
    assert ledger.claim("none", "render", "w", ()) == Refused("gone")
    client = connect(settings.redis_url)
    await client.script_flush()
    await client.aclose()
    assert ledger.claim("none", "render", "w", ()) == Refused("gone")
    ledger.close()
