"""Refuses requests before they enter a queue: bodies that are too large, models that no worker serves."""

from __future__ import annotations

from typing import Any

from tasks.broker.routing import queue_for
from tasks.errors import InvalidRequest, ModelNotFound, NoLiveWorker
from tasks.ledger.store import JobStore, Worker
from tasks.settings import ModelSettings, Settings
from tasks.specs import Stage

REFRESH_S = 1.0


class Admission:
    """Tracks the live workers, at most a second late, and sends this process's heartbeats."""

    def __init__(self, settings: Settings, store: JobStore, name: str) -> None:
        self._settings = settings
        self._store = store
        # Long enough to outlast a restart of Redis: when a process counts as dead, its requests are cancelled.
        self._presence = Worker(name, "api", ttl_s=60)
        self.workers: list[Worker] = []

    async def refresh(self) -> None:
        """Send a heartbeat, and read the list of live workers."""
        await self._store.announce(self._presence)
        self.workers = [worker for worker in await self._store.workers() if worker.queues]

    def model(self, name: Any) -> ModelSettings:
        """Return the settings of a model by name or alias; without a name, those of the only served model.

        Raises:
            InvalidRequest: there is no name, and not exactly one served model.
            ModelNotFound: no served model has this name.
        """
        if name is None and len(self._settings.models) == 1:
            return self._settings.models[0]
        if not isinstance(name, str) or not name:
            raise InvalidRequest("model must be the name of a served model. GET /v1/models lists them.", param="model")
        model = self._settings.model_named(name)
        if model is None:
            raise ModelNotFound(
                f"The model {name!r} does not exist. GET /v1/models lists the served models.", param="model"
            )
        return model

    def missing(self, stages: tuple[Stage, ...], model: str, job_class: str) -> list[Stage]:
        """Return the stages whose queues no live worker serves."""
        served = {queue for worker in self.workers for queue in worker.queues}
        return [stage for stage in stages if queue_for(stage, model, job_class) not in served]

    async def require_workers(self, stages: tuple[Stage, ...], model: str, job_class: str) -> None:
        """Check that every stage has a live worker, refreshing the list before refusing a request.

        Raises:
            NoLiveWorker: a stage has none.
        """
        if not self.missing(stages, model, job_class):
            return
        await self.refresh()
        if missing := self.missing(stages, model, job_class):
            raise NoLiveWorker(
                f"No live worker serves the stages {', '.join(missing)} of model {model!r}. Try again later.",
                retry_after_s=5,
            )
