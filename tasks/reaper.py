"""Recovers stages whose worker died and messages that the broker lost, and ends jobs whose deadline has passed.

Redis has no acknowledgements: a message is lost when a worker is killed between popping it and claiming its stage. The
ledger records for every stage when its message must have been claimed or its lease renewed; the reaper checks the
stages that are due. Every process may run one: the ledger gives a due stage to one reaper at a time.
"""

from __future__ import annotations

from tasks.errors import DeadlineExceeded
from tasks.pipeline import Pipeline
from tasks.telemetry import get_logger

log = get_logger(__name__)


async def reap(pipeline: Pipeline, limit: int = 500) -> int:
    """Check once what is due; return the number of stages that were redispatched."""
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
