"""A worker's health check: it sees heartbeats of its own host and role only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tasks.ledger.redis_store import RedisStore, connect
from tasks.ledger.store import Worker
from tasks.presence import is_present
from tests.conftest import RedisServer, quick_settings


async def test_a_worker_is_present_while_it_says_so(redis_server: RedisServer) -> None:
    settings = quick_settings(redis_server.url)
    client = connect(settings.redis_url)
    await client.flushdb()
    await client.aclose()
    store = RedisStore(settings)
    host = socket.gethostname()
    await store.announce(Worker(f"cpu-{host}-1-ab", "cpu", ("render",)))
    assert await is_present(settings, "cpu", host)
    assert not await is_present(settings, "gpu", host)
    assert not await is_present(settings, "cpu", "another")
    await store.withdraw(f"cpu-{host}-1-ab")
    assert not await is_present(settings, "cpu", host)
    await store.close()


@pytest.mark.parametrize(("present", "status"), [(True, 0), (False, 1)])
async def test_it_is_a_command_that_exits_as_a_health_check_does(
    redis_server: RedisServer, present: bool, status: int
) -> None:
    store = RedisStore(quick_settings(redis_server.url))
    worker = Worker(f"gpu-{socket.gethostname()}-1-ab", "gpu", ("generate.tiny.interactive",))
    if present:
        await store.announce(worker)
    command = [sys.executable, "-m", "tasks.presence", "gpu"]
    ended = subprocess.run(command, env={**os.environ, "TOKENYARD_REDIS_URL": redis_server.url}, check=False)
    assert ended.returncode == status
    await store.withdraw(worker.id)
    await store.close()


async def test_nobody_is_present_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await is_present(quick_settings(), "cpu", "host")
