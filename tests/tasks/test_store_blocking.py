"""The blocking half of the ledger: the same claims and commits, and messages taken without a consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tasks.app import create_app
from tasks.pipeline import Pipeline, Submission
from tasks.reaper import reap
from tasks.settings import Settings
from tasks.store import Claim, ClaimLost, Commit, Refused, Status
from tasks.store_blocking import BlockingLedger
from tasks.store_redis import RedisStore, connect
from tests.conftest import RedisServer, quick_settings


@pytest.fixture
async def settings(redis_server: RedisServer) -> AsyncIterator[Settings]:
    settings = quick_settings(redis_server.url)
    client = connect(settings.redis_url)
    await client.flushdb()
    await client.aclose()
    yield settings


async def test_messages_are_taken_oldest_first_and_what_is_lost_then_is_found(settings: Settings) -> None:
    store = RedisStore(settings)
    pipeline = Pipeline(settings, create_app(settings), store)
    ledger = BlockingLedger(settings)
    ids = [await pipeline.submit(Submission("/v1/x", "tiny", b"{}", False, ("render",))) for _ in range(2)]

    def take() -> str | None:
        message = ledger.take(["derender", "render"])
        return json.loads(message)["headers"]["job"] if message else None

    assert take() == ids[0]
    claim = ledger.claim(ids[0], "render", "w", ("request",))
    assert isinstance(claim, Claim) and claim.payloads == {"request": b"{}"}
    assert ledger.claim(ids[0], "render", "other", ()) == Refused("held")
    with pytest.raises(ClaimLost):
        ledger.commit(ids[0], "render", "other", Commit(done=True))
    ledger.commit(ids[0], "render", "w", Commit(events=[b"r{}"], done=True, status=Status.SUCCEEDED))
    job = await store.get(ids[0])
    assert job is not None and job.status is Status.SUCCEEDED

    assert take() == ids[1] and take() is None  # taken, and its worker dies before it claims
    await asyncio.sleep(0.35)
    assert await reap(pipeline) == 1
    assert take() == ids[1]
    ledger.close()
    await store.close()


async def test_a_message_that_comes_while_one_waits_is_taken(settings: Settings) -> None:
    store = RedisStore(settings)
    pipeline = Pipeline(settings, create_app(settings), store)
    ledger = BlockingLedger(settings)
    assert ledger.take(["render"], wait_s=0.01) is None
    waiting = asyncio.create_task(asyncio.to_thread(ledger.take, ["derender", "render"], 60.0))
    await asyncio.sleep(0.05)
    job_id = await pipeline.submit(Submission("/v1/x", "tiny", b"{}", False, ("render",)))
    async with asyncio.timeout(20):
        message = await waiting
    assert message is not None and json.loads(message)["headers"]["job"] == job_id
    ledger.close()
    await store.close()


async def test_scripts_are_loaded_again_after_redis_lost_them(settings: Settings) -> None:
    ledger = BlockingLedger(settings)
    assert ledger.claim("none", "render", "w", ()) == Refused("gone")
    client = connect(settings.redis_url)
    await client.script_flush()
    await client.aclose()
    assert ledger.claim("none", "render", "w", ()) == Refused("gone")
    ledger.close()
