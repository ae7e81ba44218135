"""Brings back what was lost: stages whose worker died, messages that the broker lost, jobs whose time is up.

Celery on Redis loses a message when a worker is killed between taking it off the queue and noting that it has it,
whatever the settings. The ledger knows of every stage when somebody must have it; the reaper looks at those that are
due. Every process may run one: what is handed out to one is not handed out to another for a while.
"""

from __future__ import annotations

import asyncio

from tasks.errors import BrokerUnavailable, DeadlineExceeded
from tasks.pipeline import Pipeline
from tasks.telemetry import get_logger

log = get_logger(__name__)


async def reap(pipeline: Pipeline, limit: int = 500) -> int:
    """Look once at what is due; returns how many messages were sent again."""
    sent = 0
    for due in await pipeline.store.due(limit):
        if not due.stage:
            if await pipeline.fail(due.job_id, DeadlineExceeded()):
                log.warning("job_expired", job_id=due.job_id)
            continue
        job = await pipeline.store.get(due.job_id)
        if job is None:
            continue
        if await pipeline.store.redispatch(pipeline.message_for(job, due.stage)):
            sent += 1
            log.warning("stage_redispatched", job_id=job.id, stage=due.stage)
    return sent


async def reap_forever(pipeline: Pipeline, interval_s: float) -> None:
    while True:
        try:
            await reap(pipeline)
        except BrokerUnavailable:
            log.warning("reaper_waited", reason="the store does not answer")
        await asyncio.sleep(interval_s)
