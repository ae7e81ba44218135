"""Real Redis, real Celery processes, a scripted engine: what a client sees while processes die and restart."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
import redis
from tokenizers import Tokenizer

from api.cli.yard import free_port
from tasks.ledger import keys
from tests.conftest import RedisServer, redis_binary
from tests.integration.harness import Yard, echoed, scripted_model, write_tokenizer

PROMPT = "the yard runs every request through render and generate and derender, number {}: café 東京 🙂 "


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    binary = redis_binary()
    if binary is None:
        pytest.skip("no Redis server")
    folder = tmp_path_factory.mktemp("yard")
    (folder / "redis").mkdir()
    redis = RedisServer(binary, folder / "redis")
    redis.start()
    tokenizer = write_tokenizer(folder / "tokenizer")
    models = [
        scripted_model("echo", tokenizer, chunk_tokens=[1, 3, 2], delay_s=0.05),
        scripted_model("slow", tokenizer, chunk_tokens=[3, 5], delay_s=0.6),
        scripted_model("down", tokenizer, faults=[{"kind": "unavailable", "after_tokens": 0}]),
        scripted_model("broken", tokenizer, faults=[{"kind": "fail", "after_tokens": 3}]),
        scripted_model(
            "flaky",
            tokenizer,
            delay_s=0.01,
            faults=[{"kind": "drop", "after_tokens": 25, "once_file": str(folder / "dropped")}],
        ),
    ]
    yard = Yard(folder, redis, models)
    yard.start_all()
    yield yard
    yard.stop()
    redis.stop()


@pytest.fixture(scope="module")
def tokenizer(yard: Yard) -> Tokenizer:
    return Tokenizer.from_file(str(yard.folder / "tokenizer" / "tokenizer.json"))


@pytest.fixture
async def http(yard: Yard) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        await yard.until(session, lambda report: report["status"] == "ok" and len(report["workers"]) == 4)
        yield session


def streams_of(report: dict[str, Any]) -> dict[int, int]:
    return {worker["pid"]: worker["streams"] for worker in report["workers"] if worker["role"] == "cpu"}


def busy_of(report: dict[str, Any]) -> dict[int, int]:
    return {worker["pid"]: sum(worker["busy"].values()) for worker in report["workers"] if worker["role"] == "gpu"}


async def test_an_answer_is_exact_streamed_and_not(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    prompt = PROMPT.format(0)
    expected = echoed(tokenizer, prompt, 40)
    answer = await yard.chat(http, prompt, 40)
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 40
    assert await yard.stream(http, prompt, 40) == expected


async def test_choices_and_stop_strings(yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer) -> None:
    prompt = PROMPT.format(1)
    answer = await yard.chat(http, prompt, 30, n=3, temperature=1)
    for choice in answer["choices"]:
        assert choice["message"]["content"] == echoed(tokenizer, prompt, 30, choice["index"])
    stopped = await yard.chat(http, prompt, 40, stop=["generate"])
    assert stopped["choices"][0]["message"]["content"] == prompt.split("generate")[0]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert await yard.stream(http, prompt, 40, stop=["generate"]) == prompt.split("generate")[0]


async def test_two_hundred_streams_at_once(yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer) -> None:
    prompts = [PROMPT.format(number) for number in range(200)]
    streams = [asyncio.create_task(yard.stream(http, prompt, 120, model="slow")) for prompt in prompts]
    # A single GPU worker process has slots for two hundred.
    await yard.until(http, lambda report: sum(busy_of(report).values()) == 200 and sum(streams_of(report).values()) > 0)
    for prompt, text in zip(prompts, await asyncio.gather(*streams), strict=True):
        assert text == echoed(tokenizer, prompt, 120)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
async def test_a_killed_worker_leaves_no_gap_and_no_repeat(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer, kind: str
) -> None:
    prompts = [PROMPT.format(number) for number in range(12)]
    streams = [asyncio.create_task(yard.stream(http, prompt, 150)) for prompt in prompts]
    count = streams_of if kind == "cpu" else busy_of
    report = await yard.until(http, lambda report: sum(count(report).values()) == len(prompts))
    await asyncio.sleep(0.7)
    victim = yard.name_of(max(count(report), key=lambda pid: count(report)[pid]))
    yard.kill(victim)
    yard.start_worker(kind, victim)
    for prompt, text in zip(prompts, await asyncio.gather(*streams), strict=True):
        assert text == echoed(tokenizer, prompt, 150)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
async def test_what_comes_while_no_worker_of_a_stage_lives_is_done(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer, kind: str
) -> None:
    killed = [name for name in yard.processes if name.startswith(kind)]
    for name in killed:
        yard.kill(name)
    streams = [asyncio.create_task(yard.stream(http, PROMPT.format(n), 20)) for n in range(4)]
    for name in killed:
        yard.start_worker(kind, name)
    assert await asyncio.gather(*streams) == [echoed(tokenizer, PROMPT.format(n), 20) for n in range(4)]


async def test_a_request_that_gets_further_is_never_exhausted(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    job_id = await yard.submit(http, PROMPT.format(5), 300)
    with redis.Redis.from_url(yard.redis.url) as ledger:
        for lost in range(1, 5):  # more than may be lost without progress
            await yard.until(http, lambda report: sum(busy_of(report).values()) == 1)
            written = ledger.xlen(keys.TOKENS + job_id)
            while lost > 1 and ledger.xlen(keys.TOKENS + job_id) == written:
                await asyncio.sleep(0.02)
            report = await yard.until(http, lambda report: sum(busy_of(report).values()) == 1)
            victim = yard.name_of(max(busy_of(report), key=lambda pid: busy_of(report)[pid]))
            yard.kill(victim)
            yard.start_worker("gpu", victim)
            while (await yard.job(http, job_id))["stages"]["generate"]["attempts"] == lost:
                await asyncio.sleep(0.1)
    job = await yard.finished(http, job_id)
    assert job["status"] == "succeeded" and job["stages"]["generate"]["attempts"] == 5
    result = await yard.job(http, job_id, "/result")
    assert result["choices"][0]["message"]["content"] == echoed(tokenizer, PROMPT.format(5), 300)


async def test_a_stopping_worker_gives_its_streams_to_another(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    streams = [asyncio.create_task(yard.stream(http, PROMPT.format(n), 400)) for n in range(4)]
    report = await yard.until(http, lambda report: sum(busy_of(report).values()) == 4)
    victim = yard.name_of(max(busy_of(report), key=lambda pid: busy_of(report)[pid]))
    process = yard.processes.pop(victim)
    process.terminate()
    yard.start_worker("gpu", victim)
    texts = await asyncio.gather(*streams)
    assert process.wait(30) == 0
    assert texts == [echoed(tokenizer, PROMPT.format(n), 400) for n in range(4)]


async def test_a_stopping_worker_ends_what_soon_ends(yard: Yard, http: aiohttp.ClientSession) -> None:
    job_id = await yard.submit(http, PROMPT.format(0), 160)
    while (await yard.job(http, job_id))["stages"]["generate"]["state"] != "running":
        await asyncio.sleep(0.05)
    told_at = time.time()
    stopping = {name: yard.processes.pop(name) for name in list(yard.processes) if name.startswith("gpu")}
    for name, process in stopping.items():
        process.terminate()
        yard.start_worker("gpu", name)
    job = await yard.finished(http, job_id)
    assert job["status"] == "succeeded" and job["stages"]["generate"]["started_at"] < told_at < job["ended_at"]
    assert [process.wait(30) for process in stopping.values()] == [0, 0]


async def test_nothing_accepted_is_lost_when_redis_restarts(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    streams = [asyncio.create_task(yard.stream(http, PROMPT.format(number), 120)) for number in range(20)]
    ids = [await yard.submit(http, PROMPT.format(number), 60) for number in range(40)]
    await yard.until(http, lambda report: sum(busy_of(report).values()) > 20)
    yard.redis.kill()
    await asyncio.sleep(0.5)
    yard.redis.start()
    for number, text in enumerate(await asyncio.gather(*streams)):
        assert text == echoed(tokenizer, PROMPT.format(number), 120)
    for number, job_id in enumerate(ids):
        job = await yard.finished(http, job_id)
        assert job["status"] == "succeeded", job
        result = await yard.job(http, job_id, "/result")
        assert result["choices"][0]["message"]["content"] == echoed(tokenizer, PROMPT.format(number), 60)
    assert [name for name, process in yard.processes.items() if process.poll() is not None] == []


async def test_an_engine_that_drops_a_stream_is_asked_for_the_rest(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    assert await yard.stream(http, PROMPT.format(8), 60, model="flaky") == echoed(tokenizer, PROMPT.format(8), 60)
    assert (yard.folder / "dropped").exists()


async def test_bad_requests_and_engines_in_openai_s_envelope(yard: Yard, http: aiohttp.ClientSession) -> None:
    async def fails(status: int, param: str | None, **more: Any) -> dict[str, Any]:
        answer = await yard.chat(http, more.pop("prompt", PROMPT.format(0)), more.pop("max_tokens", 8), **more)
        assert answer["status"] == status, answer
        assert set(answer["error"]) == {"message", "type", "param", "code"} and answer["error"]["param"] == param
        return answer

    await fails(404, "model", model="nobody")
    await fails(400, "temperature", temperature="warm")
    await fails(400, "messages.0.role", messages=[{"content": "no role"}])
    assert "4096" in (await fails(400, "input_tokens", prompt="the yard " * 3000))["error"]["message"]
    down = await fails(503, None, model="down")
    assert int(down["headers"]["Retry-After"]) > 0
    assert int((await fails(503, None, model="down", stream=True))["headers"]["Retry-After"]) > 0
    await fails(502, None, model="broken")


async def test_flower_shows_stages_and_models_and_no_prompt(yard: Yard, http: aiohttp.ClientSession) -> None:
    port = free_port()
    yard.environment["TOKENYARD_FLOWER__PORT"] = str(port)
    yard.start("flower", (sys.executable, "-m", "api.cli.main", "flower"))
    url = f"http://127.0.0.1:{port}/api/tasks"
    login = {"Authorization": aiohttp.encode_basic_auth("tokenyard", "tokenyard")}
    shown = ""
    give_up_at = time.monotonic() + 40
    while not all(name in shown for name in ("render[echo]", "generate[echo]", "derender[echo]")):
        assert time.monotonic() < give_up_at, f"{shown[-2000:]}\n{yard.logs()}"
        await yard.chat(http, "a secret that nobody may see", 4)
        try:
            async with http.get(url, headers=login) as reply:
                shown = await reply.text()
        except aiohttp.ClientError:
            await asyncio.sleep(0.3)
    assert "secret" not in shown and "model=echo" in shown
    async with http.get(url) as reply:
        assert reply.status == 401
    async with http.post(
        f"http://127.0.0.1:{port}/api/task/async-apply/tokenyard.render", headers=login, json={}
    ) as reply:
        assert reply.status == 403
    yard.kill("flower")


async def test_a_client_that_goes_away_frees_the_engine(yard: Yard, http: aiohttp.ClientSession) -> None:
    for stream in (True, False):
        request = asyncio.create_task(
            yard.stream(http, PROMPT.format(0), 2000) if stream else yard.chat(http, PROMPT.format(0), 2000)
        )
        await yard.until(http, lambda report: sum(busy_of(report).values()) == 1)
        await asyncio.sleep(0.3)
        request.cancel()
        await yard.until(http, lambda report: sum(busy_of(report).values()) == 0, timeout_s=20)


async def test_a_cancelled_job_frees_the_engine(yard: Yard, http: aiohttp.ClientSession) -> None:
    job_id = await yard.submit(http, PROMPT.format(0), 2000)
    await yard.until(http, lambda report: sum(busy_of(report).values()) == 1)
    async with http.delete(f"{yard.url}/v1/jobs/{job_id}") as reply:
        assert (await reply.json())["status"] == "cancelled"
    await yard.until(http, lambda report: sum(busy_of(report).values()) == 0, timeout_s=20)


async def test_a_deadline_ends_a_running_job(yard: Yard, http: aiohttp.ClientSession) -> None:
    job = {
        "endpoint": "/v1/chat/completions",
        "body": yard.body(PROMPT.format(0), 2000),
        "timeout_s": 1.0,
    }
    async with http.post(f"{yard.url}/v1/jobs", json=job) as reply:
        job_id = (await reply.json())["id"]
    began = time.monotonic()
    done = await yard.finished(http, job_id, timeout_s=15)
    assert done["status"] == "expired" and time.monotonic() - began < 15
    await yard.until(http, lambda report: sum(busy_of(report).values()) == 0, timeout_s=20)


async def test_a_followed_job_tells_its_life_and_resumes(
    yard: Yard, http: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    job_id = await yard.submit(http, PROMPT.format(3), 30, stream=True)

    async def follow(after: int) -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []
        headers = {"Last-Event-ID": str(after)}
        async with http.get(f"{yard.url}/v1/jobs/{job_id}/events", headers=headers) as reply:
            async for line in reply.content:
                if line.startswith(b"id: "):
                    seen.append((int(line[4:]), ""))
                elif line.startswith(b"event: "):
                    seen[-1] = (seen[-1][0], line[7:].decode().strip())
        return seen

    events = await follow(0)
    assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
    kinds = [kind for _, kind in events]
    assert kinds[-2:] == ["response", "done"] and "chunk" in kinds and kinds[0] == "status"
    assert await follow(5) == events[5:]
    result = await yard.job(http, job_id, "/result")
    assert result["choices"][0]["message"]["content"] == echoed(tokenizer, PROMPT.format(3), 30)
