"""The job ledger, its payloads and its channels: one port, because a stage hands over in one transaction.

A *job* is one request and all that is known of it. Its *payloads* are named blobs (claim checks: what a user wrote
never travels through a queue):

    request     the client's body, JSON
    prompt      prompt token ids, little-endian int32
    generate    the GenerateRequest without its token ids, JSON
    context     what derendering needs to know of the request, JSON
    checkpoint  the derender state of a followed stream, JSON

Its *channels* are durable, ordered logs: `tokens` holds the engine's chunks, `events` holds what the client is to
see. An event is one line, a letter for its kind and then JSON:

    s{"status": "running", "stage": "generate", ...}      a step of the job's life
    c{"id": "chatcmpl-...", "choices": [...]}             a chunk of a streamed answer
    r{"id": "chatcmpl-...", "choices": [...]}             the whole answer
    e{"kind": "EngineFailed", "message": ...}             why there is no (further) answer; always the last event
    d{}                                                   the end of a successful job; always the last event

A worker *claims* a stage before it works on it and holds the claim by renewing a lease; every write names the claim
and fails with `ClaimLost` once the claim is gone, so that a worker that was thought dead cannot write.

A message for a stage goes to the stage's queue. Only where a worker's thread has nothing to do and waits for more does
it go there straight away, with the claim and what the stage reads, in the transaction that would have queued it
(`tasks.ledger.blocking_store`): the thread need not ask for what it has been given. A worker that dies with it is missed when
the lease runs out, as with any claim.

Implementations: `tasks.ledger.redis_store.RedisStore`, `tasks.ledger.memory_store.MemoryStore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, Protocol

from tasks.protocol.base import JsonObject
from tasks.specs import Stage


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED})


class StageState(StrEnum):
    WAITING = "waiting"
    QUEUED = "queued"
    DELAYED = "delayed"
    RUNNING = "running"
    DONE = "done"


EventKind = Literal["s", "c", "r", "e", "d"]


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What the ledger knows of one stage; times are seconds since the epoch, 0 where it has not happened."""

    state: StageState = StageState.WAITING
    owner: str = ""
    lease_until: float = 0.0
    attempts: int = 0
    sent_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted."""

    id: str
    endpoint: str
    model: str
    stages: tuple[Stage, ...]
    job_class: Literal["interactive", "batch"]
    stream: bool
    followed: bool
    """The derender stage reads tokens as they come, which a stream needs; it begins with the generate stage."""
    deadline_in_s: float
    ttl_s: int
    """How long the finished job and its events are kept."""
    queues: tuple[str, ...] = ()
    """The queues that it will wait in, one after the other."""
    listener: str = ""
    """The bus of a process that waits for this job's events."""
    detached: bool = False
    """Nobody waits on the connection: the job outlives its submitter, and its life is told as events."""
    idempotency_key: str = ""
    idempotency_digest: str = ""
    """Fingerprint of the request, so that the key cannot stand for another one."""
    request_id: str = ""
    """What the client calls its request; several jobs may have the same."""
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the ledger holds it."""

    id: str
    endpoint: str
    model: str
    stages: tuple[Stage, ...]
    job_class: Literal["interactive", "batch"]
    stream: bool
    followed: bool
    detached: bool
    status: Status
    created_at: float
    deadline_at: float
    ended_at: float
    ttl_s: int
    idempotency_digest: str
    records: Mapping[Stage, StageRecord]
    error: JsonObject | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    token_chunks: int = 0
    """How many chunks the token channel holds."""
    metadata: JsonObject = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """The first stage that is not done, or the last."""
        return next((s for s in self.stages if self.records[s].state != "done"), self.stages[-1])


@dataclass(frozen=True, slots=True)
class Message:
    """A broker message for a stage of a job, ready to be pushed."""

    job_id: str
    stage: Stage
    queue: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on one stage of a job, held by `owner` while the lease is renewed."""

    job: Job
    stage: Stage
    owner: str
    attempt: int
    payloads: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a claim was not given: nothing to do (`done`, `over`, `held`, `gone`), or the job must end
    (`expired`, `exhausted`)."""

    why: Literal["done", "over", "held", "gone", "expired", "exhausted"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What a claim holder writes, all or nothing."""

    payloads: Mapping[str, bytes] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tokens: Sequence[bytes] = ()
    """Chunks for the token channel, JSON; they and all that comes with them are applied once, however often the
    commit is sent."""
    tokens_from: int = 0
    """The number of chunks in the channel before these."""
    events: Sequence[bytes] = ()
    """Lines for the events channel."""
    consumed: tuple[int, int] | None = None
    """Token channel offset (before, after) that these events come from: the checkpoint moves, or nothing happens."""
    done: bool = False
    messages: Sequence[Message] = ()
    """Next stages, dispatched in the same transaction."""
    status: Status | None = None
    """A terminal status that ends the job with this commit."""
    error: JsonObject | None = None


class ClaimLost(Exception):
    """The claim is no longer held: the job is over, or its lease ran out and another worker has it."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a channel; sequence numbers start at 1 and have no gaps."""

    seq: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Due:
    """A stage (or a deadline, where `stage` is empty) that the reaper has to look at."""

    job_id: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that said within the last `ttl_s` that it is alive: `cpu` and `gpu` workers, and `api`, which serves
    no queue and is missed only by the jobs that it waits for.

    A process says so every other second; it takes a machine that stands still for long to lose one that lives."""

    id: str
    role: str
    queues: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    detail: JsonObject = field(default_factory=dict)
    ttl_s: int = field(default=15, compare=False)


class JobStore(Protocol):
    """The ledger. Every method raises `BrokerUnavailable` when the store cannot be reached for long enough."""

    async def submit(
        self, job: NewJob, payloads: Mapping[str, bytes], messages: Sequence[Message], max_queued: int
    ) -> str:
        """Accept a job and dispatch its first stage, and the one that follows it as it goes on.

        Returns its id, or the id of the earlier job that has the same idempotency key.

        Raises:
            QueueFull: one of the job's queues holds `max_queued` messages.
        """
        ...

    async def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused: ...

    async def renew(self, owner: str, held: Sequence[tuple[str, Stage]]) -> list[tuple[str, Stage]]:
        """Prolong the leases; returns those that are lost. A job that is not detached, and whose listeners are all
        dead, is cancelled: nothing runs for nobody."""
        ...

    async def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        """Write under a claim. Raises ClaimLost; a commit that was applied before is taken as done."""
        ...

    async def retry(
        self, job_id: str, stage: Stage, owner: str, message: Message, delay_s: float, *, counted: bool
    ) -> None:
        """Give a claim back, to be dispatched again after `delay_s`; `counted` says if the attempt counts."""
        ...

    async def end(self, job_id: str, status: Status, error: JsonObject | None) -> bool:
        """End a job from outside of any claim; False if it was over already or is unknown."""
        ...

    async def listen(self, job_id: str, listener: str) -> bool:
        """Send the job's further events to this bus as well; False if it is unknown."""
        ...

    async def get(self, job_id: str) -> Job | None: ...

    async def page(self, limit: int, before: str | None) -> list[Job]:
        """Detached jobs, newest first, older than the job `before`."""
        ...

    async def requested(self, request_id: str) -> list[str]:
        """The jobs of the requests that their clients call so."""
        ...

    async def payload(self, job_id: str, name: str) -> bytes | None: ...

    async def read_tokens(self, job_id: str, after: int) -> list[Entry]: ...

    async def read_events(self, job_id: str, after: int) -> list[Entry]: ...

    async def due(self, limit: int) -> list[Due]:
        """What the reaper must look at now; each is handed out again only after a while."""
        ...

    async def redispatch(self, message: Message) -> bool:
        """Send a stage again if the ledger says that nobody has it: its lease ran out, its delay is over, or its
        message is neither in the queue nor with a worker."""
        ...

    async def announce(self, worker: Worker) -> None: ...

    async def withdraw(self, worker_id: str) -> None: ...

    async def workers(self) -> list[Worker]: ...

    async def queued(self, queues: Sequence[str]) -> list[int]:
        """The number of waiting messages of each queue."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


def event_line(kind: EventKind, body: bytes) -> bytes:
    """An event's line from its kind and its JSON."""
    return kind.encode() + body
