"""How a worker takes messages: in the order of its queues, never more than it has slots, and without losing any."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from queue import Queue
from typing import Any

import pytest

from tasks.broker.app import create_app, gpu_queues
from tasks.ledger.blocking_store import BlockingLedger
from tasks.ledger.redis_store import RedisStore, connect
from tasks.pipeline import Pipeline, Submission
from tasks.settings import Settings
from tests.conftest import RedisServer, quick_settings
from workers.generate.slots import Slots
from workers.runtime.delivery import Delivery, Headers, read_headers

QUEUES = tuple(gpu_queues(["tiny"]))
WAIT_S = 20.0


@pytest.fixture
async def settings(redis_server: RedisServer) -> AsyncIterator[Settings]:
    model = {"name": "tiny", "tokenizer": "/nowhere", "engine": {"kind": "scripted", "concurrency": 4}}
    settings = quick_settings(redis_server.url, models=[model])
    client = connect(settings.redis_url)
    await client.flushdb()
    await client.aclose()
    yield settings


class Worker:
    """Threads that record what they run, and hold it until the test releases it."""

    def __init__(self, settings: Settings, *, threads: int = 1, held: bool = False, **options: Any) -> None:
        self.ran: Queue[str] = Queue()
        self.holding = held
        self.go_on = threading.Semaphore(0)
        self.ledger = BlockingLedger(settings)
        self.delivery = Delivery(self.ledger, "w", QUEUES, self._run, threads=threads, **options)

    def _run(self, headers: Headers) -> None:
        self.ran.put(headers["job"])
        if self.holding:
            self.go_on.acquire()

    def next(self) -> str:
        return self.ran.get(timeout=WAIT_S)

    def close(self) -> None:
        self.delivery.stop()
        self.holding = False
        self.go_on.release(64)
        self.delivery.join()
        self.ledger.close()


@pytest.fixture
async def submit(settings: Settings) -> AsyncIterator[Callable[..., Any]]:
    store = RedisStore(settings)
    pipeline = Pipeline(settings, create_app(settings), store)

    async def submit(job_class: str = "interactive") -> str:
        stages, payloads = ("generate",), {"prompt": b"", "generate": b"{}"}
        return await pipeline.submit(
            Submission("/v1/x", "tiny", b"", False, stages, payloads=payloads, job_class=job_class)
        )

    submit.store = store  # type: ignore[attr-defined]
    yield submit
    await store.close()


async def test_interactive_work_goes_before_batch_work(settings: Settings, submit: Any) -> None:
    batch = [await submit("batch") for _ in range(3)]
    interactive = [await submit() for _ in range(3)]
    worker = Worker(settings)
    worker.delivery.start()
    assert [worker.next() for _ in range(6)] == [*interactive, *batch]
    worker.close()


async def test_a_thread_takes_its_next_message_when_it_can_run_it(settings: Settings, submit: Any) -> None:
    ids = [await submit() for _ in range(5)]
    worker = Worker(settings, threads=2, held=True)
    worker.delivery.start()
    assert {worker.next(), worker.next()} == set(ids[:2])
    worker.go_on.release()
    assert worker.next() == ids[2]
    assert worker.ran.empty() and await submit.store.queued(QUEUES) == [2, 0], "what waits, waits in its queue"
    worker.close()


async def test_slots_limit_what_is_taken_and_a_freed_slot_is_filled_at_once(settings: Settings, submit: Any) -> None:
    busy: Counter[str] = Counter()
    slots = Slots(settings.models, 0.5, lambda: busy)
    batch = [await submit("batch") for _ in range(3)]
    worker = Worker(settings, accepts=slots.accepts)
    run = worker.delivery._run

    def hold(headers: Headers) -> None:
        busy["tiny"] += 1
        run(headers)

    worker.delivery._run = hold
    worker.delivery.start()
    assert [worker.next(), worker.next()] == batch[:2]
    interactive = [await submit() for _ in range(3)]
    assert [worker.next(), worker.next()] == interactive[:2], "batch work leaves half of the slots"
    while not worker.delivery.narrowed:
        pass
    assert busy["tiny"] == 4 and await submit.store.queued(QUEUES) == [1, 1]
    busy["tiny"] -= 1
    worker.delivery.wake()
    assert worker.next() == interactive[2]
    busy["tiny"] -= 3
    worker.delivery.wake()
    assert worker.next() == batch[2]
    worker.close()


async def test_a_stopped_worker_takes_nothing_and_ends_at_once(settings: Settings, submit: Any) -> None:
    worker = Worker(settings, threads=3)
    worker.delivery.start()
    job_id = await submit()
    assert worker.next() == job_id
    worker.close()
    assert not any(thread.is_alive() for thread in worker.delivery._threads)
    await submit()
    assert await submit.store.queued(QUEUES) == [1, 0]


async def test_what_was_popped_as_the_worker_stopped_goes_back(settings: Settings, submit: Any) -> None:
    job_id = await submit()
    worker = Worker(settings)
    pop = worker.ledger.pop

    def stop_meanwhile(*arguments: Any) -> Any:
        popped = pop(*arguments)
        worker.delivery._stopping = True
        return popped

    worker.ledger.pop = stop_meanwhile  # type: ignore[method-assign, assignment]
    worker.delivery.start()
    worker.delivery.join()
    assert worker.ran.empty() and await submit.store.queued(QUEUES) == [1, 0]
    popped = pop("w", QUEUES, 0.01)
    headers = read_headers(popped[1]) if popped else None
    assert headers is not None and headers["job"] == job_id
    worker.ledger.close()


async def test_a_fault_in_one_run_ends_no_thread(settings: Settings, submit: Any) -> None:
    worker = Worker(settings)
    run, faults = worker.delivery._run, iter([True])

    def raise_once(headers: Headers) -> None:
        if next(faults, False):
            raise RuntimeError("a fault")
        run(headers)

    worker.delivery._run = raise_once
    worker.delivery.start()
    await submit()
    second = await submit()
    assert worker.next() == second
    worker.close()


async def test_messages_of_others_are_dropped_and_said(settings: Settings, submit: Any) -> None:
    client = connect(settings.redis_url)
    for body in (b"", b"no json", b"[]", b'{"headers": {}}', b'{"headers": {"job": 1, "task": "x"}}'):
        await client.lpush(QUEUES[0], body)
        assert read_headers(body) is None
    await client.aclose()
    job_id = await submit()
    worker = Worker(settings)
    worker.delivery.start()
    assert worker.next() == job_id
    worker.close()
