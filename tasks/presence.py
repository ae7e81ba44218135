"""`python -m tasks.presence cpu`: a health check that succeeds if this host has a live worker of this role."""

from __future__ import annotations

import asyncio
import socket
import sys

from tasks.errors import BrokerUnavailable
from tasks.ledger.redis_store import RedisStore
from tasks.settings import Settings, load_settings


async def is_present(settings: Settings, role: str, host: str) -> bool:
    """Return whether the ledger lists a live worker of this role on this host."""
    store = RedisStore(settings, patience_s=2.0)
    try:
        return any(worker.role == role and f"-{host}-" in worker.id for worker in await store.workers())
    except BrokerUnavailable:
        return False
    finally:
        await store.close()


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(is_present(load_settings(), sys.argv[1], socket.gethostname())) else 1)
