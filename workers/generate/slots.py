"""How many requests each model's engine may work on, and which queue may send it another.

Interactive work may take all of an engine's slots. Batch work may take its share, while interactive work leaves it free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tasks.broker.app import generate_queue
from tasks.settings import ModelSettings


class Slots:
    """The slots of one worker's engines; `busy` says how many requests of each model the worker holds."""

    def __init__(self, models: Sequence[ModelSettings], batch_share: float, busy: Callable[[], Counter[str]]) -> None:
        self._busy = busy
        self._limits: dict[str, tuple[str, int]] = {}
        for model in models:
            most = model.engine.concurrency
            self._limits[generate_queue(model.name, "interactive")] = (model.name, most)
            self._limits[generate_queue(model.name, "batch")] = (model.name, max(1, int(most * batch_share)))

    def accepts(self, queue: str) -> bool:
        """Whether a slot is free for the next message of this queue."""
        model, most = self._limits[queue]
        return self._busy()[model] < most
