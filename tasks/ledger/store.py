"""The job ledger, its payloads and its channels: one interface, because a stage commits to all of them at once.

A *job* is one request and everything the ledger knows of it. Its *payloads* are named blobs. A queue carries only the
job's id, never what a user wrote (the claim-check pattern):

    request     the client's body, JSON
    prompt      prompt token ids, little-endian int32
    generate    the GenerateRequest without its token ids, JSON
    context     the derender context, JSON
    checkpoint  the derender state of a followed stream, JSON

Its *channels* are durable, ordered logs: `tokens` holds the engine's chunks, `events` holds what the client sees. An
event is one line, a letter for its kind and then JSON:

    s{"status": "running", "stage": "generate", ...}      a stage was queued, started or done
    c{"id": "chatcmpl-...", "choices": [...]}             a chunk of a streamed answer
    r{"id": "chatcmpl-...", "choices": [...]}             the whole answer
    e{"kind": "EngineFailed", "message": ...}             why there is no (further) answer; always the last event
    d{}                                                   the end of a successful job; always the last event

A worker *claims* a stage before it works on it and renews the lease to keep the claim. Every write names its claim and
raises `ClaimLost` once another worker or the end of the job has taken it: a worker that comes back from the dead cannot
write. Every message goes through its stage's queue; if its worker dies, the lease runs out and the reaper redispatches
the stage.

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


ABANDONED: Final = "The job was cancelled because the process that waited for its answer is gone."
IDEMPOTENCY_CONFLICT: Final = (
    "This Idempotency-Key was already used with a different request. Use a new key, or repeat the same request."
)

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
    """The ledger's record of one stage. Times are seconds since the epoch, or 0 if not reached yet."""

    state: StageState = StageState.WAITING
    owner: str = ""
    lease_until: float = 0.0
    attempts: int = 0
    fruitless: int = 0
    """Attempts in a row that were lost without progress; the running one counts until it makes some."""
    sent_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to submit."""

    id: str
    endpoint: str
    model: str
    stages: tuple[Stage, ...]
    job_class: Literal["interactive", "batch"]
    stream: bool
    followed: bool
    """The derender stage starts together with the generate stage and reads tokens as they arrive; streams need it."""
    deadline_in_s: float
    ttl_s: int
    """How long the finished job and its events are kept."""
    queues: tuple[str, ...] = ()
    """The queues that the job passes through, in order."""
    listener: str = ""
    """The inbox of the process that waits for this job's events."""
    detached: bool = False
    """The job outlives the connection that submitted it, and its events include each stage's progress."""
    idempotency_key: str = ""
    idempotency_digest: str = ""
    """Hash of the request: detects a key that is reused for a different one."""
    request_id: str = ""
    """The client's own id for its request; several jobs may share one."""
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the ledger records it."""

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
    """Number of chunks in the token channel."""
    metadata: JsonObject = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """The first stage that is not done, or the last stage if all are."""
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
    """Why a claim was refused: there is nothing to do (`done`, `over`, `held`, `gone`), or the job must end
    (`expired`, `exhausted`)."""

    why: Literal["done", "over", "held", "gone", "expired", "exhausted"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What an owner writes under its claim, all or nothing."""

    payloads: Mapping[str, bytes] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tokens: Sequence[bytes] = ()
    """Chunks for the token channel, JSON. Repeating the commit does not apply it twice."""
    tokens_from: int = 0
    """Number of chunks in the channel before these."""
    events: Sequence[bytes] = ()
    """Lines for the events channel."""
    consumed: tuple[int, int] | None = None
    """Token channel offsets (before, after) that these events cover. The commit applies only if the job's read offset
    is `before`, and moves it to `after`."""
    done: bool = False
    messages: Sequence[Message] = ()
    """Messages of the next stages, dispatched in the same transaction."""
    status: Status | None = None
    """A terminal status that ends the job with this commit."""
    error: JsonObject | None = None


class ClaimLost(Exception):
    """The claim is lost: the job has ended, or the lease ran out and another worker may have the stage."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a channel. Sequence numbers start at 1 and have no gaps."""

    seq: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Due:
    """A stage that the reaper must check, or a deadline if `stage` is empty."""

    job_id: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that sent a heartbeat within the last `ttl_s` seconds: a `cpu` or `gpu` worker, or an `api` process.

    An `api` process serves no queue; if it dies, only the jobs that it waits for are cancelled. Workers send a
    heartbeat every two seconds, API processes every second, so only a long stall of the machine makes a live process
    look dead.
    """

    id: str
    role: str
    queues: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    detail: JsonObject = field(default_factory=dict)
    ttl_s: int = field(default=15, compare=False)


class JobStore(Protocol):
    """The ledger. Every method raises `BrokerUnavailable` if the ledger stays unreachable for too long."""

    async def submit(
        self, job: NewJob, payloads: Mapping[str, bytes], messages: Sequence[Message], max_queued: int
    ) -> str:
        """Accept a job and dispatch its first stages by `messages`.

        Returns the job's id, or the id of the earlier job with the same idempotency key.

        Raises:
            QueueFull: one of the job's queues holds `max_queued` messages.
            Conflict: the idempotency key was used with a different request.
        """
        ...

    async def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused:
        """Claim a stage for `owner` and return the claim with the payloads named in `reads`, or why it was refused."""
        ...

    async def renew(self, owner: str, held: Sequence[tuple[str, Stage]]) -> list[tuple[str, Stage]]:
        """Renew the leases of these claims; return the claims that are lost.

        Cancels a job that nobody waits for any more: it is not detached, and all its listeners are dead.
        """
        ...

    async def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        """Write under a claim. Repeating a commit that was applied has no effect.

        Raises:
            ClaimLost: nothing was written.
        """
        ...

    async def retry(
        self, job_id: str, stage: Stage, owner: str, message: Message, delay_s: float, *, counted: bool
    ) -> bool:
        """Give a claim back and redispatch its stage after `delay_s`.

        Returns False, and writes nothing, if the attempt is `counted` and no more are allowed without progress.

        Raises:
            ClaimLost: nothing was written.
        """
        ...

    async def end(self, job_id: str, status: Status, error: JsonObject | None) -> bool:
        """End a job without a claim; return False if it has ended already or does not exist."""
        ...

    async def listen(self, job_id: str, listener: str) -> bool:
        """Send the job's future events to one more inbox; return False if the job does not exist."""
        ...

    async def get(self, job_id: str) -> Job | None:
        """Return a job, or None if it does not exist or has expired."""
        ...

    async def page(self, limit: int, before: str | None) -> list[Job]:
        """Return detached jobs, newest first, at most `limit`; with `before`, only jobs older than that one."""
        ...

    async def requested(self, request_id: str) -> list[str]:
        """Return the ids of the jobs whose clients sent this request id."""
        ...

    async def payload(self, job_id: str, name: str) -> bytes | None:
        """Return a payload of a job, or None if it does not exist."""
        ...

    async def read_tokens(self, job_id: str, after: int) -> list[Entry]:
        """Return the token channel's entries with sequence numbers above `after`."""
        ...

    async def read_events(self, job_id: str, after: int) -> list[Entry]:
        """Return the events channel's entries with sequence numbers above `after`."""
        ...

    async def due(self, limit: int) -> list[Due]:
        """Return what the reaper must check now, and postpone each entry, so that other reapers skip it for a while."""
        ...

    async def redispatch(self, message: Message) -> bool:
        """Dispatch a stage again if nobody has it; return whether it was dispatched.

        Nobody has a stage if its lease ran out, its delay is over, or its message is neither in the queue nor claimed.
        """
        ...

    async def announce(self, worker: Worker) -> None:
        """Record a heartbeat: this process counts as live for `worker.ttl_s` seconds."""
        ...

    async def withdraw(self, worker_id: str) -> None:
        """Remove a process from the live ones, with its inbox."""
        ...

    async def workers(self) -> list[Worker]:
        """Return the live processes."""
        ...

    async def queued(self, queues: Sequence[str]) -> list[int]:
        """Return the number of messages in each queue."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


def event_line(kind: EventKind, body: bytes) -> bytes:
    """Build an event's line from its kind and its JSON."""
    return kind.encode() + body
