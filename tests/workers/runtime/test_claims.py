"""The claims of a process: renewed while they may be, cancelled when they are lost, given back when it drains."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tasks.broker.app import create_app
from tasks.ledger.blocking_store import BlockingLedger
from tasks.ledger.memory_store import MemoryStore
from tasks.ledger.store import Claim, Refused
from tasks.pipeline import Pipeline, Submission
from tasks.specs import FOLLOW_TASK, GENERATE_TASK, TaskSpec
from tests.conftest import quick_settings
from workers.runtime.claims import Claims


class Ledger:
    """The calls that threads make, answered by a ledger in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def claim(self, job_id: str, stage: str, owner: str, reads: Sequence[str]) -> Claim | Refused:
        pending = self._store.claim(job_id, stage, owner, reads)
        try:
            pending.send(None)
        except StopIteration as done:
            return cast("Claim | Refused", done.value)
        raise AssertionError("a ledger in memory waits for nothing")


class Worker:
    def __init__(self) -> None:
        settings = quick_settings(queue={"lease_s": 1000.0})
        self.store = MemoryStore(settings)
        self.pipeline = Pipeline(settings, create_app(settings), self.store)
        self.released = 0
        self.claims = Claims(cast("BlockingLedger", Ledger(self.store)), "w", self._count)
        self.ended: list[str] = []

    def _count(self) -> None:
        self.released += 1

    async def begin(self, spec: TaskSpec) -> tuple[Claim, asyncio.Task[None]]:
        """Claim a stage of a new job, and work on it until the work is cancelled."""
        submission = Submission("/v1/x", "tiny", b"", False, (spec.stage,), payloads={}, detached=True)
        claim = self.claims.claim(spec, await self.pipeline.submit(submission))
        assert isinstance(claim, Claim)
        begun = asyncio.Event()

        async def work() -> None:
            self.claims.attach(claim)
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.claims.release(claim)

        task = asyncio.create_task(work())
        await begun.wait()
        return claim, task


async def cancelled(*tasks: asyncio.Task[None]) -> bool:
    async with asyncio.timeout(20):
        return all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_stage_is_held_once_and_counted_for_its_model() -> None:
    worker = Worker()
    claim, task = await worker.begin(GENERATE_TASK)
    assert worker.claims.claim(GENERATE_TASK, claim.job.id) == Refused("held")
    assert len(worker.claims) == 1 and worker.claims.by_model() == {"tiny": 1}
    task.cancel()
    assert await cancelled(task) and len(worker.claims) == 0 and worker.released == 1


@pytest.mark.parametrize("spec", [GENERATE_TASK, FOLLOW_TASK], ids=["not resumable", "resumable"])
async def test_the_work_on_a_job_that_ended_is_cancelled_and_no_other(spec: TaskSpec) -> None:
    worker = Worker()
    (claim, task), (_, other) = await worker.begin(spec), await worker.begin(spec)
    worker.claims.lose(claim.job.id)
    assert await cancelled(task) and not other.done()
    other.cancel()
    await cancelled(other)


async def test_the_work_on_a_claim_that_another_has_is_cancelled() -> None:
    worker = Worker()
    (claim, task), (_, other) = await worker.begin(GENERATE_TASK), await worker.begin(GENERATE_TASK)
    held = worker.store._jobs[claim.job.id]
    record = held.job.records[claim.stage]
    worker.store._record(held, claim.stage, replace(record, owner="another"))
    await worker.claims.renew(worker.store)
    assert await cancelled(task) and not other.done()
    other.cancel()
    await cancelled(other)


async def test_a_stage_that_takes_longer_than_its_time_limit_is_not_renewed_and_is_cancelled() -> None:
    worker = Worker()
    claim, task = await worker.begin(replace(GENERATE_TASK, time_limit_s=-1.0))
    other_claim, other = await worker.begin(GENERATE_TASK)
    renewed: list[tuple[str, str]] = []
    renew = worker.store.renew

    async def note(owner: str, claims: Any) -> list[tuple[str, str]]:
        renewed.extend(claims)
        return await renew(owner, claims)

    worker.store.renew = note  # type: ignore[method-assign]
    await worker.claims.renew(worker.store)
    assert renewed == [(other_claim.job.id, "generate")] and claim.job.id not in dict(renewed)
    assert await cancelled(task) and not other.done()
    other.cancel()
    await cancelled(other)


async def test_the_last_writes_of_ended_work_are_not_cancelled() -> None:
    worker = Worker()
    claim, task = await worker.begin(GENERATE_TASK)
    worker.claims.detach(claim)
    worker.claims.lose(claim.job.id)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await cancelled(task)


async def test_a_draining_process_gives_back_what_is_resumable_at_once_and_the_rest_after_its_grace() -> None:
    worker = Worker()
    (_, followed), (_, generated) = await worker.begin(FOLLOW_TASK), await worker.begin(GENERATE_TASK)
    draining = asyncio.create_task(worker.claims.drain(1000.0))
    assert await cancelled(followed) and not generated.done()
    draining.cancel()
    await worker.claims.drain(0.0)
    assert generated.cancelled() and len(worker.claims) == 0
