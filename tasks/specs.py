"""All tasks and endpoints, declared once. A task has a name, a queue, a time limit and the payloads that it reads.

Specs are plain data. `tasks.broker.routing` builds messages from them, `workers.runtime.process` runs their bodies, and
the ledger counts their attempts. A task's only argument is the job's id; everything else is in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Stage = str
RENDER: Final[Stage] = "render"
GENERATE: Final[Stage] = "generate"
DERENDER: Final[Stage] = "derender"
STAGES: Final[tuple[Stage, ...]] = (RENDER, GENERATE, DERENDER)
"""All stages, in the order in which a request passes them."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task: it runs one stage of a job, on one kind of worker."""

    name: str
    """Celery's task name; Flower shows it."""
    stage: Stage
    queue: str
    """Queue name; routing fills in `{model}` and `{job_class}`."""
    reads: tuple[str, ...]
    """Names of the payloads that come with the claim (see `tasks.ledger.store`)."""
    time_limit_s: float
    """A run that takes longer loses its claim, and counts as an attempt."""
    resumable: bool = False
    """The task saves its progress: a stopping worker gives it back at once, and another worker resumes it."""


RENDER_TASK = TaskSpec("tokenyard.render", RENDER, "render", ("request",), time_limit_s=60)
GENERATE_TASK = TaskSpec(
    "tokenyard.generate",
    GENERATE,
    "generate.{model}.{job_class}",
    ("generate", "prompt"),
    time_limit_s=86_400,
)
DERENDER_TASK = TaskSpec("tokenyard.derender", DERENDER, "derender", ("context", "prompt"), time_limit_s=120)
FOLLOW_TASK = TaskSpec(
    "tokenyard.derender_stream",
    DERENDER,
    "derender",
    ("context", "prompt", "checkpoint"),
    time_limit_s=86_400,
    resumable=True,
)
DERENDER_ALONE_TASK = TaskSpec("tokenyard.derender_request", DERENDER, "derender", ("request",), time_limit_s=120)

SPECS: Final[tuple[TaskSpec, ...]] = (RENDER_TASK, GENERATE_TASK, DERENDER_TASK, FOLLOW_TASK, DERENDER_ALONE_TASK)


def spec_for(stage: Stage, stages: tuple[Stage, ...], *, followed: bool) -> TaskSpec:
    """Return the task that runs a stage of a job with these stages; `followed` as in `NewJob`."""
    if stages == (DERENDER,):
        return DERENDER_ALONE_TASK
    if stage == DERENDER:
        return FOLLOW_TASK if followed else DERENDER_TASK
    return {RENDER: RENDER_TASK, GENERATE: GENERATE_TASK}[stage]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API route whose requests become jobs: its surface, and the stages of its jobs."""

    path: str
    surface: str
    stages: tuple[Stage, ...]


STORED_DERENDER: Final = Endpoint("/v1/jobs/{id}/derender", "stored", (DERENDER,))
"""Derenders the tokens that an earlier job generated."""

ENDPOINTS: Final[dict[str, Endpoint]] = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/chat/completions", "openai_chat", (RENDER, GENERATE, DERENDER)),
        Endpoint("/v1/chat/completions/render", "openai_chat", (RENDER,)),
        Endpoint("/v1/chat/completions/derender", "openai_chat", (DERENDER,)),
        Endpoint("/v1/completions/render", "openai_completions", (RENDER,)),
        Endpoint("/v1/completions/derender", "openai_completions", (DERENDER,)),
        Endpoint("/v1/responses/render", "openai_responses", (RENDER,)),
        Endpoint("/v1/messages/render", "anthropic", (RENDER,)),
        # A request for token ids only skips the derender stage.
        Endpoint("/inference/v1/generate", "generate", (GENERATE, DERENDER)),
        Endpoint("/v1/responses/derender", "openai_responses", (DERENDER,)),
        Endpoint("/v1/messages/derender", "anthropic", (DERENDER,)),
        Endpoint("/tokenize", "tokenize", (RENDER,)),
        Endpoint("/detokenize", "detokenize", (RENDER,)),
    )
}
