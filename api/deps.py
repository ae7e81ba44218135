"""The objects that request handlers share: settings, ledger, pipeline, hub, admission."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from tasks.ledger.store import JobStore
from tasks.pipeline import Pipeline
from tasks.settings import Settings

if TYPE_CHECKING:
    from api.limits import Admission
    from api.relay import Hub


@dataclass(frozen=True, slots=True)
class Process:
    """The shared objects of one API process; the lifespan creates them."""

    settings: Settings
    store: JobStore
    pipeline: Pipeline
    hub: Hub
    admission: Admission
    started_at: int = field(default_factory=lambda: int(time.time()))


def process_of(request: Request) -> Process:
    """Return the shared objects of the process that handles this request."""
    process: Process = request.app.state.process
    return process
