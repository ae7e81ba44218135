"""A served API over an in-memory ledger, with the test in the role of its workers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from api.app import create_app
from api.cli.yard import free_port
from tasks.errors import BrokerUnavailable
from tasks.ledger.bus import Bus
from tasks.ledger.memory_store import MemoryBus, MemoryStore
from tasks.ledger.store import Claim, Commit, Entry, Job, JobStore, Message, NewJob, Status, Worker
from tasks.protocol.base import JsonObject, compact_json
from tasks.settings import Settings
from tests.conftest import quick_settings

EVERY_QUEUE = ("render", "generate.tiny.interactive", "generate.tiny.batch", "derender")
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


class FragileStore(MemoryStore):
    """A ledger that tests can make unreachable."""

    down = False

    def _reach(self) -> None:
        if self.down:
            raise BrokerUnavailable(retry_after_s=5)

    async def submit(self, job: NewJob, payloads: Any, messages: Sequence[Message], max_queued: int) -> str:
        self._reach()
        return await super().submit(job, payloads, messages, max_queued)

    async def get(self, job_id: str) -> Job | None:
        self._reach()
        return await super().get(job_id)

    async def read_events(self, job_id: str, after: int) -> list[Entry]:
        self._reach()
        return await super().read_events(job_id, after)

    async def workers(self) -> list[Worker]:
        self._reach()
        return await super().workers()


class LossyBus(MemoryBus):
    """An inbox that loses the messages whose numbers, from 0, are in `lost`."""

    lost: frozenset[int] = frozenset()

    def __init__(self, inbox: deque[bytes]) -> None:
        super().__init__(inbox)
        self._count = 0

    async def receive(self, wait_s: float) -> list[bytes]:
        kept = []
        for message in await super().receive(wait_s):
            if self._count not in self.lost:
                kept.append(message)
            self._count += 1
        return kept


class Stage:
    """A served API: its client, its ledger, and what a worker would do to a claim."""

    def __init__(self, store: FragileStore, client: httpx.AsyncClient, buses: list[LossyBus]) -> None:
        self.store, self.client, self.buses = store, client, buses

    async def chat(self, **changes: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={**CHAT, **changes})

    async def submit(self, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
        body = {"endpoint": "/v1/chat/completions", "body": CHAT, **changes}
        return await self.client.post("/v1/jobs", json=body, headers=headers)

    async def take(self, queue: str = "render") -> Claim:
        """Wait for the next message of a queue, and claim its stage."""
        message = await eventually(lambda: self.store.take(queue))
        claim = await self.store.claim(message.job_id, message.stage, "w1", ("request",))
        assert isinstance(claim, Claim)
        return claim

    async def emit(self, claim: Claim, *lines: bytes, **end: Any) -> None:
        await self.store.commit(claim.job.id, claim.stage, "w1", Commit(events=lines, **end))

    async def succeed(self, claim: Claim, *lines: bytes) -> None:
        await self.emit(claim, *lines, done=True, status=Status.SUCCEEDED)

    async def fail(self, claim: Claim, error: JsonObject) -> None:
        await self.emit(claim, done=True, status=Status.FAILED, error=error)

    async def status_of(self, job_id: str) -> Status:
        job = await MemoryStore.get(self.store, job_id)
        assert job is not None
        return job.status


async def eventually(look: Callable[[], Any], within_s: float = 20.0) -> Any:
    """Call `look` until it returns something true, and return that."""
    async with asyncio.timeout(within_s):
        while not (seen := look()):
            await asyncio.sleep(0.005)
    return seen


def chunk(text: str) -> bytes:
    return b"c" + compact_json({"choices": [{"index": 0, "delta": {"content": text}}]})


async def sse_of(reply: httpx.Response) -> list[dict[str, str]]:
    """Return all server-sent events of a reply, without comments."""
    events = []
    for block in (await reply.aread()).decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            events.append(fields)
    return events


def texts_of(events: list[dict[str, str]]) -> list[str]:
    return [json.loads(e["data"])["choices"][0]["delta"]["content"] for e in events if "choices" in e["data"]]


@asynccontextmanager
async def serve(
    settings: Settings, *, queues: tuple[str, ...] = EVERY_QUEUE, down: bool = False
) -> AsyncIterator[Stage]:
    store = FragileStore(settings)
    if queues:
        await store.announce(Worker("cpu-1", "cpu", queues, ("tiny",), {"engines": {"tiny": "ok"}}))
    buses: list[LossyBus] = []

    def connect(_: Settings, name: str) -> tuple[JobStore, Bus]:
        buses.append(LossyBus(store.bus(name)._inbox))
        return store, buses[-1]

    store.down = down
    port = free_port()
    config = uvicorn.Config(
        create_app(settings, connect=connect), port=port, ws="none", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started or running.done())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        yield Stage(store, client, buses)
    server.should_exit = True
    await running


Serve = Callable[..., Awaitable[Stage]]


@pytest.fixture
async def serving() -> AsyncIterator[Serve]:
    """Serve with changed settings; everything stops after the test."""
    async with AsyncExitStack() as stack:

        async def start(*, queues: tuple[str, ...] = EVERY_QUEUE, down: bool = False, **changes: Any) -> Stage:
            settings = quick_settings(**{"queue": {"lease_s": 30}, **changes})  # nothing renews leases here
            return await stack.enter_async_context(serve(settings, queues=queues, down=down))

        yield start


@pytest.fixture
async def stage(serving: Serve) -> Stage:
    return await serving()
