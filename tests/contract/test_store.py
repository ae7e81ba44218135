"""The contract suite that every implementation of the ledger passes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tasks.broker.app import create_app
from tasks.errors import Conflict, EngineFailed, QueueFull, error_to_json
from tasks.ledger import keys
from tasks.ledger.bus import Bus, parse_message
from tasks.ledger.memory_store import MemoryStore
from tasks.ledger.redis_store import RedisBus, RedisStore, connect
from tasks.ledger.store import Claim, ClaimLost, Commit, JobStore, Refused, Status, Worker
from tasks.pipeline import Pipeline, Submission
from tasks.reaper import reap
from tests.conftest import quick_settings


class Yard:
    """A ledger with a pipeline, inboxes, and access to the queues."""

    def __init__(self, store: JobStore, settings: Any) -> None:
        self.store = store
        self.settings = settings
        self.pipeline = Pipeline(settings, create_app(settings), store)

    def bus(self, name: str) -> Bus:
        if isinstance(self.store, MemoryStore):
            return self.store.bus(name)
        return RedisBus(self.settings, name)

    async def pop(self, queue: str) -> str | None:
        """Pop a message as a worker does, and return its job's id."""
        if isinstance(self.store, MemoryStore):
            message = self.store.take(queue)
            return message.job_id if message else None
        client = connect(self.settings.redis_url)
        raw: Any = await client.rpop(queue)
        await client.aclose()
        return json.loads(raw)["headers"]["job"] if raw else None

    async def submit(self, **changes: Any) -> str:
        base: dict[str, Any] = {
            "endpoint": "/v1/chat/completions",
            "model": "tiny",
            "body": b'{"x": 1}',
            "stream": False,
            "stages": ("render", "generate", "derender"),
        }
        return await self.pipeline.submit(Submission(**{**base, **changes}))

    async def claim(self, job_id: str, stage: str, owner: str = "w1", *reads: str) -> Claim:
        claim = await self.store.claim(job_id, stage, owner, reads)
        assert isinstance(claim, Claim), claim
        return claim

    async def rendered(self, **changes: Any) -> str:
        """Submit a job and complete its render stage."""
        job_id = await self.submit(**changes)
        await self.pop("render")
        claim = await self.claim(job_id, "render")
        await self.store.commit(
            job_id, "render", "w1", Commit(done=True, messages=self.pipeline.next_messages(claim.job, "render"))
        )
        return job_id


def fruitless_of(claim: Claim) -> tuple[int, int]:
    """The attempt's number, and how many in a row have made no progress."""
    return claim.attempt, claim.job.records[claim.stage].fruitless


@pytest.fixture(params=["memory", "redis"])
async def yard(request: pytest.FixtureRequest) -> AsyncIterator[Yard]:
    if request.param == "memory":
        settings = quick_settings()
        yield Yard(MemoryStore(settings), settings)
        return
    server = request.getfixturevalue("redis_server")
    settings = quick_settings(server.url)
    client = connect(settings.redis_url)
    await client.flushdb()
    await client.aclose()
    store = RedisStore(settings)
    yield Yard(store, settings)
    await store.close()


async def test_a_job_goes_through_its_stages_and_each_hand_over_dispatches_the_next(yard: Yard) -> None:
    job_id = await yard.submit()
    assert await yard.pop("render") == job_id
    claim = await yard.claim(job_id, "render", "w1", "request", "checkpoint")
    assert claim.payloads == {"request": b'{"x": 1}'} and claim.attempt == 1
    assert await yard.pop("generate.tiny.interactive") is None
    messages = yard.pipeline.next_messages(claim.job, "render")
    await yard.store.commit(
        job_id, "render", "w1", Commit(payloads={"prompt": b"\x01"}, prompt_tokens=7, done=True, messages=messages)
    )
    assert await yard.pop("generate.tiny.interactive") == job_id
    claim = await yard.claim(job_id, "generate", "w2", "prompt")
    assert claim.payloads == {"prompt": b"\x01"} and claim.job.prompt_tokens == 7
    messages = yard.pipeline.next_messages(claim.job, "generate")
    await yard.store.commit(job_id, "generate", "w2", Commit(tokens=[b'{"t":[1]}'], done=True, messages=messages))
    assert await yard.pop("derender") == job_id
    await yard.claim(job_id, "derender", "w3")
    assert [entry.data for entry in await yard.store.read_tokens(job_id, 0)] == [b'{"t":[1]}']
    await yard.store.commit(
        job_id, "derender", "w3", Commit(events=[b"r{}"], done=True, status=Status.SUCCEEDED, completion_tokens=1)
    )
    job = await yard.store.get(job_id)
    assert job is not None and job.status is Status.SUCCEEDED and job.completion_tokens == 1
    assert [entry.data for entry in await yard.store.read_events(job_id, 0)] == [b"r{}", b"d{}"]
    assert await yard.store.payload(job_id, "request") is None  # what the user wrote is not kept


async def test_a_streamed_job_dispatches_its_derender_beside_generate(yard: Yard) -> None:
    job_id = await yard.rendered(stream=True)
    assert await yard.pop("generate.tiny.interactive") == job_id
    assert await yard.pop("derender") == job_id
    claim = await yard.claim(job_id, "generate")
    assert yard.pipeline.next_messages(claim.job, "generate") == []


async def test_a_job_that_begins_with_generate_dispatches_what_follows_it_at_once(yard: Yard) -> None:
    payloads = {"prompt": b"\x01", "generate": b"{}"}
    job_id = await yard.submit(stages=("generate", "derender"), followed=True, payloads=payloads)
    assert await yard.pop("generate.tiny.interactive") == job_id
    assert await yard.pop("derender") == job_id
    claim = await yard.claim(job_id, "generate", "w1", "prompt", "generate")
    assert claim.payloads == payloads and yard.pipeline.next_messages(claim.job, "generate") == []
    job_id = await yard.submit(stages=("generate", "derender"), payloads=payloads)
    assert await yard.pop("generate.tiny.interactive") == job_id
    assert await yard.pop("derender") is None
    claim = await yard.claim(job_id, "generate")
    assert [message.stage for message in yard.pipeline.next_messages(claim.job, "generate")] == ["derender"]


async def test_events_that_come_with_tokens_are_written_once(yard: Yard) -> None:
    job_id = await yard.submit(stages=("generate",), stream=True)
    await yard.claim(job_id, "generate", "g")
    first = Commit(tokens=[b"1", b"2"], tokens_from=0, events=[b"c1", b"c2"])
    for _ in range(2):
        await yard.store.commit(job_id, "generate", "g", first)
    last = Commit(tokens=[b"3"], tokens_from=2, events=[b"c3"], done=True, status=Status.SUCCEEDED)
    for _ in range(2):
        await yard.store.commit(job_id, "generate", "g", last)
    assert [entry.data for entry in await yard.store.read_events(job_id, 0)] == [b"c1", b"c2", b"c3", b"d{}"]


async def test_jobs_are_found_by_what_their_clients_call_them(yard: Yard) -> None:
    first, second = [await yard.submit(request_id="mine") for _ in range(2)]
    await yard.submit()
    assert sorted(await yard.store.requested("mine")) == sorted([first, second])
    assert await yard.store.requested("yours") == [] == await yard.store.requested("")


async def test_one_owner_at_a_time_and_a_dead_owner_is_replaced_after_its_lease(yard: Yard) -> None:
    job_id = await yard.submit()
    await yard.claim(job_id, "render", "w1")
    assert await yard.store.claim(job_id, "render", "w2", ()) == Refused("held")
    await asyncio.sleep(0.25)
    assert await yard.store.renew("w1", [(job_id, "render")]) == []
    await asyncio.sleep(0.25)
    assert await yard.store.claim(job_id, "render", "w2", ()) == Refused("held")
    await asyncio.sleep(0.3)
    assert (await yard.claim(job_id, "render", "w2")).attempt == 2
    assert await yard.store.renew("w1", [(job_id, "render")]) == [(job_id, "render")]
    with pytest.raises(ClaimLost):
        await yard.store.commit(job_id, "render", "w1", Commit(done=True))


async def test_a_claim_that_is_asked_for_again_by_its_owner_is_the_same_attempt(yard: Yard) -> None:
    job_id = await yard.submit()
    assert (await yard.claim(job_id, "render", "w1")).attempt == 1
    assert (await yard.claim(job_id, "render", "w1")).attempt == 1


async def test_attempts_are_counted_and_end(yard: Yard) -> None:
    job_id = await yard.submit()
    for attempt in (1, 2, 3):
        assert (await yard.claim(job_id, "render", f"w{attempt}")).attempt == attempt
        await asyncio.sleep(0.45)
    assert await yard.store.claim(job_id, "render", "w4", ()) == Refused("exhausted")


async def test_a_commit_that_is_sent_twice_is_applied_once(yard: Yard) -> None:
    job_id = await yard.rendered(stream=True, listener="api")
    await yard.claim(job_id, "generate", "g")
    await yard.claim(job_id, "derender", "d")
    tokens = Commit(tokens=[b"1", b"2"], tokens_from=0)
    for _ in range(2):
        await yard.store.commit(job_id, "generate", "g", tokens)
    await yard.store.commit(job_id, "generate", "g", Commit(tokens=[b"3"], tokens_from=2))
    assert [entry.data for entry in await yard.store.read_tokens(job_id, 1)] == [b"2", b"3"]
    events = Commit(events=[b"c1"], consumed=(0, 2), payloads={"checkpoint": b"at 2"})
    for _ in range(2):
        await yard.store.commit(job_id, "derender", "d", events)
    last = Commit(events=[b"c2"], consumed=(2, 3), done=True, status=Status.SUCCEEDED)
    for _ in range(2):
        await yard.store.commit(job_id, "derender", "d", last)
    assert [entry.data for entry in await yard.store.read_events(job_id, 0)] == [b"c1", b"c2", b"d{}"]


async def test_a_checkpoint_that_another_worker_moved_is_not_moved_back(yard: Yard) -> None:
    job_id = await yard.rendered(stream=True)
    await yard.claim(job_id, "derender", "d")
    await yard.store.commit(job_id, "derender", "d", Commit(events=[b"c1"], consumed=(0, 5)))
    with pytest.raises(ClaimLost):
        await yard.store.commit(job_id, "derender", "d", Commit(events=[b"cX"], consumed=(2, 7)))
    assert len(await yard.store.read_events(job_id, 0)) == 1


async def test_those_whom_it_concerns_are_told(yard: Yard) -> None:
    api, follower, gpu = yard.bus("api"), yard.bus("d"), yard.bus("g")
    job_id = await yard.rendered(stream=True, listener="api")
    await yard.claim(job_id, "derender", "d")
    await yard.claim(job_id, "generate", "g")
    await yard.store.commit(job_id, "generate", "g", Commit(tokens=[b'{"t":[1]}', b'{"t":[2]}']))
    (message,) = map(parse_message, await follower.receive(1))
    assert (message.kind, message.job_id, message.first_seq) == ("t", job_id, 1)
    assert message.records == (b'{"t":[1]}', b'{"t":[2]}')
    await yard.store.commit(job_id, "derender", "d", Commit(events=[b"c1"], consumed=(0, 2)))
    await yard.pipeline.cancel(job_id)
    received: list[Any] = []
    while len(received) < 2:
        received += map(parse_message, await api.receive(1))
    assert [(m.kind, m.first_seq) for m in received] == [("e", 1), ("e", 2)]
    assert received[1].records[0].startswith(b'e{"kind"') and b"Cancelled" in received[1].records[0]
    (message,) = map(parse_message, await gpu.receive(1))
    assert (message.kind, message.job_id, message.status) == ("x", job_id, "cancelled")
    for bus in (api, follower, gpu):
        await bus.close()


async def test_an_ended_job_takes_no_more_work(yard: Yard) -> None:
    job_id = await yard.rendered()
    await yard.claim(job_id, "generate", "g")
    assert await yard.pipeline.cancel(job_id)
    assert not await yard.pipeline.cancel(job_id)
    assert await yard.store.claim(job_id, "generate", "h", ()) == Refused("over")
    with pytest.raises(ClaimLost):
        await yard.store.commit(job_id, "generate", "g", Commit(tokens=[b"1"]))
    job = await yard.store.get(job_id)
    assert job is not None and job.status is Status.CANCELLED and job.error is not None


async def test_a_finished_stage_is_not_run_again(yard: Yard) -> None:
    job_id = await yard.rendered()
    assert await yard.store.claim(job_id, "render", "w2", ()) == Refused("done")


async def test_an_idempotency_key_names_one_request(yard: Yard) -> None:
    first = await yard.submit(idempotency_key="k", detached=True)
    assert await yard.submit(idempotency_key="k", detached=True) == first
    with pytest.raises(Conflict):
        await yard.submit(idempotency_key="k", detached=True, body=b"other")
    assert await yard.store.queued(["render"]) == [1]


async def test_a_full_queue_refuses(yard: Yard) -> None:
    settings = yard.settings.model_copy(update={"limits": yard.settings.limits.model_copy(update={"max_queued": 1})})
    pipeline = Pipeline(settings, create_app(settings), yard.store)
    request = Submission("/v1/x", "tiny", b"{}", False, ("render",))
    await pipeline.submit(request)
    with pytest.raises(QueueFull):
        await pipeline.submit(request)


async def test_a_backlog_before_the_engine_refuses(yard: Yard) -> None:
    settings = yard.settings.model_copy(update={"limits": yard.settings.limits.model_copy(update={"max_queued": 1})})
    pipeline = Pipeline(settings, create_app(settings), yard.store)
    await yard.rendered()  # waits for generate now
    with pytest.raises(QueueFull):
        await pipeline.submit(Submission("/v1/x", "tiny", b"{}", False, ("render", "generate")))
    await pipeline.submit(Submission("/v1/x", "tiny", b"{}", False, ("render", "generate"), job_class="batch"))


async def test_the_reaper_brings_back_a_lost_message_and_leaves_a_waiting_one(yard: Yard) -> None:
    first = await yard.submit()
    second = await yard.submit()
    await asyncio.sleep(0.35)
    assert await reap(yard.pipeline) == 0  # both wait in the queue
    assert await yard.pop("render") == first  # and its worker dies
    await asyncio.sleep(0.35)
    assert await reap(yard.pipeline) == 1
    assert await yard.pop("render") == first  # it keeps its place
    assert await yard.pop("render") == second


async def test_the_reaper_brings_back_the_stage_of_a_dead_worker(yard: Yard) -> None:
    job_id = await yard.submit()
    await yard.pop("render")
    await yard.claim(job_id, "render", "w1")
    assert await reap(yard.pipeline) == 0
    await asyncio.sleep(0.45)
    assert await reap(yard.pipeline) == 1
    assert await yard.pop("render") == job_id
    assert (await yard.claim(job_id, "render", "w2")).attempt == 2


async def test_a_retry_is_dispatched_when_its_delay_is_over(yard: Yard) -> None:
    job_id = await yard.submit()
    await yard.pop("render")
    claim = await yard.claim(job_id, "render", "w1")
    message = yard.pipeline.message_for(claim.job, "render")
    await yard.store.retry(job_id, "render", "w1", message, 0.3, counted=False)
    assert await reap(yard.pipeline) == 0 and await yard.pop("render") is None
    await asyncio.sleep(0.35)
    assert await reap(yard.pipeline) == 1
    assert await yard.pop("render") == job_id
    assert fruitless_of(await yard.claim(job_id, "render", "w1")) == (2, 1)
    assert await yard.store.retry(job_id, "render", "w1", message, 0, counted=True)
    assert await yard.pop("render") == job_id
    assert fruitless_of(await yard.claim(job_id, "render", "w1")) == (3, 2)


async def test_attempts_that_are_given_back_are_allowed_without_end(yard: Yard) -> None:
    job_id = await yard.submit()
    for attempt in range(1, 8):
        claim = await yard.claim(job_id, "render", f"w{attempt}")
        assert fruitless_of(claim) == (attempt, 1)
        message = yard.pipeline.message_for(claim.job, "render")
        assert await yard.store.retry(job_id, "render", f"w{attempt}", message, 0, counted=False)


async def test_counted_attempts_end_and_the_last_claim_stays(yard: Yard) -> None:
    job_id = await yard.submit()
    for attempt in (1, 2, 3):
        claim = await yard.claim(job_id, "render", f"w{attempt}")
        message = yard.pipeline.message_for(claim.job, "render")
        assert await yard.store.retry(job_id, "render", f"w{attempt}", message, 0, counted=True) is (attempt < 3)
    assert await yard.store.renew("w3", [(job_id, "render")]) == []


async def test_pages_lose_no_job_that_was_accepted_in_the_same_moment(yard: Yard) -> None:
    ids = [await yard.submit(detached=True) for _ in range(7)]
    if isinstance(yard.store, RedisStore):
        client = connect(yard.settings.redis_url)
        await client.zadd(keys.JOBS, dict.fromkeys(ids, 1.0))
        await client.delete(keys.JOB + ids[3])
        await client.aclose()
    seen: list[str] = []
    while page := await yard.store.page(2, seen[-1] if seen else None):
        seen += [job.id for job in page]
    expected = set(ids) - ({ids[3]} if isinstance(yard.store, RedisStore) else set())
    assert len(seen) == len(expected) and set(seen) == expected


PROGRESS = {
    "generate": lambda n: Commit(tokens=[b"t"], tokens_from=n),
    "derender": lambda n: Commit(consumed=(n, n + 1), events=[b"c"]),
}
IDLE = {
    "generate": lambda n: Commit(prompt_tokens=7),
    "derender": lambda n: Commit(events=[b"c"]),
}


@pytest.mark.parametrize("stage", PROGRESS)
async def test_a_stage_that_makes_progress_is_never_exhausted(yard: Yard, stage: str) -> None:
    job_id = await yard.rendered(stream=True)
    for n in range(6):
        claim = await yard.claim(job_id, stage, f"w{n}")
        assert fruitless_of(claim) == (n + 1, 1)
        await yard.store.commit(job_id, stage, f"w{n}", PROGRESS[stage](n))
        await asyncio.sleep(0.45)  # and its worker dies


@pytest.mark.parametrize("stage", IDLE)
async def test_a_stage_that_loses_its_workers_without_progress_is_set_aside(yard: Yard, stage: str) -> None:
    job_id = await yard.rendered(stream=True)
    await yard.claim(job_id, stage, "first")
    await yard.store.commit(job_id, stage, "first", PROGRESS[stage](0))
    await asyncio.sleep(0.45)
    for n in (1, 2, 3):
        assert fruitless_of(await yard.claim(job_id, stage, f"w{n}")) == (n + 1, n)
        await yard.store.commit(job_id, stage, f"w{n}", IDLE[stage](n))
        await asyncio.sleep(0.45)
    assert await yard.store.claim(job_id, stage, "w4", ()) == Refused("exhausted")


async def test_a_deadline_ends_a_job(yard: Yard) -> None:
    job_id = await yard.submit(deadline_in_s=0.2)
    await asyncio.sleep(0.25)
    assert await yard.store.claim(job_id, "render", "w1", ()) == Refused("expired")
    await reap(yard.pipeline)
    job = await yard.store.get(job_id)
    assert job is not None and job.status is Status.EXPIRED


async def test_a_detached_job_tells_its_life(yard: Yard) -> None:
    job_id = await yard.submit(detached=True)
    await yard.claim(job_id, "render", "w1")
    error = EngineFailed("it broke")
    await yard.pipeline.fail(job_id, error)
    lines = [entry.data for entry in await yard.store.read_events(job_id, 0)]
    steps = [json.loads(line[1:]) for line in lines[:-1]]
    assert [(step["status"], step["state"]) for step in steps] == [("queued", "queued"), ("running", "started")]
    assert json.loads(lines[-1][1:]) == error_to_json(error)


async def test_jobs_are_listed_newest_first(yard: Yard) -> None:
    ids = [await yard.submit(detached=True) for _ in range(5)]
    await yard.submit()
    assert [job.id for job in await yard.store.page(3, None)] == ids[:1:-1]
    assert [job.id for job in await yard.store.page(3, ids[2])] == ids[1::-1]


async def test_nothing_runs_for_a_process_that_is_gone(yard: Yard) -> None:
    await yard.store.announce(Worker("api", "api"))
    job_id = await yard.rendered(listener="api")
    detached = await yard.rendered(detached=True)
    held = [(job_id, "generate"), (detached, "generate")]
    for held_id, stage in held:
        await yard.claim(held_id, stage, "g")
    assert await yard.store.renew("g", held) == []
    await yard.store.withdraw("api")
    assert await yard.store.renew("g", held) == [(job_id, "generate")]
    job = await yard.store.get(job_id)
    assert job is not None and job.status is Status.CANCELLED


async def test_a_listener_that_comes_later_hears_the_rest(yard: Yard) -> None:
    job_id = await yard.submit()
    assert await yard.store.listen(job_id, "late") and not await yard.store.listen("job_none", "late")
    await yard.pipeline.cancel(job_id)
    bus = yard.bus("late")
    (message,) = map(parse_message, await bus.receive(1))
    assert message.job_id == job_id
    await bus.close()


async def test_workers_are_known_while_they_say_so(yard: Yard) -> None:
    worker = Worker("cpu-1", "cpu", ("render",), ("tiny",), {"pid": 7})
    await yard.store.announce(worker)
    assert await yard.store.workers() == [worker]
    await yard.store.withdraw("cpu-1")
    assert await yard.store.workers() == []
