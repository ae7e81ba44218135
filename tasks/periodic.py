"""Background work of a process: a step that is repeated, whatever happens in one of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tasks.errors import BrokerUnavailable
from tasks.telemetry import get_logger

log = get_logger(__name__)

PAUSE_AFTER_FAULT_S: Final = 1.0


async def repeat(name: str, step: Callable[[], Awaitable[object]], interval_s: float) -> None:
    """Repeat a step with `interval_s` between its turns; neither an unreachable ledger nor a fault in one turn ends it."""
    while True:
        try:
            await step()
        except BrokerUnavailable:
            log.warning("step_skipped", step=name, reason="the ledger does not answer")
        except Exception as error:
            log.error("step_raised", step=name, exc_info=error)
            await asyncio.sleep(PAUSE_AFTER_FAULT_S)
        await asyncio.sleep(interval_s)
