"""Which queue may send an engine another request."""

from __future__ import annotations

from collections import Counter

import pytest

from tasks.broker.app import generate_queue
from tasks.settings import EngineSettings, ModelSettings
from workers.generate.slots import Slots


def model(name: str, concurrency: int) -> ModelSettings:
    return ModelSettings(name=name, tokenizer="t", engine=EngineSettings(concurrency=concurrency))


@pytest.mark.parametrize(
    ("concurrency", "share", "batch"),
    [(8, 0.75, 6), (8, 1.0, 8), (4, 0.5, 2), (3, 0.75, 2), (1, 0.75, 1), (2, 0.1, 1), (256, 0.001, 1)],
)
def test_batch_work_takes_its_share_and_at_least_one_slot(concurrency: int, share: float, batch: int) -> None:
    busy: Counter[str] = Counter()
    slots = Slots([model("m", concurrency)], share, lambda: busy)
    for taken in range(concurrency + 1):
        busy["m"] = taken
        assert slots.accepts(generate_queue("m", "interactive")) is (taken < concurrency)
        assert slots.accepts(generate_queue("m", "batch")) is (taken < batch)


def test_models_have_slots_of_their_own() -> None:
    slots = Slots([model("full", 1), model("free", 1)], 1.0, lambda: Counter({"full": 1}))
    assert [slots.accepts(generate_queue(name, "interactive")) for name in ("full", "free")] == [False, True]
