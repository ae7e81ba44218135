"""A request's way through the stages: submit, the next step, cancel.

The steps are data: `render → generate → derender`, or any part of it. Each stage dispatches the next one in the
commit that stores its own result, so there is no moment in which a job is between two stages and with nobody.
The derender of a job that is followed, as each streamed one is, is dispatched with its generate: it reads the tokens
as they come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery

from tasks.broker.routing import Router, queue_for
from tasks.errors import Cancelled, DeadlineExceeded, TokenyardError, error_to_json
from tasks.ids import new_id
from tasks.ledger.store import Job, JobStore, Message, NewJob, Status
from tasks.settings import Settings
from tasks.specs import DERENDER, GENERATE, Stage, spec_for


@dataclass(frozen=True, slots=True)
class Submission:
    """A request that was checked as far as is possible without a tokenizer."""

    endpoint: str
    model: str
    body: bytes
    stream: bool
    stages: tuple[Stage, ...]
    payloads: Mapping[str, bytes] | None = None
    """What the first stages read, by name; the body as `request` if None."""
    followed: bool = False
    """Tokens are to be read as they come although the answer is not streamed."""
    job_class: str = "interactive"
    detached: bool = False
    listener: str = ""
    idempotency_key: str = ""
    metadata: Mapping[str, Any] | None = None
    deadline_in_s: float | None = None
    job_id: str = ""
    request_id: str = ""
    """The client's own name for it, by which it may be aborted."""


class Pipeline:
    """Moves jobs along; stateless but for its connections, so every process has one."""

    def __init__(self, settings: Settings, app: Celery, store: JobStore) -> None:
        self._settings = settings
        self._router = Router(app)
        self.store = store

    async def submit(self, submission: Submission) -> str:
        """Accept a request as a job and dispatch its first stage; returns the job's id.

        Raises:
            QueueFull: too many requests wait for this model.
            Conflict: the idempotency key was used with another request.
            BrokerUnavailable: nothing was accepted.
        """
        limits = self._settings.limits
        job_id = submission.job_id or new_id("job_")
        followed = submission.stream or submission.followed
        timeout_s = limits.job_timeout_s if submission.detached else limits.request_timeout_s
        job = NewJob(
            id=job_id,
            endpoint=submission.endpoint,
            model=submission.model,
            stages=submission.stages,
            job_class="batch" if submission.job_class == "batch" else "interactive",
            stream=submission.stream,
            followed=followed,
            deadline_in_s=submission.deadline_in_s or timeout_s,
            ttl_s=limits.job_ttl_s if submission.detached else limits.response_ttl_s,
            queues=tuple(queue_for(stage, submission.model, submission.job_class) for stage in submission.stages),
            listener=submission.listener,
            detached=submission.detached,
            idempotency_key=submission.idempotency_key,
            idempotency_digest=_digest(submission) if submission.idempotency_key else "",
            request_id=submission.request_id,
            metadata=dict(submission.metadata or {}),
        )
        stages = submission.stages
        messages = [
            self._router.message(
                job_id, spec_for(stage, stages, followed=followed), model=submission.model, job_class=job.job_class
            )
            for stage in _together(stages, 0, followed=followed)
        ]
        payloads = {"request": submission.body} if submission.payloads is None else submission.payloads
        return await self.store.submit(job, payloads, messages, limits.max_queued)

    def message_for(self, job: Job, stage: Stage) -> Message:
        return self._router.message(
            job.id,
            spec_for(stage, job.stages, followed=job.followed),
            model=job.model,
            job_class=job.job_class,
            prompt_tokens=job.prompt_tokens,
        )

    def next_messages(self, job: Job, done: Stage) -> list[Message]:
        """What to dispatch in the commit that completes a stage."""
        if job.followed and done == GENERATE:
            return []  # what follows was dispatched beside it
        together = _together(job.stages, job.stages.index(done) + 1, followed=job.followed)
        return [self.message_for(job, stage) for stage in together]

    async def cancel(self, job_id: str) -> bool:
        """End a job on its client's behalf; whoever works on it is told at once. False if it was over."""
        return await self.store.end(job_id, Status.CANCELLED, error_to_json(Cancelled()))

    async def fail(self, job_id: str, error: TokenyardError) -> bool:
        status = Status.EXPIRED if isinstance(error, DeadlineExceeded) else Status.FAILED
        return await self.store.end(job_id, status, error_to_json(error))


def _digest(submission: Submission) -> str:
    return hashlib.sha256(submission.endpoint.encode() + b"\n" + submission.body).hexdigest()


def _together(stages: tuple[Stage, ...], position: int, *, followed: bool) -> tuple[Stage, ...]:
    """The stage at that place, and with it the one that reads its tokens as they come."""
    beside = followed and stages[position : position + 2] == (GENERATE, DERENDER)
    return stages[position : position + (2 if beside else 1)]
