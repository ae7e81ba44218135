"""The Celery application: JSON only, late acknowledgement, no results, short leases that are renewed.

`create_app(settings)` is the only place that makes one. Its queues are those of `tasks.specs` for the served models.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery import Celery, bootsteps
from kombu import Exchange, Queue

from tasks.broker import transport
from tasks.protocol.base import JsonObject
from tasks.settings import Settings
from tasks.specs import DERENDER_TASK, GENERATE_TASK, RENDER_TASK

EVENT_INTERVAL_S = 0.3
MOST_BUFFERED_EVENTS = 1_000_000
"""Never so many within an interval: only the consumer's own thread may send."""


class LeaseRenewer(bootsteps.StartStopStep):
    """Keeps this worker's unacknowledged deliveries invisible to others, however long a task runs.

    A short visibility timeout brings a dead worker's messages back soon, and would bring a live worker's back too.
    Reads kombu's private `_delivered` and `_dirty`, which a test guards.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        self._timer: Any = None
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        timeout_s = consumer.app.conf.broker_transport_options["visibility_timeout"]
        self._timer = consumer.timer.call_repeatedly(max(timeout_s / 3, 0.5), self.renew, (consumer,), priority=10)

    def renew(self, consumer: Any) -> None:
        channel = consumer.task_consumer.channel
        tags = [tag for tag in list(channel.qos._delivered) if tag not in channel.qos._dirty]
        if not tags:
            return
        now = time.time()
        try:
            channel._create_client().zadd(channel.unacked_index_key, dict.fromkeys(tags, now), xx=True)
        except consumer.connection_errors:
            return  # the consumer notices by itself and reconnects

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class EventBatcher(bootsteps.StartStopStep):
    """Sends this worker's task events a few times a second, many in one message.

    Celery sends them once in each turn of its loop, which takes a quarter of a busy worker's processor time.
    """

    requires = ("celery.worker.consumer.events:Events",)
    dispatcher: Any = None
    """Of this process's consumer, for `report_taken`."""

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
            return  # they stay buffered; the consumer notices by itself and reconnects

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def report_taken(headers: JsonObject, *, started: bool = False) -> None:
    """Tell Flower of a task that is run without Celery's consumer, as the consumer would; and that it has `started`, if
    it will take a while."""
    _report(
        "task-received",
        uuid=headers["id"],
        name=headers["shadow"] or headers["task"],
        args=headers["argsrepr"],
        kwargs=headers["kwargsrepr"],
        root_id=headers["root_id"],
        parent_id=headers["parent_id"],
        retries=0,
        eta=None,
        expires=None,
    )
    if started:
        _report("task-started", uuid=headers["id"])


def report_done(headers: JsonObject, runtime_s: float) -> None:
    """Tell Flower that such a task is done."""
    _report("task-succeeded", uuid=headers["id"], result="None", runtime=runtime_s)


def _report(kind: str, **fields: Any) -> None:
    dispatcher = EventBatcher.dispatcher
    if dispatcher is not None and dispatcher.enabled:
        dispatcher.send(kind, **fields)


def generate_queue(model: str, job_class: str) -> str:
    return GENERATE_TASK.queue.format(model=model, job_class=job_class)


def cpu_queues() -> list[str]:
    """What CPU workers consume. What is further along comes first, so that a request that was begun is finished."""
    return [DERENDER_TASK.queue, RENDER_TASK.queue]


def gpu_queues(models: Sequence[str]) -> list[str]:
    """What a GPU worker for these models consumes: all interactive work before any batch work."""
    return [generate_queue(model, job_class) for job_class in ("interactive", "batch") for model in models]


def create_app(settings: Settings, *, queues: Sequence[str] = (), threads: int = 4) -> Celery:
    """The Celery application for these settings.

    A worker of it consumes `queues`, in this order, with `threads` slots; an application that only dispatches needs
    neither, because messages name their queue (see `tasks.broker.routing`).
    """
    transport.install()
    app = Celery("tokenyard", broker=settings.redis_url, set_as_current=False)
    direct = Exchange("", type="direct")
    app.conf.update(
        task_queues=[Queue(name, direct, routing_key=name) for name in queues or cpu_queues()],
        task_create_missing_queues=False,
        task_default_queue=RENDER_TASK.queue,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        result_backend=None,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=True,
        task_send_sent_event=False,
        worker_pool="threads",
        worker_concurrency=threads,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_send_task_events=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_soft_shutdown_timeout=10,
        worker_enable_remote_control=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": settings.queue.visibility_timeout_s,
            "unacked_restore_interval": 2,
            "unacked_restore_throttle": 1,
            "max_connections": 512,
            "socket_connect_timeout": 5,
            "socket_timeout": 30,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "priority_steps": [0],
            "queue_order_strategy": "tasks.broker.transport:GatedOrder",
        },
    )
    app.steps["consumer"].add(LeaseRenewer)
    app.steps["consumer"].add(EventBatcher)
    return app
