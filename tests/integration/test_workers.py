"""Real workers at their limits: one thread, few slots, Redis over a Unix socket, and what Flower shows."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from api.cli.yard import free_port
from tests.conftest import RedisServer
from tests.integration.harness import Yard, echoed, scripted_model, write_tokenizer

PROMPT = "the yard runs every request through render and generate and derender, number {}: café 東京 🙂 "
SLOTS = 3


def with_slots(model: dict[str, Any], slots: int) -> dict[str, Any]:
    return {**model, "engine": {**model["engine"], "concurrency": slots}}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("workers")
    tokenizer = write_tokenizer(folder / "tokenizer")
    models = [
        with_slots(scripted_model("narrow", tokenizer, chunk_tokens=2, delay_s=0.05), SLOTS),
        scripted_model("broken", tokenizer, faults=[{"kind": "fail", "after_tokens": 3}]),
    ]
    yard = Yard(
        folder, redis_server, models, workers={"cpu_threads": 1, "batch_share": 1.0}, redis_url=redis_server.socket_url
    )
    yard.start_all(cpu=1, gpu=1)
    try:
        yard.await_ready()
        yield yard
    finally:
        yard.stop()


@pytest.fixture(scope="module")
def tokenizer(yard: Yard) -> Tokenizer:
    return Tokenizer.from_file(str(yard.folder / "tokenizer" / "tokenizer.json"))


@pytest.fixture
async def http(yard: Yard) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield session


async def test_one_thread_serves_whole_and_streamed_answers(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    prompts = [PROMPT.format(number) for number in range(12)]
    whole = [yard.chat(http, prompt, 12) for prompt in prompts]
    streamed = [yard.stream(http, prompt, 12) for prompt in prompts]
    answers, texts = await asyncio.gather(*whole), await asyncio.gather(*streamed)
    expected = [echoed(tokenizer, prompt, 12) for prompt in prompts]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == expected == list(texts)


async def test_an_engine_never_has_more_requests_than_its_concurrency(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    ids = [await yard.submit(http, PROMPT.format(number), 20) for number in range(14)]
    jobs = [await yard.finished(http, job_id) for job_id in ids]
    assert all(job["status"] == "succeeded" for job in jobs)
    spans = [(job["stages"]["generate"]["started_at"], job["stages"]["generate"]["ended_at"]) for job in jobs]
    most = max(sum(begun <= at < ended for begun, ended in spans) for at, _ in spans)
    assert most == SLOTS


def states(tasks: dict[str, Any]) -> set[tuple[Any, Any]]:
    return {(task.get("name"), task.get("state")) for task in tasks.values()}


async def test_flower_shows_what_happened(yard: Yard, http: aiohttp.ClientSession) -> None:
    port = free_port()
    yard.environment["TOKENYARD_FLOWER__PORT"] = str(port)
    yard.start("flower", (sys.executable, "-m", "api.cli.main", "flower"))
    login = {"Authorization": aiohttp.encode_basic_auth("tokenyard", "tokenyard")}

    async def shown(path: str) -> Any:
        try:
            async with http.get(f"http://127.0.0.1:{port}{path}", headers=login) as reply:
                return await reply.json() if reply.status == 200 else {}
        except aiohttp.ClientError:
            return {}

    async def until_shown(path: str, condition: Any) -> Any:
        give_up_at = time.monotonic() + 60
        while not condition(found := await shown(path)):
            assert time.monotonic() < give_up_at, f"{states(found)}\n{yard.logs()}"
            await asyncio.sleep(0.1)
        return found

    await until_shown("/api/workers?refresh=1", lambda workers: len(workers) == 2)
    long = asyncio.create_task(yard.stream(http, PROMPT.format(0), 2000))
    await yard.chat(http, PROMPT.format(1), 4)
    assert (await yard.chat(http, PROMPT.format(2), 8, model="broken"))["status"] == 502

    expected = {
        ("render[narrow]", "SUCCESS"),
        ("generate[narrow]", "SUCCESS"),
        ("generate[narrow]", "STARTED"),
        ("generate[broken]", "FAILURE"),
    }
    tasks = await until_shown("/api/tasks?limit=1000", lambda tasks: expected <= states(tasks))
    assert ("generate[broken]", "SUCCESS") not in states(tasks)
    (failed,) = (task for task in tasks.values() if task["state"] == "FAILURE")
    assert failed["exception"] and failed["traceback"] == "" and PROMPT[:8] not in str(tasks)
    names = await until_shown("/api/workers", lambda workers: len(workers) == 2)
    workers: dict[str, Any] = {}
    for name in names:
        path = f"/api/workers?refresh=1&workername={name}"
        workers |= await until_shown(path, lambda found, name=name: found.get(name, {}).get("active"))
    queues = {queue["name"] for worker in workers.values() for queue in worker["active_queues"]}
    assert queues == {
        "derender",
        "render",
        *(f"generate.{model}.{kind}" for model in ("narrow", "broken") for kind in ("interactive", "batch")),
    }
    active = [task["name"] for worker in workers.values() for task in worker["active"]]
    assert sorted(active) == ["tokenyard.derender_stream", "tokenyard.generate"]
    long.cancel()
    yard.kill("flower")
