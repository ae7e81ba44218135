"""Counts the slots of each model's engine, and decides which queues a worker may take from.

Interactive work may fill all of an engine's slots. Batch work gets a slot only while less than its share is busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tasks.broker.app import generate_queue
from tasks.settings import ModelSettings


class Slots:
    """The slots of one worker's engines; `busy` returns how many requests of each model the worker holds."""

    def __init__(self, models: Sequence[ModelSettings], batch_share: float, busy: Callable[[], Counter[str]]) -> None:
        self._busy = busy
        self._limits: dict[str, tuple[str, int]] = {}
        for model in models:
            slots = model.engine.concurrency
            self._limits[generate_queue(model.name, "interactive")] = (model.name, slots)
            self._limits[generate_queue(model.name, "batch")] = (model.name, max(1, int(slots * batch_share)))

    def accepts(self, queue: str) -> bool:
        """Return whether a slot is free for the next message of this queue."""
        model, limit = self._limits[queue]
        return self._busy()[model] < limit
