"""Reports a worker's tasks to Flower and `celery inspect`.

The reports are those of Celery's own consumer: `task-received` and `task-started` with the message's headers, then one
of `task-succeeded`, `task-failed`, `task-retried` and `task-revoked`. A running task is in Celery's list of active
requests, where heartbeats and `inspect active` find it. A report contains nothing that a user wrote.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from celery import Celery, bootsteps
from celery.worker import state

EVENT_INTERVAL_S: Final = 0.3
MOST_BUFFERED_EVENTS: Final = 1_000_000
"""More than an interval can produce. A full buffer would be sent by the thread that fills it, but only the consumer's
thread may send."""


class Outcome(StrEnum):
    """How a run of a task ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    """The stage was given back, and will be redispatched."""
    REVOKED = "revoked"
    """The job ended, or another worker has the stage."""


class EventBatcher(bootsteps.StartStopStep):
    """Sends this worker's task events a few times a second, many in one message.

    Celery sends them in each turn of its loop, which takes a quarter of a busy worker's CPU time.
    """

    requires = ("celery.worker.consumer.events:Events",)
    dispatcher: Any = None
    """The event dispatcher of this process's consumer."""

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        self._timer: Any = None
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        dispatcher = EventBatcher.dispatcher = consumer.event_dispatcher
        dispatcher.on_send_buffered = None
        dispatcher.buffer_limit = MOST_BUFFERED_EVENTS
        self._timer = consumer.timer.call_repeatedly(EVENT_INTERVAL_S, self.flush, (consumer,), priority=10)

    def flush(self, consumer: Any) -> None:
        try:
            consumer.event_dispatcher.flush()
        except consumer.connection_errors:
            return  # the events stay buffered; the consumer notices the lost connection and reconnects

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Report:
    """One run of a task, from its start to `end`. Celery's worker state treats it as an active request."""

    def __init__(self, headers: Mapping[str, Any], hostname: str = "") -> None:
        self.id: str = headers["id"]
        self.name: str = headers["task"]
        self._headers, self._hostname = headers, hostname
        self._began, self._began_at = time.perf_counter(), time.time()
        _send(
            "task-received",
            uuid=self.id,
            name=headers.get("shadow") or self.name,
            args=headers.get("argsrepr", ""),
            kwargs=headers.get("kwargsrepr", ""),
            root_id=headers.get("root_id"),
            parent_id=headers.get("parent_id"),
            retries=0,
            eta=None,
            expires=None,
        )
        _send("task-started", uuid=self.id)
        state.task_accepted(self)

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Return what `inspect active` shows of this run."""
        return {
            "id": self.id,
            "name": self.name,
            "args": self._headers.get("argsrepr", ""),
            "kwargs": {},
            "type": self.name,
            "hostname": self._hostname,
            "time_start": self._began_at,
            "acknowledged": True,
            "delivery_info": {},
            "worker_pid": None,
        }

    def end(self, outcome: Outcome, reason: str = "") -> None:
        """Report the end of the run; `reason` is an error's code."""
        state.task_ready(self, successful=outcome is Outcome.SUCCEEDED)
        runtime_s = time.perf_counter() - self._began
        if outcome is Outcome.SUCCEEDED:
            _send("task-succeeded", uuid=self.id, result="None", runtime=runtime_s)
        elif outcome is Outcome.REVOKED:
            _send("task-revoked", uuid=self.id, terminated=True, signum=None, expired=False)
        else:
            _send(f"task-{outcome}", uuid=self.id, exception=reason or outcome.value, traceback="")


def _send(kind: str, **fields: Any) -> None:
    dispatcher = EventBatcher.dispatcher
    if dispatcher is not None and dispatcher.enabled:
        dispatcher.send(kind, **fields)


def install(app: Celery) -> None:
    """Make workers of this application send their task events in batches."""
    app.steps["consumer"].add(EventBatcher)
