"""The claims that a worker process holds; the process renews their leases.

A claim is lost when its lease runs out, when the job ends, or when the stage exceeds its time limit. The coroutine that
runs the stage is then cancelled. A draining process gives its claims back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tasks.ledger.blocking_store import BlockingLedger
from tasks.ledger.store import Claim, JobStore, Refused
from tasks.specs import Stage, TaskSpec

POLL_S = 0.02
LAST_WAIT_S = 5.0


@dataclass(slots=True)
class _Held:
    give_up_at: float
    """When the time limit is reached, on the monotonic clock; the lease is not renewed after that."""
    resumable: bool
    model: str = ""
    task: asyncio.Task[object] | None = None


class Claims:
    """The claims of one process, by job and stage; safe to share between threads.

    `released` is called after each release, in the releasing thread.
    """

    def __init__(self, ledger: BlockingLedger, owner: str, released: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        self._owner = owner
        self._released = released
        self._held: dict[tuple[str, Stage], _Held] = {}
        self._entering = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def by_model(self) -> Counter[str]:
        """Return how many claims are held for each model."""
        return Counter(held.model for held in list(self._held.values()) if held.model)

    def claim(self, spec: TaskSpec, job_id: str) -> Claim | Refused:
        """Claim a stage; refused as `held` if this or another process has it already.

        Raises:
            BrokerUnavailable: the ledger does not answer.
        """
        key = (job_id, spec.stage)
        with self._entering:
            if key in self._held:
                return Refused("held")
            held = self._held[key] = _Held(time.monotonic() + spec.time_limit_s, spec.resumable)
        try:
            claim = self._ledger.claim(job_id, spec.stage, self._owner, spec.reads)
        except BaseException:
            del self._held[key]
            raise
        if isinstance(claim, Refused):
            del self._held[key]
        else:
            held.model = claim.job.model
        return claim

    def release(self, claim: Claim) -> None:
        """Let a claim go after the work has ended, successfully or not."""
        self._held.pop((claim.job.id, claim.stage), None)
        self._released()

    def attach(self, claim: Claim) -> None:
        """Tie the current coroutine to this claim: it is cancelled if the claim is lost."""
        self._held[claim.job.id, claim.stage].task = asyncio.current_task()

    def detach(self, claim: Claim) -> None:
        """Untie the coroutine from this claim: its last writes must not be cancelled."""
        held = self._held.get((claim.job.id, claim.stage))
        if held is not None:
            held.task = None

    async def renew(self, store: JobStore) -> None:
        """Renew all leases; cancel the work on lost claims, and on stages that exceed their time limit."""
        now = time.monotonic()
        self._cancel(lambda _, held: held.give_up_at <= now)
        alive = [key for key, held in list(self._held.items()) if held.give_up_at > now]
        for key in await store.renew(self._owner, alive):
            self._cancel(lambda other, _, key=key: other == key)  # type: ignore[misc]

    def lose(self, job_id: str) -> None:
        """Cancel the work on a job that has ended."""
        self._cancel(lambda key, _: key[0] == job_id)

    async def drain(self, grace_s: float) -> None:
        """Give back all claims: resumable stages at once, the rest after `grace_s`."""
        self._cancel(lambda _, held: held.resumable)
        await self._until_none(grace_s)
        self._cancel(lambda *_: True)
        await self._until_none(LAST_WAIT_S)

    def _cancel(self, which: Callable[[tuple[str, Stage], _Held], bool]) -> None:
        for key, held in list(self._held.items()):
            if held.task is not None and which(key, held):
                held.task.cancel()

    async def _until_none(self, timeout_s: float) -> None:
        give_up_at = time.monotonic() + timeout_s
        while self._held and time.monotonic() < give_up_at:  # noqa: ASYNC110 - a short wait at the end of a process
            await asyncio.sleep(POLL_S)
