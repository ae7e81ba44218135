"""The Celery application: JSON only, no result backend, one Redis list for each queue.

Only `create_app(settings)` creates one. Its queues are those of `tasks.specs` for the served models.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

from celery import Celery
from kombu import Exchange, Queue

from tasks.settings import Settings
from tasks.specs import DERENDER_TASK, GENERATE_TASK, RENDER_TASK


def generate_queue(model: str, job_class: str) -> str:
    """Return the queue of generate messages for one model and class."""
    return GENERATE_TASK.queue.format(model=model, job_class=job_class)


def cpu_queues() -> list[str]:
    """Return the queues of a CPU worker, derender first: finish started requests before starting new ones."""
    return [DERENDER_TASK.queue, RENDER_TASK.queue]


def gpu_queues(models: Sequence[str]) -> list[str]:
    """Return the queues of a GPU worker for these models: all interactive queues before any batch queue."""
    return [generate_queue(model, job_class) for job_class in ("interactive", "batch") for model in models]


def broker_url(redis_url: str) -> str:
    """Translate a Redis URL for kombu: redis-py writes a Unix socket as `unix://`, kombu as `redis+socket://`."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    credentials = parts.netloc.rpartition("@")[0]
    return f"redis+socket://{credentials + '@' if credentials else ''}{parts.path}?virtual_host={database}"


def create_app(settings: Settings, *, queues: Sequence[str] = (), slots: int = 1) -> Celery:
    """Create the Celery application for these settings.

    A worker passes the `queues` that it serves and how many tasks it runs at once (`slots`); Flower shows both. An
    application that only dispatches needs neither, because each message names its queue (see `tasks.broker.routing`).
    """
    app = Celery("tokenyard", broker=broker_url(settings.redis_url), set_as_current=False)
    direct = Exchange("", type="direct")
    app.conf.update(
        task_queues=[Queue(name, direct, routing_key=name) for name in queues or cpu_queues()],
        task_create_missing_queues=False,
        task_default_queue=RENDER_TASK.queue,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        result_backend=None,
        task_send_sent_event=False,
        worker_pool="threads",
        worker_concurrency=slots,
        worker_send_task_events=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_connect_timeout": 5,
            "socket_timeout": 30,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "priority_steps": [0],
        },
    )
    return app
