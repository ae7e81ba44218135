"""What is refused before it enters a queue: bodies that are too large, models that nobody serves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import Request

from tasks.broker.routing import queue_for
from tasks.errors import BrokerUnavailable, InvalidRequest, ModelNotFound, NoLiveWorker, PayloadTooLarge
from tasks.ledger.store import JobStore, Worker
from tasks.settings import ModelSettings, Settings
from tasks.specs import Stage

REFRESH_S = 1.0


class Admission:
    """Knows which workers are alive, a second late at most, and lets them know of this process."""

    def __init__(self, settings: Settings, store: JobStore, name: str) -> None:
        self._settings = settings
        self._store = store
        # Long enough to outlast a restart of Redis: whoever is missed has its requests cancelled.
        self._presence = Worker(name, "api", ttl_s=60)
        self.workers: list[Worker] = []

    async def refresh(self) -> None:
        await self._store.announce(self._presence)
        self.workers = [worker for worker in await self._store.workers() if worker.queues]

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
            except BrokerUnavailable:
                continue  # submitting says so to the client

    def model(self, name: Any) -> ModelSettings:
        """The settings of a served model, by name or alias; the only one that is served if there is no name."""
        if name is None and len(self._settings.models) == 1:
            return self._settings.models[0]
        if not isinstance(name, str) or not name:
            raise InvalidRequest("model: name a served model", param="model")
        model = self._settings.model_named(name)
        if model is None:
            raise ModelNotFound(f"The model {name!r} does not exist.", param="model")
        return model

    def missing(self, stages: tuple[Stage, ...], model: str, job_class: str) -> list[Stage]:
        """The stages that no live worker would take up."""
        served = {queue for worker in self.workers for queue in worker.queues}
        return [stage for stage in stages if queue_for(stage, model, job_class) not in served]

    async def require_workers(self, stages: tuple[Stage, ...], model: str, job_class: str) -> None:
        """Raises NoLiveWorker if a stage has none; what is known is brought up to date before anybody is refused."""
        if not self.missing(stages, model, job_class):
            return
        await self.refresh()
        if missing := self.missing(stages, model, job_class):
            raise NoLiveWorker(f"No worker is alive for {', '.join(missing)} of {model!r}.", retry_after_s=5)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The request's body; refuses it as soon as it is known to be too large."""
    too_large = PayloadTooLarge(f"The request body is larger than {max_bytes} bytes.")
    if int(request.headers.get("content-length") or 0) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def json_object_from(body: bytes) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return value
