"""Builds the broker message for a stage of a job: its queue, and what Flower may show of it."""

from __future__ import annotations

import base64
import json
import uuid

from celery import Celery

from tasks.broker.app import generate_queue
from tasks.ledger.store import Message
from tasks.specs import DERENDER_TASK, GENERATE, RENDER, RENDER_TASK, Stage, TaskSpec


def queue_for(stage: Stage, model: str, job_class: str) -> str:
    """Return the queue for a stage's messages."""
    if stage == GENERATE:
        return generate_queue(model, job_class)
    return (RENDER_TASK if stage == RENDER else DERENDER_TASK).queue


_JOB, _TASK, _SHOWN, _BODY = (f"@{name}@" for name in ("job", "task", "shown", "body"))


class Router:
    """Builds messages with Celery's own builder, byte for byte as kombu's Redis transport would push them.

    The builder runs once for each task, model and queue and makes a template; each message fills in its own values.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._templates: dict[tuple[str, str, str], tuple[str, str]] = {}

    def message(
        self, job_id: str, spec: TaskSpec, *, model: str, job_class: str, prompt_tokens: int | None = None
    ) -> Message:
        """Build the message for one task.

        The task's only argument is the job's id. Flower shows counts and names, never what a user wrote.
        """
        queue = queue_for(spec.stage, model, job_class)
        key = spec.name, model, queue
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._template(spec, model, queue)
        envelope, body = template
        shown = f"(job={job_id}, model={model})"
        if prompt_tokens is not None:
            shown = f"(job={job_id}, model={model}, prompt_tokens={prompt_tokens})"
        filled = (
            envelope.replace(_BODY, base64.b64encode(body.replace(_JOB, job_id).encode()).decode())
            .replace(_JOB, job_id)
            .replace(_TASK, str(uuid.uuid4()))
            .replace(_SHOWN, json.dumps(shown)[1:-1])
        )
        return Message(job_id, spec.stage, queue, filled.encode())

    def _template(self, spec: TaskSpec, model: str, queue: str) -> tuple[str, str]:
        """Return the JSON of a message's envelope and of its body, with placeholders for the message's own values."""
        task = self._app.amqp.as_task_v2(
            _TASK,
            spec.name,
            args=[_JOB],
            shadow=f"{spec.name.removeprefix('tokenyard.')}[{model}]",
            argsrepr=_SHOWN,
            kwargsrepr="",
            ignore_result=True,
            origin="tokenyard",
        )
        envelope = {
            "body": _BODY,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            # A worker claims this stage when it takes the message; the ledger looks up a message's age by both.
            "headers": {**task.headers, "job": _JOB, "stage": spec.stage},
            "properties": {
                **task.properties,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": _TASK,
            },
        }
        return json.dumps(envelope), json.dumps(task.body)
