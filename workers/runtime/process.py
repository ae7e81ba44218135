"""A worker process from start to stop: its event loop, connections, claims and message delivery.

runtime = Runtime(settings, app, "cpu", queues=("derender", "render"), models=("qwen3-8b",), threads=2)
serve(runtime, tasks, opening=catalog.preload)     # workers.runtime.celery_worker
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import structlog
from celery import Celery

from tasks.errors import AttemptsExhausted, BrokerUnavailable, DeadlineExceeded, TokenyardError
from tasks.ledger.blocking_store import BlockingLedger
from tasks.ledger.bus import Bus, BusMessage, parse_message
from tasks.ledger.redis_store import RedisBus, RedisStore
from tasks.ledger.store import Claim, JobStore, Worker
from tasks.periodic import repeat
from tasks.pipeline import Pipeline
from tasks.reaper import reap
from tasks.settings import Settings
from tasks.telemetry import get_logger
from workers.runtime.claims import Claims
from workers.runtime.delivery import Delivery, Headers
from workers.runtime.loop import Loop
from workers.runtime.reports import Outcome, Report
from workers.runtime.stages import StageRunner, Task

log = get_logger(__name__)

Listener = Callable[[BusMessage], None]

ANNOUNCE_INTERVAL_S: Final = 2.0
LISTEN_S: Final = 2.0
RECONNECT_PAUSE_S: Final = 0.2
CLOSE_TIMEOUT_S: Final = 5.0


class Runtime:
    """One worker process. Its life: `start`, `take`, `drain`, `finish`, `stop`."""

    store: JobStore
    pipeline: Pipeline

    def __init__(
        self,
        settings: Settings,
        app: Celery,
        role: str,
        *,
        queues: Sequence[str],
        models: Sequence[str],
        threads: int = 1,
        accepts: Callable[[str], bool] = lambda queue: True,
        detail: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.settings, self.app, self.role = settings, app, role
        self.id = f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.loop = Loop()
        self._queues, self._models, self._detail = tuple(queues), tuple(models), detail
        self._ledger = BlockingLedger(settings)
        self._delivery = Delivery(self._ledger, self.id, queues, self._run, threads=threads, accepts=accepts)
        self.claims = Claims(self._ledger, self.id, released=self._slot_freed)
        self._tasks: Mapping[str, Task] = {}
        self._listeners: list[Listener] = []
        self._drained: Future[None] | None = None
        self._bus: Bus
        self._stages: StageRunner

    # ---- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and start renewing leases, listening to the inbox and reaping."""
        self.loop.start()
        self.loop.wait(self._open())

    async def _open(self) -> None:
        queue = self.settings.queue
        self.store = RedisStore(self.settings)
        self.pipeline = Pipeline(self.settings, self.app, self.store)
        self._bus = RedisBus(self.settings, self.id)
        self._stages = StageRunner(self.settings, self.id, self.store, self._ledger, self.pipeline, self.claims)
        self.loop.spawn(repeat("listen", self._listen, 0.0))
        self.loop.spawn(repeat("renew", self._renew, queue.lease_s / 3))
        self.loop.spawn(repeat("reap", partial(reap, self.pipeline), queue.reap_interval_s))

    def take(self, tasks: Sequence[Task]) -> None:
        """Start sending heartbeats and taking messages."""
        self._tasks = {task.spec.name: task for task in tasks}
        self.loop.call(lambda: self.loop.spawn(repeat("announce", self._announce, ANNOUNCE_INTERVAL_S)))
        self._delivery.start()

    def drain(self, grace_s: float) -> None:
        """Take nothing more; give back resumable stages at once, and the rest after `grace_s`. Does not wait."""
        self._stages.stopping = True
        self._delivery.stop()
        self._drained = self.loop.submit(self.claims.drain(grace_s))

    def finish(self) -> None:
        """Wait until the drain is complete and no thread runs a message."""
        if self._drained is None:
            self.drain(0.0)
        self._delivery.join()
        assert self._drained is not None
        self._drained.result()

    def stop(self) -> None:
        """Withdraw from the live processes, close the connections, and stop the loop."""
        try:
            self.loop.wait(self._close())
        except (BrokerUnavailable, TimeoutError):
            log.warning("withdrawal_failed", worker=self.id)
        self._ledger.close()
        self.loop.stop()

    async def _close(self) -> None:
        self.loop.cancel_background()
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await self.store.withdraw(self.id)
            await self.store.close()
            await self._bus.close()

    # ---- tasks ---------------------------------------------------------------------------------

    def _run(self, headers: Headers) -> None:
        """Claim the stage that a message names, and run it; a coroutine body keeps running after this returns."""
        task = self._tasks.get(headers["task"])
        if task is None:
            log.error("message_dropped", task=headers["task"], reason="this worker has no such task")
            return
        job_id, stage = headers["job"], task.spec.stage
        with structlog.contextvars.bound_contextvars(job_id=job_id, stage=stage):
            try:
                claim = self.claims.claim(task.spec, job_id)
            except BrokerUnavailable as unavailable:
                log.warning("stage_left_to_the_reaper", reason=unavailable.message)
                return
            if isinstance(claim, Claim):
                self._run_claimed(task, claim, Report(headers, self.id))
            elif claim.why == "expired":
                self._refuse(headers, DeadlineExceeded())
            elif claim.why == "exhausted":
                self._refuse(headers, AttemptsExhausted())

    def _run_claimed(self, task: Task, claim: Claim, report: Report) -> None:
        if task.compute is not None:
            ended = self._stages.compute(claim, task.compute)
            if not isinstance(ended, Outcome):
                ended = self.loop.wait(self._stages.settle(claim, ended))
            self.claims.release(claim)
            report.end(ended)
        else:
            self.loop.submit(self._run_coroutine(task, claim, report))

    async def _run_coroutine(self, task: Task, claim: Claim, report: Report) -> None:
        assert task.coroutine is not None
        outcome = Outcome.RETRIED
        try:
            with structlog.contextvars.bound_contextvars(job_id=claim.job.id, stage=claim.stage):
                outcome = await self._stages.run_coroutine(claim, task.coroutine)
        finally:
            self.claims.release(claim)
            report.end(outcome)

    def _slot_freed(self) -> None:
        if self._delivery.narrowed:
            self.loop.in_thread(self._delivery.wake)

    def _refuse(self, headers: Headers, error: TokenyardError) -> None:
        """Fail a job whose stage may not start."""
        self.loop.wait(self.pipeline.fail(headers["job"], error))
        Report(headers, self.id).end(Outcome.FAILED, error.code)

    # ---- background ----------------------------------------------------------------------------

    def on_message(self, listener: Listener) -> None:
        """Call `listener`, on the loop, for each message in this process's inbox."""
        self._listeners.append(listener)

    async def _listen(self) -> None:
        try:
            raw_messages = await self._bus.receive(LISTEN_S)
        except OSError:
            await asyncio.sleep(RECONNECT_PAUSE_S)  # readers fetch lost messages from the channels
            return
        for raw in raw_messages:
            message = parse_message(raw)
            if message.kind == "x":
                self.claims.lose(message.job_id)
            for listener in self._listeners:
                listener(message)

    async def _renew(self) -> None:
        await self.claims.renew(self.store)

    async def _announce(self) -> None:
        detail = self._detail() | {"pid": os.getpid()}
        await self.store.announce(Worker(self.id, self.role, self._queues, self._models, detail))
