"""Runs a claimed stage, and decides what happens to the job if its body raises.

A task's body is one of two kinds:

* `compute(claim) -> Commit`: CPU-bound work. It runs in the thread that took the message.
* `coroutine(claim) -> None`: work that waits for an engine or a channel. It runs on the process's event loop.

Bodies know nothing of queues, leases or attempts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

from tasks.errors import BrokerUnavailable, DeadlineExceeded, EngineUnavailable, TokenyardError
from tasks.ledger.blocking_store import BlockingLedger
from tasks.ledger.store import Claim, ClaimLost, Commit, JobStore
from tasks.pipeline import Pipeline
from tasks.settings import Settings
from tasks.specs import TaskSpec
from tasks.telemetry import get_logger
from workers.runtime.claims import Claims
from workers.runtime.reports import Outcome

log = get_logger(__name__)

Compute = Callable[[Claim], Commit]
CoroutineBody = Callable[[Claim], Coroutine[Any, Any, None]]

ENGINE_PAUSE_S: Final = 2.0
FIRST_RETRY_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Task:
    """A task's spec and its body: either `compute` or `coroutine`."""

    spec: TaskSpec
    compute: Compute | None = None
    coroutine: CoroutineBody | None = None


class Released(Exception):
    """The process drains and gives the stage back: it is redispatched at once, and the attempt does not count."""


class _Services(NamedTuple):
    """The process's services that a running stage needs."""

    settings: Settings
    owner: str
    store: JobStore
    ledger: BlockingLedger
    pipeline: Pipeline
    claims: Claims


class StageRunner:
    """Runs the stages that this process has claimed. Errors of a body become an `Outcome`."""

    def __init__(
        self,
        settings: Settings,
        owner: str,
        store: JobStore,
        ledger: BlockingLedger,
        pipeline: Pipeline,
        claims: Claims,
    ) -> None:
        self._services = _Services(settings, owner, store, ledger, pipeline, claims)
        self.stopping = False

    def compute(self, claim: Claim, body: Compute) -> Outcome | Exception:
        """Compute and commit in this thread; return the outcome, or the error for the caller to `settle`."""
        try:
            self._services.ledger.commit(claim.job.id, claim.stage, self._services.owner, body(claim))
        except Exception as error:  # noqa: BLE001 - `settle` decides what every error means
            return error
        return Outcome.SUCCEEDED

    async def run_coroutine(self, claim: Claim, body: CoroutineBody) -> Outcome:
        """Run a coroutine body, which commits the end of its stage itself."""
        self._services.claims.attach(claim)
        try:
            if self.stopping:
                raise Released
            async with asyncio.timeout(max(claim.job.deadline_at - time.time(), 0.001)):
                await body(claim)
        except TimeoutError:
            return await self.settle(claim, DeadlineExceeded())
        except asyncio.CancelledError:
            # Either this process drains, or the claim is lost and there is nothing left to write.
            return await self.settle(claim, Released()) if self.stopping else Outcome.REVOKED
        except Exception as error:  # noqa: BLE001 - `settle` decides what every error means
            return await self.settle(claim, error)
        return Outcome.SUCCEEDED

    async def settle(self, claim: Claim, error: Exception) -> Outcome:
        """Fail the job, give the stage back, or leave it to the reaper, depending on the error."""
        self._services.claims.detach(claim)  # ending the job would cancel this very coroutine
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        with structlog.contextvars.bound_contextvars(job_id=claim.job.id, stage=claim.stage):
            try:
                return await self._settle(claim, error)
            except ClaimLost as lost:
                log.info("claim_lost", why=lost.why)
                return Outcome.REVOKED
            except BrokerUnavailable as unavailable:
                log.warning("stage_left_to_the_reaper", reason=unavailable.message)
                return Outcome.RETRIED

    async def _settle(self, claim: Claim, error: Exception) -> Outcome:
        job, attempt = claim.job, claim.attempt
        if isinstance(error, ClaimLost | BrokerUnavailable):
            raise error
        if isinstance(error, Released):
            await self._retried(claim, 0.0, counted=False)
            return Outcome.RETRIED
        if isinstance(error, EngineUnavailable) and job.detached:
            # No client waits on a connection, so the job waits for its engine until its deadline.
            await self._retried(claim, error.retry_after_s or ENGINE_PAUSE_S, counted=False)
            return Outcome.RETRIED
        if not isinstance(error, TokenyardError):
            log.error("stage_raised", exc_info=error)
            error = TokenyardError()
        elif await self._may_retry(claim, error) and await self._retried(claim, self._pause_s(claim), counted=True):
            log.warning("stage_retried", code=error.code, attempt=attempt)
            return Outcome.RETRIED
        log.warning("job_failed", code=error.code, attempt=attempt)
        await self._services.pipeline.fail(job.id, error)
        return Outcome.FAILED

    async def _may_retry(self, claim: Claim, error: TokenyardError) -> bool:
        if not error.retryable:
            return False
        # A waiting client learns at once that no engine is available, unless part of its answer is already out.
        return not isinstance(error, EngineUnavailable) or bool(await self._services.store.read_tokens(claim.job.id, 0))

    def _pause_s(self, claim: Claim) -> float:
        fruitless = claim.job.records[claim.stage].fruitless
        return FIRST_RETRY_S * 2.0 ** max(fruitless - 1, 0)

    async def _retried(self, claim: Claim, delay_s: float, *, counted: bool) -> bool:
        """Send the stage again; False if no more attempts are allowed."""
        message = self._services.pipeline.message_for(claim.job, claim.stage)
        return await self._services.store.retry(
            claim.job.id, claim.stage, self._services.owner, message, delay_s, counted=counted
        )
