"""The ledger for worker threads: the same claims and commits as `JobStore`, and popping messages."""

from __future__ import annotations

import asyncio
import json
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
    """A worker's ledger, and a pipeline that submits to it."""

    worker: BlockingLedger
    store: RedisStore
    pipeline: Pipeline

    async def submit(self, **changes: Any) -> str:
        base: dict[str, Any] = {"model": "tiny", "body": b"{}", "stream": False, "stages": ("render",)}
        return await self.pipeline.submit(Submission("/v1/x", **{**base, **changes}))

    def pop(self, wait_s: float = 0.01) -> str | None:
        popped = self.worker.pop("w", QUEUES, wait_s)
        return None if popped is None else str(json.loads(popped[1])["headers"]["job"])


@pytest.fixture
async def ledgers(settings: Settings) -> AsyncIterator[Ledgers]:
    store = RedisStore(settings)
    worker = BlockingLedger(settings)
    yield Ledgers(worker, store, Pipeline(settings, create_app(settings), store))
    worker.close()
    await store.close()


async def test_messages_are_popped_oldest_first_and_in_the_order_of_the_queues(ledgers: Ledgers) -> None:
    renders = [await ledgers.submit() for _ in range(2)]
    derender = await ledgers.submit(stages=("derender",))
    assert [ledgers.pop() for _ in range(4)] == [derender, *renders, None]


async def test_a_stage_is_claimed_and_committed_as_by_the_store(ledgers: Ledgers) -> None:
    job_id = await ledgers.submit()
    claim = ledgers.worker.claim(job_id, "render", "w", ("request",))
    assert isinstance(claim, Claim) and claim.payloads == {"request": b"{}"} and claim.attempt == 1
    assert claim.job == await ledgers.store.get(job_id) and claim.job.records["render"].owner == "w"
    assert ledgers.worker.claim(job_id, "render", "other", ()) == Refused("held")
    with pytest.raises(ClaimLost):
        ledgers.worker.commit(job_id, "render", "other", Commit(done=True))
    ledgers.worker.commit(job_id, "render", "w", Commit(events=[b"r{}"], done=True, status=Status.SUCCEEDED))
    job = await ledgers.store.get(job_id)
    assert job is not None and job.status is Status.SUCCEEDED


async def test_a_message_that_comes_ends_the_wait_for_it(ledgers: Ledgers) -> None:
    waiting = asyncio.create_task(asyncio.to_thread(ledgers.pop, 30.0))
    job_id = await ledgers.submit()
    async with asyncio.timeout(20):
        assert await waiting == job_id


async def test_a_wake_ends_the_wait_whether_it_has_begun_or_not(ledgers: Ledgers) -> None:
    ledgers.worker.wake("w")
    assert await asyncio.wait_for(asyncio.to_thread(ledgers.pop, 30.0), 20) is None
    waiting = asyncio.create_task(asyncio.to_thread(ledgers.pop, 30.0))
    await asyncio.to_thread(ledgers.worker.wake, "w")
    assert await asyncio.wait_for(waiting, 20) is None


async def test_a_message_that_is_put_back_is_the_next(ledgers: Ledgers) -> None:
    first, second = await ledgers.submit(), await ledgers.submit()
    popped = ledgers.worker.pop("w", QUEUES, 0.01)
    assert popped is not None
    ledgers.worker.put_back(*popped)
    assert [ledgers.pop(), ledgers.pop()] == [first, second]


async def test_a_message_that_was_popped_and_not_claimed_is_sent_again(ledgers: Ledgers) -> None:
    job_id = await ledgers.submit()
    assert ledgers.pop() == job_id  # and its worker dies
    await asyncio.sleep(ledgers.pipeline._settings.queue.lost_after_s + 0.1)
    assert await reap(ledgers.pipeline) == 1
    assert ledgers.pop() == job_id


async def test_scripts_are_loaded_again_after_redis_lost_them(settings: Settings) -> None:
    ledger = BlockingLedger(settings)
    assert ledger.claim("none", "render", "w", ()) == Refused("gone")
    client = connect(settings.redis_url)
    await client.script_flush()
    await client.aclose()
    assert ledger.claim("none", "render", "w", ()) == Refused("gone")
    ledger.close()
