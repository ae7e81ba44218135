"""Background steps go on, whatever happens in one of their turns."""

from __future__ import annotations

import pytest

from tasks import periodic
from tasks.errors import BrokerUnavailable
from tasks.periodic import repeat


async def test_neither_an_outage_nor_a_fault_ends_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "PAUSE_AFTER_FAULT_S", 0.001)
    faults = [BrokerUnavailable(), RuntimeError("a fault"), None, OSError(), KeyboardInterrupt()]

    async def step() -> None:
        fault = faults.pop(0)
        if fault is not None:
            raise fault

    with pytest.raises(KeyboardInterrupt):
        await repeat("step", step, 0.001)
    assert faults == []
