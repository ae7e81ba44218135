"""The stages that a worker process holds: each by a claim whose lease the process renews.

A claim is lost when its lease runs out, when the job ends, or when the stage takes longer than its time limit; the
coroutine that works on it is then cancelled. A stopping process gives its claims back.
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
    """On the monotonic clock; from then on the lease is not renewed."""
    resumable: bool
    model: str = ""
    task: asyncio.Task[object] | None = None


class Claims:
    """What one process holds, by job and stage; safe to share between threads.

    `released` is called, in whichever thread it happens, after a stage was let go.
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
        """How many stages are held of each model's jobs."""
        return Counter(held.model for held in list(self._held.values()) if held.model)

    def claim(self, spec: TaskSpec, job_id: str) -> Claim | Refused:
        """Claim a stage. `held` if this process works on it already, or another one does.

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
        """Let a stage go whose work has ended, in whatever way."""
        self._held.pop((claim.job.id, claim.stage), None)
        self._released()

    def attach(self, claim: Claim) -> None:
        """The running coroutine is what works on this claim: it is cancelled if the claim is lost."""
        self._held[claim.job.id, claim.stage].task = asyncio.current_task()

    def detach(self, claim: Claim) -> None:
        """The work on this claim is over: what is left to write is not cancelled any more."""
        held = self._held.get((claim.job.id, claim.stage))
        if held is not None:
            held.task = None

    async def renew(self, store: JobStore) -> None:
        """Renew all leases; cancel the work on what is lost."""
        now = time.monotonic()
        alive = [key for key, held in list(self._held.items()) if held.give_up_at > now]
        for key in await store.renew(self._owner, alive):
            self._cancel(lambda other, _, key=key: other == key)  # type: ignore[misc]

    def lose(self, job_id: str) -> None:
        """The job is over: cancel the work on it."""
        self._cancel(lambda key, _: key[0] == job_id)

    async def drain(self, grace_s: float) -> None:
        """Give everything back: what another worker can resume at once, the rest after `grace_s`."""
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
