"""From a stage of a job to the broker message that starts it: which queue, and what Flower may show."""

from __future__ import annotations

import base64
import json
import uuid

from celery import Celery

from tasks.app import generate_queue
from tasks.specs import DERENDER_TASK, GENERATE, RENDER, RENDER_TASK, Stage, TaskSpec
from tasks.store import Message


def queue_for(stage: Stage, model: str, job_class: str) -> str:
    """The queue in which a stage's messages wait."""
    if stage == GENERATE:
        return generate_queue(model, job_class)
    return (RENDER_TASK if stage == RENDER else DERENDER_TASK).queue


class Router:
    """Builds messages with Celery's own builder, as kombu's Redis transport would push them."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def message(
        self, job_id: str, spec: TaskSpec, *, model: str, job_class: str, prompt_tokens: int | None = None
    ) -> Message:
        """The message for one task. Its only argument is the job's id; its shown arguments are counts and names."""
        queue = queue_for(spec.stage, model, job_class)
        task_id = str(uuid.uuid4())
        shown = f"(job={job_id}, model={model})"
        if prompt_tokens is not None:
            shown = f"(job={job_id}, model={model}, prompt_tokens={prompt_tokens})"
        task = self._app.amqp.as_task_v2(
            task_id,
            spec.name,
            args=[job_id],
            shadow=f"{spec.name.removeprefix('tokenyard.')}[{model}]",
            argsrepr=shown,
            kwargsrepr="",
            ignore_result=True,
            origin="tokenyard",
        )
        envelope = {
            "body": base64.b64encode(json.dumps(task.body).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            # `job` and `stage` let the ledger see in the queue itself which message is the oldest.
            "headers": {**task.headers, "job": job_id, "stage": spec.stage},
            "properties": {
                **task.properties,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
        return Message(job_id, spec.stage, queue, json.dumps(envelope).encode())
