"""Moves a job through its stages: submit, dispatch the next stage, cancel.

A job's stages are data: `render → generate → derender`, or a part of it. Each stage dispatches the next one in the
commit that stores its own result, so a job never gets lost between two stages. In a followed job, which every streamed
one is, the derender stage is dispatched together with the generate stage and reads the tokens as they arrive.
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
    """A request that passed every check that needs no tokenizer."""

    endpoint: str
    model: str
    body: bytes
    stream: bool
    stages: tuple[Stage, ...]
    payloads: Mapping[str, bytes] | None = None
    """Payloads for the first stages, by name; None stores the body as `request`."""
    followed: bool = False
    """The derender stage must read tokens as they arrive although the answer is not streamed."""
    job_class: str = "interactive"
    detached: bool = False
    listener: str = ""
    idempotency_key: str = ""
    metadata: Mapping[str, Any] | None = None
    deadline_in_s: float | None = None
    job_id: str = ""
    request_id: str = ""
    """The client's own id for the request; abort requests name it."""


class Pipeline:
    """Submits jobs, builds the messages of their stages, and ends them. Stateless: every process has its own."""

    def __init__(self, settings: Settings, app: Celery, store: JobStore) -> None:
        self._settings = settings
        self._router = Router(app)
        self.store = store

    async def submit(self, submission: Submission) -> str:
        """Accept a request as a job, dispatch its first stage, and return the job's id.

        Raises:
            QueueFull: too many requests are queued for this model.
            Conflict: the idempotency key was used with a different request.
            BrokerUnavailable: the ledger did not confirm the job.
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
        """Build the message that dispatches a stage of a job."""
        return self._router.message(
            job.id,
            spec_for(stage, job.stages, followed=job.followed),
            model=job.model,
            job_class=job.job_class,
            prompt_tokens=job.prompt_tokens,
        )

    def next_messages(self, job: Job, done: Stage) -> list[Message]:
        """Return the messages to dispatch in the commit that completes a stage."""
        if job.followed and done == GENERATE:
            return []  # the derender stage was dispatched together with this one
        together = _together(job.stages, job.stages.index(done) + 1, followed=job.followed)
        return [self.message_for(job, stage) for stage in together]

    async def cancel(self, job_id: str) -> bool:
        """Cancel a job and notify the owners of its stages; return False if it had ended already."""
        return await self.store.end(job_id, Status.CANCELLED, error_to_json(Cancelled()))

    async def fail(self, job_id: str, error: TokenyardError) -> bool:
        """End a job with an error, as `expired` if its deadline passed; return False if it had ended already."""
        status = Status.EXPIRED if isinstance(error, DeadlineExceeded) else Status.FAILED
        return await self.store.end(job_id, status, error_to_json(error))


def _digest(submission: Submission) -> str:
    return hashlib.sha256(submission.endpoint.encode() + b"\n" + submission.body).hexdigest()


def _together(stages: tuple[Stage, ...], position: int, *, followed: bool) -> tuple[Stage, ...]:
    """Return the stages to dispatch at `position`: one, or generate and derender together if the job is followed."""
    beside = followed and stages[position : position + 2] == (GENERATE, DERENDER)
    return stages[position : position + (2 if beside else 1)]
