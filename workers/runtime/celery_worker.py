"""Runs a runtime inside a Celery worker process: `celery -A workers.cpu worker`.

Celery's signals start and stop the runtime, and Celery shows its tasks and answers Flower. Celery consumes no messages:
`workers.runtime.delivery` takes them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from celery import bootsteps, signals

from tasks.faults import Fault, redis_faults
from tasks.telemetry import configure_logging, get_logger
from workers.runtime import reports
from workers.runtime.process import Runtime
from workers.runtime.stages import Task

log = get_logger(__name__)


class ConsumesNothing(bootsteps.StartStopStep):
    """Stops Celery from reading the worker's queues: Flower shows them, but only the worker's own threads read them."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        consumer.task_consumer.consume = lambda *args, **kwargs: None


def serve(
    runtime: Runtime,
    tasks: Sequence[Task],
    *,
    opening: Callable[[], None],
    checking: Callable[[], Sequence[str]] = tuple,
    closing: Callable[[], None] = lambda: None,
) -> None:
    """Make the Celery worker of this process run `tasks`.

    `checking` says what keeps the worker from starting; with anything to say, or if Redis does not answer, the process
    ends with status 2 and these faults. The worker is ready once `opening` has returned; `closing` is called after all
    work has ended.
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
        configure()
        faults = [*redis_faults(settings), *map(Fault, checking())]
        for fault in faults:
            log.log(logging.ERROR if fault.fatal else logging.WARNING, "start_checked", fault=fault.text)
        if any(fault.fatal for fault in faults):
            sys.exit(2)
        runtime.start()
        try:
            opening()
        except Exception as error:
            # Celery would log this and take messages all the same.
            log.error("start_failed", exc_info=error)
            sys.exit(1)

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
    raise RuntimeError(
        f"Celery's consumer got the message of {job_id}, but only workers.runtime.delivery may take messages: "
        "call workers.runtime.celery_worker.serve before the worker starts"
    )
