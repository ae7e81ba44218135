"""The ledger in one process's memory, for tests and experiments: the twin of `tasks.ledger.redis_store`.

Both pass the same contract suite. A test can inspect its `queues` and pop messages with `take`, as a worker would.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tasks.errors import Cancelled, Conflict, QueueFull, error_to_json
from tasks.ledger.store import (
    ABANDONED,
    IDEMPOTENCY_CONFLICT,
    Claim,
    ClaimLost,
    Commit,
    Due,
    Entry,
    Job,
    Message,
    NewJob,
    Refused,
    StageRecord,
    StageState,
    Status,
    Worker,
)
from tasks.protocol.base import JsonObject, compact_json
from tasks.settings import Settings
from tasks.specs import DERENDER, Stage


@dataclass
class _Held:
    job: Job
    payloads: dict[str, bytes]
    listeners: list[str]
    tokens: list[bytes] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    read: int = 0


class MemoryStore:
    """`JobStore` without a server. Its methods are atomic because none of them awaits anything."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._queue = settings.queue
        self._max_attempts = settings.limits.max_attempts
        self._now = clock
        self._jobs: dict[str, _Held] = {}
        self._keys: dict[str, str] = {}
        self._requests: defaultdict[str, list[str]] = defaultdict(list)
        self._watch: dict[tuple[str, Stage], float] = {}
        self._workers: dict[str, tuple[float, Worker]] = {}
        self._inboxes: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self.queues: defaultdict[str, deque[Message]] = defaultdict(deque)

    def take(self, queue: str) -> Message | None:
        """Pop the oldest message of a queue, as a worker does; None if the queue is empty."""
        return self.queues[queue].pop() if self.queues[queue] else None

    def bus(self, name: str) -> MemoryBus:
        return MemoryBus(self._inboxes[name])

    # ---- the counterpart of lua/prelude.lua ------------------------------------------------------

    def _emit(self, held: _Held, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        first = len(held.events) + 1
        held.events.extend(lines)
        for listener in held.listeners:
            self._inboxes[listener].append(b"\n".join([f"e {held.job.id} {first}".encode(), *lines]))

    def _step(self, held: _Held, status: str, stage: Stage, state: str) -> None:
        self._emit(held, [b"s" + compact_json({"status": status, "stage": stage, "state": state, "at": self._now()})])

    def _record(self, held: _Held, stage: Stage, record: StageRecord) -> None:
        held.job = replace(held.job, records={**held.job.records, stage: record})

    def _send(self, held: _Held, message: Message, *, again: bool) -> None:
        record = held.job.records[message.stage]
        sent_at = record.sent_at if again and record.sent_at else self._now()
        self._record(held, message.stage, replace(record, state=StageState.QUEUED, owner="", sent_at=sent_at))
        (self.queues[message.queue].append if again else self.queues[message.queue].appendleft)(message)
        self._watch[held.job.id, message.stage] = self._now() + self._queue.lost_after_s

    def _conclude(self, held: _Held, status: Status, error: JsonObject | None) -> None:
        held.job = replace(held.job, status=status, ended_at=self._now(), error=error)
        self._emit(held, [b"d{}" if status is Status.SUCCEEDED else b"e" + compact_json(error)])
        self._watch.pop((held.job.id, ""), None)
        for stage, record in held.job.records.items():
            self._watch.pop((held.job.id, stage), None)
            if record.state is StageState.RUNNING:
                self._inboxes[record.owner].append(f"x {held.job.id} {status}".encode())
        if held.job.detached:
            held.payloads = {name: held.payloads[name] for name in ("prompt", "context") if name in held.payloads}
        else:
            held.payloads.clear()
            held.tokens.clear()

    def _held(self, job_id: str, stage: Stage, owner: str) -> _Held:
        held = self._jobs.get(job_id)
        if held is None:
            raise ClaimLost("gone")
        if held.job.status.terminal:
            raise ClaimLost(held.job.status)
        record = held.job.records[stage]
        if record.state is not StageState.RUNNING or record.owner != owner:
            raise ClaimLost("taken")
        return held

    # ---- the methods of JobStore -----------------------------------------------------------------

    async def submit(
        self, job: NewJob, payloads: Mapping[str, bytes], messages: Sequence[Message], max_queued: int
    ) -> str:
        if job.idempotency_key in self._keys:
            earlier = self._jobs[self._keys[job.idempotency_key]].job
            if earlier.idempotency_digest != job.idempotency_digest:
                raise Conflict(IDEMPOTENCY_CONFLICT, param="Idempotency-Key")
            return earlier.id
        if job.id in self._jobs:
            return job.id
        if any(len(self.queues[queue]) >= max_queued for queue in job.queues):
            raise QueueFull(retry_after_s=2)
        now = self._now()
        record = Job(
            id=job.id,
            endpoint=job.endpoint,
            model=job.model,
            stages=job.stages,
            job_class=job.job_class,
            stream=job.stream,
            followed=job.followed,
            detached=job.detached,
            status=Status.QUEUED,
            created_at=now,
            deadline_at=now + job.deadline_in_s,
            ended_at=0.0,
            ttl_s=job.ttl_s,
            idempotency_digest=job.idempotency_digest,
            records={stage: StageRecord() for stage in job.stages},
            metadata=job.metadata,
        )
        held = self._jobs[job.id] = _Held(record, dict(payloads), [job.listener] if job.listener else [])
        self._watch[job.id, ""] = record.deadline_at
        if job.idempotency_key:
            self._keys[job.idempotency_key] = job.id
        if job.request_id:
            self._requests[job.request_id].append(job.id)
        if job.detached:
            self._step(held, "queued", messages[0].stage, "queued")
        for message in messages:
            self._send(held, message, again=False)
        return job.id

    async def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused:
        held = self._jobs.get(job_id)
        if held is None:
            return Refused("gone")
        if held.job.status.terminal:
            return Refused("over")
        record, now = held.job.records[stage], self._now()
        mine = record.state is StageState.RUNNING and record.owner == owner
        if record.state is StageState.DONE:
            return Refused("done")
        if record.state is StageState.RUNNING and not mine and record.lease_until > now:
            return Refused("held")
        if held.job.deadline_at <= now:
            return Refused("expired")
        attempts = record.attempts if mine else record.attempts + 1
        fruitless = record.fruitless if mine else record.fruitless + 1
        if not mine and fruitless > self._max_attempts:
            return Refused("exhausted")
        lease_until = now + self._queue.lease_s
        self._record(
            held,
            stage,
            replace(
                record,
                state=StageState.RUNNING,
                owner=owner,
                attempts=attempts,
                fruitless=fruitless,
                lease_until=lease_until,
                started_at=now,
            ),
        )
        held.job = replace(held.job, status=Status.RUNNING)
        self._watch[job_id, stage] = lease_until
        if held.job.detached and not mine:
            self._step(held, "running", stage, "started")
        payloads = {name: held.payloads[name] for name in reads if name in held.payloads}
        return Claim(held.job, stage, owner, attempts, payloads)

    async def renew(self, owner: str, claims: Sequence[tuple[str, Stage]]) -> list[tuple[str, Stage]]:
        lost = []
        for job_id, stage in claims:
            try:
                held = self._held(job_id, stage, owner)
            except ClaimLost:
                lost.append((job_id, stage))
                continue
            alive = {worker.id for worker in await self.workers()}
            if not held.job.detached and held.listeners and not alive & set(held.listeners):
                self._conclude(held, Status.CANCELLED, error_to_json(Cancelled(ABANDONED)))
                lost.append((job_id, stage))
                continue
            lease_until = self._now() + self._queue.lease_s
            self._record(held, stage, replace(held.job.records[stage], lease_until=lease_until))
            self._watch[job_id, stage] = lease_until
        return lost

    async def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        known = self._jobs.get(job_id)
        if known is not None and known.job.records[stage].owner == owner:
            finished = commit.status is not None and known.job.status is commit.status
            if finished or (commit.done and known.job.records[stage].state is StageState.DONE):
                return
        held = self._held(job_id, stage, owner)
        if commit.tokens and commit.tokens_from + len(commit.tokens) <= len(held.tokens):
            return
        if commit.tokens and commit.tokens_from != len(held.tokens):
            raise ClaimLost("behind")
        if commit.consumed is not None:
            before, after = commit.consumed
            if held.read >= after > before:
                return
            if held.read != before:
                raise ClaimLost("behind")
            held.read = after
        held.payloads.update(commit.payloads)
        if commit.prompt_tokens is not None:
            held.job = replace(held.job, prompt_tokens=commit.prompt_tokens)
        if commit.completion_tokens is not None:
            held.job = replace(held.job, completion_tokens=commit.completion_tokens)
        if commit.tokens or (commit.consumed is not None and commit.consumed[1] > commit.consumed[0]):
            self._record(held, stage, replace(held.job.records[stage], fruitless=0))
        if commit.tokens:
            have = len(held.tokens)
            held.tokens.extend(commit.tokens)
            held.job = replace(held.job, token_chunks=len(held.tokens))
            follower = held.job.records.get(DERENDER)
            if follower is not None and follower.state is StageState.RUNNING:
                head = f"t {job_id} {have + 1}".encode()
                self._inboxes[follower.owner].append(b"\n".join([head, *commit.tokens]))
        self._emit(held, commit.events)
        if commit.done:
            self._record(held, stage, replace(held.job.records[stage], state=StageState.DONE, ended_at=self._now()))
            self._watch.pop((job_id, stage), None)
            if held.job.detached and commit.status is None:
                self._step(held, "running", stage, "done")
        for message in commit.messages:
            self._send(held, message, again=False)
        if commit.status is not None:
            self._conclude(held, commit.status, commit.error)

    async def retry(
        self, job_id: str, stage: Stage, owner: str, message: Message, delay_s: float, *, counted: bool
    ) -> bool:
        held = self._held(job_id, stage, owner)
        record = held.job.records[stage]
        if counted and record.fruitless >= self._max_attempts:
            return False
        if not counted:
            record = replace(record, fruitless=max(record.fruitless - 1, 0))
        if delay_s > 0:
            due = self._now() + delay_s
            self._record(held, stage, replace(record, state=StageState.DELAYED, owner="", lease_until=due))
            self._watch[job_id, stage] = due
        else:
            self._record(held, stage, record)
            self._send(held, message, again=True)
        return True

    async def end(self, job_id: str, status: Status, error: JsonObject | None) -> bool:
        held = self._jobs.get(job_id)
        if held is None or held.job.status.terminal:
            return False
        self._conclude(held, status, error)
        return True

    async def listen(self, job_id: str, listener: str) -> bool:
        held = self._jobs.get(job_id)
        if held is None:
            return False
        if listener not in held.listeners:
            held.listeners.append(listener)
        return True

    async def get(self, job_id: str) -> Job | None:
        held = self._jobs.get(job_id)
        return held.job if held else None

    async def page(self, limit: int, before: str | None) -> list[Job]:
        newest_first = [held.job for held in reversed(self._jobs.values()) if held.job.detached]
        if before is not None:
            ids = [job.id for job in newest_first]
            newest_first = newest_first[ids.index(before) + 1 :] if before in ids else []
        return newest_first[:limit]

    async def requested(self, request_id: str) -> list[str]:
        return list(self._requests.get(request_id, ()))

    async def payload(self, job_id: str, name: str) -> bytes | None:
        held = self._jobs.get(job_id)
        return held.payloads.get(name) if held else None

    async def read_tokens(self, job_id: str, after: int) -> list[Entry]:
        held = self._jobs.get(job_id)
        return [Entry(after + i, data) for i, data in enumerate(held.tokens[after:], 1)] if held else []

    async def read_events(self, job_id: str, after: int) -> list[Entry]:
        held = self._jobs.get(job_id)
        return [Entry(after + i, data) for i, data in enumerate(held.events[after:], 1)] if held else []

    async def due(self, limit: int) -> list[Due]:
        now = self._now()
        members = sorted((at, key) for key, at in self._watch.items() if at <= now)[:limit]
        for _, key in members:
            self._watch[key] = now + self._queue.lost_after_s
        return [Due(*key) for _, key in members]

    async def redispatch(self, message: Message) -> bool:
        held = self._jobs.get(message.job_id)
        key = (message.job_id, message.stage)
        record = held.job.records[message.stage] if held else StageRecord()
        if held is None or held.job.status.terminal or record.state in (StageState.DONE, StageState.WAITING):
            self._watch.pop(key, None)
            return False
        now = self._now()
        if record.state in (StageState.RUNNING, StageState.DELAYED):
            if record.lease_until > now:
                self._watch[key] = record.lease_until
                return False
        elif self.queues[message.queue]:
            oldest = self.queues[message.queue][-1]
            other = self._jobs.get(oldest.job_id)
            if other is None or other.job.records[oldest.stage].sent_at <= record.sent_at:
                self._watch[key] = now + min(30, max(self._queue.lost_after_s, (now - record.sent_at) / 2))
                return False
        self._send(held, message, again=True)
        return True

    async def announce(self, worker: Worker) -> None:
        self._workers[worker.id] = (self._now() + worker.ttl_s, worker)

    async def withdraw(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    async def workers(self) -> list[Worker]:
        return [worker for until, worker in self._workers.values() if until > self._now()]

    async def queued(self, queues: Sequence[str]) -> list[int]:
        return [len(self.queues[queue]) for queue in queues]

    async def ping(self) -> None:
        return None

    async def close(self) -> None:
        return None


class MemoryBus:
    """One process's inbox in a `MemoryStore`."""

    def __init__(self, inbox: deque[bytes]) -> None:
        self._inbox = inbox

    async def receive(self, wait_s: float) -> list[bytes]:
        give_up_at = time.monotonic() + wait_s
        while not self._inbox and time.monotonic() < give_up_at:  # noqa: ASYNC110 - the writer may be any thread
            await asyncio.sleep(0.001)
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    async def close(self) -> None:
        return None
