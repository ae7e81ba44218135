"""What every worker process runs beneath its tasks: one event loop, its claims, its inbox, its signs of life.

Celery's pool threads take messages; everything that waits runs on the process's one event loop. A task's body is
one of two kinds, bound to its spec by the entry points:

* `compute(claim) -> Commit`: work for a processor; runs in the pool thread.
* `pursue(claim) -> None`: work that waits (an engine, a channel); a coroutine on the loop.

The runtime claims the stage, keeps the claim alive, cancels the body when the claim is lost, and turns errors into the
job's end or another attempt, so bodies know nothing of queues.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from celery import Celery, signals

from tasks.broker.app import report_done, report_taken
from tasks.errors import (
    AttemptsExhausted,
    BrokerUnavailable,
    DeadlineExceeded,
    EngineUnavailable,
    TokenyardError,
)
from tasks.ledger.blocking_store import BlockingLedger, Taken
from tasks.ledger.bus import Bus, BusMessage, parse_message
from tasks.ledger.redis_store import RedisBus, RedisStore
from tasks.ledger.store import Claim, ClaimLost, Commit, JobStore, Refused, Worker
from tasks.pipeline import Pipeline
from tasks.reaper import reap_forever
from tasks.settings import Settings
from tasks.specs import Stage, TaskSpec
from tasks.telemetry import configure_logging, get_logger

log = get_logger(__name__)
T = TypeVar("T")

Compute = Callable[[Claim], Commit]
Pursue = Callable[[Claim], Coroutine[Any, Any, None]]
Listener = Callable[[BusMessage], None]
Given = Claim | Refused | None
"""What a thread that took its message itself has been told of the claim."""
Runner = Callable[[str, Given], Future[None] | None]
"""The body of a task, called with its job's id; returns when it is done, or what tells that."""

ANNOUNCE_INTERVAL_S = 2.0
MOST_TAKEN = 64
"""Tasks that a pool thread takes by itself before it returns to Celery."""
FULL_S = 0.02
STANDING_S = 0.25
"""For so long work is handed to a process that has died."""


class Released(Exception):
    """A body gave its stage back on purpose: it will be run again at once, and the attempt does not count."""


@dataclass(slots=True)
class _Held:
    """A stage that this process works on, or has just asked for."""

    give_up_at: float
    """On the monotonic clock; from then on the claim is not renewed, and the stage counts as lost."""
    resumable: bool
    task: asyncio.Task[None] | None = None


class Runtime:
    """One worker process: `start` it, `perform` tasks, `stop` it."""

    def __init__(
        self,
        settings: Settings,
        app: Celery,
        role: str,
        *,
        queues: tuple[str, ...],
        pools: tuple[str, ...],
        models: tuple[str, ...],
        detail: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.settings = settings
        self.id = f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.loop = _new_loop()
        self._app = app
        self._worker = (role, queues, models, detail)
        self._pools = pools
        self._ledger = BlockingLedger(settings)
        self._claiming = threading.Lock()
        self._held: dict[tuple[str, Stage], _Held] = {}
        self._listeners: list[Listener] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run_loop, name="loop", daemon=True)
        self._hand: threading.Thread | None = None
        self._drained: Future[None] | None = None
        self.stopping = False
        self.store: JobStore
        self.pipeline: Pipeline
        self._bus: Bus

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        self.wait(self._open())

    async def _open(self) -> None:
        self.store = RedisStore(self.settings)
        self.pipeline = Pipeline(self.settings, self._app, self.store)
        self._bus = RedisBus(self.settings, self.id)
        for job in (
            self._forever(self._listen, 0.0),
            self._forever(self._renew, self.settings.queue.lease_s / 3),
            reap_forever(self.pipeline, self.settings.queue.reap_interval_s),
        ):
            self.spawn(job)

    @property
    def role(self) -> str:
        return self._worker[0]

    @property
    def held(self) -> int:
        """Stages that this process works on."""
        return len(self._held)

    def announce(self) -> None:
        """From now on say every few seconds that this worker is alive."""
        self.loop.call_soon_threadsafe(lambda: self.spawn(self._forever(self._announce, ANNOUNCE_INTERVAL_S)))

    def drain(self, grace_s: float) -> None:
        """Take nothing more, and give back what is under way: what another worker can go on with at once, the rest after
        `grace_s`."""
        self.stopping = True
        self._drained = asyncio.run_coroutine_threadsafe(self._drain(grace_s), self.loop)

    async def _drain(self, grace_s: float) -> None:
        self._give_back(lambda held: held.resumable)
        await self._until_free(grace_s)
        self._give_back(lambda held: True)
        await self._until_free(5.0)

    def _give_back(self, which: Callable[[_Held], bool]) -> None:
        for held in list(self._held.values()):
            if held.task is not None and which(held):
                held.task.cancel()

    async def _until_free(self, timeout_s: float) -> None:
        give_up_at = time.monotonic() + timeout_s
        while self._held and time.monotonic() < give_up_at:  # noqa: ASYNC110 - a short wait at the end of a process
            await asyncio.sleep(0.02)

    def finish(self) -> None:
        """Wait until nothing is under way any more."""
        if self._drained is None:
            self.drain(0.0)
        if self._hand is not None:
            self._hand.join(timeout=5)
        assert self._drained is not None
        self._drained.result()

    def stop(self) -> None:
        """Withdraw from the list of live workers, and end the loop."""
        try:
            self.wait(self._close())
        except (BrokerUnavailable, TimeoutError):
            log.warning("withdrawal_failed", worker=self.id)
        self._ledger.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)

    async def _close(self) -> None:
        for task in list(self._background):
            task.cancel()
        async with asyncio.timeout(5):
            await self.store.withdraw(self.id)
            await self.store.close()
            await self._bus.close()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop from a pool thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background of the loop; call it on the loop."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def on_message(self, listener: Listener) -> None:
        """Call `listener`, on the loop, for each message that comes to this process."""
        self._listeners.append(listener)

    # ---- tasks -------------------------------------------------------------------------------------

    def compute(self, spec: TaskSpec, job_id: str, body: Compute, given: Given = None) -> None:
        """Run a stage in this thread: claim, compute, commit and dispatch what follows."""
        claim = self._claim(spec, job_id, given)
        if claim is None:
            return
        with structlog.contextvars.bound_contextvars(job_id=job_id, stage=spec.stage):
            try:
                self._ledger.commit(job_id, spec.stage, self.id, body(claim))
            except Exception as error:  # noqa: BLE001 - every error ends or repeats the stage, none is swallowed
                self.wait(self._settle(claim, error))
            finally:
                self._held.pop((job_id, spec.stage), None)

    def stand(self, runners: Mapping[str, Runner], accepts: Callable[[str], bool] = lambda _: True) -> None:
        """Keep a thread of this process's own that always waits for work, so that what comes to an idle worker need not
        go through Celery's consumer, which takes longer than most renderings do.

        `runners` are bodies by task name; `accepts` says from which queues and pools.
        """

        def stand() -> None:
            while not self.stopping:
                try:
                    if any(map(accepts, self._worker[1])):
                        self._take(runners, accepts, self._pools, STANDING_S)
                    else:
                        time.sleep(FULL_S)
                except Exception as error:
                    log.error("hand_raised", exc_info=error)

        self._hand = threading.Thread(target=stand, name="hand", daemon=True)
        self._hand.start()

    def take_more(
        self,
        runners: Mapping[str, Runner],
        accepts: Callable[[str], bool] = lambda _: True,
        wait_s: float = 0.0,
    ) -> None:
        """Go on, in this thread of Celery's, with what waits in this worker's queues, or comes within `wait_s`."""
        for _ in range(MOST_TAKEN):
            if self.stopping or not self._take(runners, accepts, self._pools if wait_s else (), wait_s):
                return

    def _take(
        self, runners: Mapping[str, Runner], accepts: Callable[[str], bool], pools: tuple[str, ...], wait_s: float
    ) -> bool:
        """Run what is there or comes; whether there was anything."""
        queues = [queue for queue in self._worker[1] if accepts(queue)]
        try:
            taken = self._ledger.take(self.id, queues, list(filter(accepts, pools)), wait_s) if queues else []
        except BrokerUnavailable:
            return False
        for one in taken:
            self._run_taken(runners[one.headers["task"]], one)
        return bool(taken)

    def _run_taken(self, run: Runner, taken: Taken) -> None:
        headers, began = taken.headers, time.perf_counter()
        begun = run(headers["job"], taken.claim)
        report_taken(headers, started=begun is not None)
        if begun is None:
            report_done(headers, time.perf_counter() - began)
        else:
            begun.add_done_callback(lambda _: report_done(headers, time.perf_counter() - began))

    def pursue(self, spec: TaskSpec, job_id: str, body: Pursue, given: Given = None) -> None:
        """Run a stage on the loop and wait for it in this thread."""
        begun = self.launch(spec, job_id, body, given)
        if begun is not None:
            try:
                begun.result()
            except FutureCancelledError:
                log.info("stage_cancelled", job_id=job_id, stage=spec.stage)

    def launch(self, spec: TaskSpec, job_id: str, body: Pursue, given: Given = None) -> Future[None] | None:
        """Run a stage on the loop and return as soon as it has begun: from then on the claim, not the queue,
        says that this process has it."""
        claim = self._claim(spec, job_id, given)
        if claim is None:
            return None
        begun = asyncio.run_coroutine_threadsafe(self._pursue(claim, body), self.loop)
        self.wait(asyncio.sleep(0))  # the loop comes to it after the first step of the body
        return begun

    def _claim(self, spec: TaskSpec, job_id: str, given: Given) -> Claim | None:
        """The claim that came with the message, or that is asked for; None if there is nothing to do."""
        key = (job_id, spec.stage)
        with self._claiming:
            if key in self._held:
                return None  # a second message for what this process is doing already
            self._held[key] = _Held(time.monotonic() + spec.time_limit_s, spec.resumable)
        try:
            claim = given or self._ledger.claim(job_id, spec.stage, self.id, spec.reads)
        except BrokerUnavailable as unavailable:
            del self._held[key]
            log.warning("stage_left_to_the_reaper", job_id=job_id, reason=unavailable.message)
            return None
        except BaseException:
            del self._held[key]
            raise
        if isinstance(claim, Refused):
            del self._held[key]
            if claim.why == "expired":
                self.wait(self.pipeline.fail(job_id, DeadlineExceeded()))
            elif claim.why == "exhausted":
                self.wait(self.pipeline.fail(job_id, AttemptsExhausted()))
            return None
        return claim

    async def _pursue(self, claim: Claim, body: Pursue) -> None:
        key = (claim.job.id, claim.stage)
        held = self._held[key]
        held.task = asyncio.current_task()
        try:
            with structlog.contextvars.bound_contextvars(job_id=claim.job.id, stage=claim.stage):
                try:
                    if self.stopping:
                        raise Released
                    async with asyncio.timeout(max(claim.job.deadline_at - time.time(), 0.001)):
                        await body(claim)
                except TimeoutError:
                    await self._settle(claim, DeadlineExceeded())
                except asyncio.CancelledError:
                    if not self.stopping:
                        return  # the claim is lost or the job is over: nothing is left to say
                    await self._settle(claim, Released())
                except Exception as error:  # noqa: BLE001 - every error ends or repeats the stage, none is swallowed
                    await self._settle(claim, error)
        finally:
            self._held.pop(key, None)

    async def _settle(self, claim: Claim, error: Exception) -> None:
        """What becomes of a stage whose body raised."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        job, attempt = claim.job, claim.attempt
        try:
            if isinstance(error, ClaimLost):
                log.info("claim_lost", why=error.why)
            elif isinstance(error, BrokerUnavailable):
                log.warning("stage_left_to_the_reaper", reason=error.message)
            elif isinstance(error, Released):
                await self._again(claim, 0.0, counted=False)
            elif isinstance(error, EngineUnavailable) and job.detached:
                # Nobody waits on a connection: an accepted job waits for its engine until its deadline.
                await self._again(claim, error.retry_after_s or 2.0, counted=False)
            elif isinstance(error, TokenyardError):
                started = await self.store.read_tokens(job.id, 0) if error.retryable else []
                last = attempt >= self.settings.limits.max_attempts
                if error.retryable and not last and (started or not isinstance(error, EngineUnavailable)):
                    log.warning("stage_retried", code=error.code, attempt=attempt)
                    await self._again(claim, 0.25 * 2 ** (attempt - 1), counted=True)
                else:
                    log.warning("job_failed", code=error.code, attempt=attempt)
                    await self.pipeline.fail(job.id, error)
            else:
                log.error("stage_raised", exc_info=error)
                await self.pipeline.fail(job.id, TokenyardError())
        except ClaimLost as lost:
            log.info("claim_lost", why=lost.why)
        except BrokerUnavailable as unavailable:
            log.warning("stage_left_to_the_reaper", reason=unavailable.message)

    async def _again(self, claim: Claim, delay_s: float, *, counted: bool) -> None:
        message = self.pipeline.message_for(claim.job, claim.stage)
        await self.store.retry(claim.job.id, claim.stage, self.id, message, delay_s, counted=counted)

    # ---- background ----------------------------------------------------------------------------------

    async def _forever(self, step: Callable[[], Coroutine[Any, Any, None]], interval_s: float) -> None:
        """Repeat a step; neither a store that does not answer nor a fault in one step ends it."""
        while True:
            try:
                await step()
            except BrokerUnavailable:
                log.warning("step_skipped", step=step.__name__, reason="the store does not answer")
            except Exception as error:
                log.error("step_raised", step=step.__name__, exc_info=error)
                await asyncio.sleep(1.0)
            await asyncio.sleep(interval_s)

    async def _listen(self) -> None:
        try:
            raw_messages = await self._bus.receive(2.0)
        except OSError:
            await asyncio.sleep(0.2)  # what is missed is read from the channels
            return
        for raw in raw_messages:
            message = parse_message(raw)
            if message.kind == "x":
                self._lose(message.job_id)
            for listener in self._listeners:
                listener(message)

    def _lose(self, job_id: str) -> None:
        for (held_id, _), held in list(self._held.items()):
            if held_id == job_id and held.task is not None:
                held.task.cancel()

    async def _renew(self) -> None:
        now = time.monotonic()
        alive = [key for key, held in list(self._held.items()) if held.give_up_at > now]
        for job_id, stage in await self.store.renew(self.id, alive):
            lost = self._held.get((job_id, stage))
            if lost is not None and lost.task is not None:
                lost.task.cancel()

    async def _announce(self) -> None:
        role, queues, models, detail = self._worker
        await self.store.announce(Worker(self.id, role, queues, models, detail() | {"pid": os.getpid()}))


def bind(app: Celery, runners: Mapping[str, Runner], after: Callable[[], None] = lambda: None) -> None:
    """Make `runners[name](job_id, None)` the bodies of tasks; `after` is called in the pool thread once one has run."""
    for name, run in runners.items():

        def body(job_id: str, run: Runner = run) -> None:
            run(job_id, None)
            after()

        app.task(body, name=name, ignore_result=True)


def serve(
    app: Celery,
    runtime: Runtime,
    *,
    opening: Callable[[], None],
    standing: Callable[[], None],
    closing: Callable[[], None] = lambda: None,
) -> None:
    """Tie a runtime's life to that of the Celery worker: it is ready once `opening` has returned, then `standing` keeps
    it at work; `closing` is called when all work is done."""
    settings = runtime.settings

    def hush(instance: Any, **_: Any) -> None:
        instance.quiet = True  # no banner: the log is one line for each event

    def configure(**_: Any) -> None:
        configure_logging(settings.log_level, settings.log_format, runtime.role)

    def begin(**_: Any) -> None:
        runtime.start()
        opening()

    def ready(**_: Any) -> None:
        runtime.announce()
        standing()
        log.info("worker_started", worker=runtime.id)

    def drain(**_: Any) -> None:
        log.info("worker_stopping", worker=runtime.id, held=runtime.held)
        runtime.drain(settings.workers.drain_s)

    def end(**_: Any) -> None:
        runtime.finish()
        closing()
        runtime.stop()

    for signal, handler in (
        (signals.celeryd_after_setup, hush),
        (signals.setup_logging, configure),
        (signals.worker_init, begin),
        (signals.worker_ready, ready),
        (signals.worker_shutting_down, drain),
        (signals.worker_shutdown, end),
    ):
        signal.connect(handler, weak=False)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
