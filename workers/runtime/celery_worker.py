"""Ties a runtime to the Celery worker that it lives in: `celery -A workers.cpu worker`.

Celery's process starts and stops the runtime by its signals, shows its tasks, and answers Flower. It consumes nothing:
messages are taken by `workers.runtime.delivery`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery import bootsteps, signals

from tasks.telemetry import configure_logging, get_logger
from workers.runtime import reports
from workers.runtime.process import Runtime
from workers.runtime.stages import Task

log = get_logger(__name__)


class ConsumesNothing(bootsteps.StartStopStep):
    """Leaves the worker's queues to its own threads: they are shown as its queues, and not read by Celery."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        consumer.task_consumer.consume = lambda *args, **kwargs: None


def serve(
    runtime: Runtime,
    tasks: Sequence[Task],
    *,
    opening: Callable[[], None],
    closing: Callable[[], None] = lambda: None,
) -> None:
    """Let `tasks` be run by the Celery worker of this process.

    It is ready once `opening` has returned; `closing` is called when all work is done.
    """
    settings, app = runtime.settings, runtime.app
    app.steps["consumer"].add(ConsumesNothing)
    reports.install(app)
    for task in tasks:
        app.task(_not_by_celery, name=task.spec.name)

    def hush(instance: Any, **_: Any) -> None:
        instance.quiet = True  # no banner: the log is one line for each event

    def configure(**_: Any) -> None:
        configure_logging(settings.log_level, settings.log_format, runtime.role)

    def begin(**_: Any) -> None:
        runtime.start()
        opening()

    def ready(**_: Any) -> None:
        runtime.take(tasks)
        log.info("worker_started", worker=runtime.id)

    def drain(**_: Any) -> None:
        log.info("worker_stopping", worker=runtime.id, held=len(runtime.claims))
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


def _not_by_celery(job_id: str) -> None:
    raise RuntimeError(f"{job_id} reached Celery's consumer; messages are taken by workers.runtime.delivery")
