"""Logging: one line of JSON (or plain text) for each event; the runtime binds the job's id.

Event names are constants in the past tense. Prompts, answers and token ids are never logged.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

Log = Any


def configure_logging(level: str, log_format: Literal["json", "text"], role: str) -> None:
    """Send structlog's and the standard library's log records to standard error, one line each, tagged with `role`."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.EventRenamer("event"),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(role=role)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # At `info`, Celery and kombu log what each task received and returned.
    root.setLevel(max(logging.getLevelName(level.upper()), logging.WARNING))


def get_logger(name: str) -> Log:
    return structlog.get_logger(module=name)
