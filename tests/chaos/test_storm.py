"""Everything is killed at random, and every answer is whole, right, and told once.

Streamed jobs are followed, and resumed by their last event's id when their connection breaks; other jobs are asked for
until they have ended. Meanwhile processes are killed (SIGKILL) and started again: CPU workers, GPU workers, the API,
Redis. By default a short storm; `make chaos` is the long one. A storm follows from its seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import redis
from tokenizers import Tokenizer

from tasks.ledger import keys
from tests.conftest import RedisServer, redis_binary
from tests.integration.harness import Yard, echoed, scripted_model, write_tokenizer

DURATION_S = float(os.environ.get("TOKENYARD_CHAOS_S", "8"))
COUNT = int(os.environ.get("TOKENYARD_CHAOS_JOBS", "30"))
SEED = int(os.environ.get("TOKENYARD_CHAOS_SEED", "7"))
PROMPT = "the yard runs every request through render and generate and derender, number {}: café 東京 🙂 "
TOKENS = 90
GIVE_UP_S = 240.0
OWNED = (keys.WORKERS, keys.WATCH, keys.JOBS)
"""Keys that live as long as the yard; each of their members has an owner or a time at which it goes."""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    binary = redis_binary()
    if binary is None:
        pytest.skip("no Redis server")
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "redis").mkdir()
    server = RedisServer(binary, folder / "redis")
    server.start()
    model = scripted_model("echo", write_tokenizer(folder / "tokenizer"), chunk_tokens=[1, 3, 2], delay_s=0.08)
    yard = Yard(folder, server, [model], workers={"drain_s": 2.0}, limits={"job_ttl_s": 600})
    yard.start_all(cpu=2, gpu=2)
    yard.await_ready()
    yield yard
    yard.stop()
    server.stop()


class Storm:
    """What was killed, and the clients that go on asking meanwhile."""

    def __init__(self, yard: Yard, http: aiohttp.ClientSession) -> None:
        self.yard, self.http = yard, http
        self.killed: Counter[str] = Counter()

    async def kill(self, rng: random.Random) -> None:
        """Kill something every now and then, and start it again, until the time is over."""
        over_at = time.monotonic() + DURATION_S
        while time.monotonic() < over_at:
            await asyncio.sleep(rng.uniform(0.3, 1.2))
            name = rng.choice(("cpu1", "cpu2", "gpu1", "gpu2", "cpu1", "cpu2", "gpu1", "gpu2", "api", "redis"))
            self.killed[name[:3]] += 1
            if name == "redis":
                self.yard.redis.kill()
                await asyncio.sleep(rng.uniform(0.1, 0.8))
                await asyncio.to_thread(self.yard.redis.start)
                continue
            self.yard.kill(name)
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            if name == "api":
                self.yard.start_api()
            else:
                self.yard.start_worker(name[:3], name)

    async def ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Ask until something other than an outage answers."""
        while True:
            try:
                async with self.http.request(method, self.yard.url + path, **options) as reply:
                    if reply.status not in (429, 503):
                        answer: dict[str, Any] = await reply.json()
                        assert reply.status < 400, answer
                        return answer
            except (aiohttp.ClientError, OSError):
                pass
            await asyncio.sleep(0.1)

    async def submit(self, number: int, **more: Any) -> str:
        job = {"endpoint": "/v1/chat/completions", "body": self.yard.body(PROMPT.format(number), TOKENS, **more)}
        key = {"Idempotency-Key": f"storm-{number}"}
        return str((await self.ask("POST", "/v1/jobs", json=job, headers=key))["id"])

    async def follow(self, number: int) -> str:
        """A streamed job's text, from all of its events in order; the last one must say that it is done."""
        job_id = await self.submit(number, stream=True)
        text: list[str] = []
        seen = 0
        while True:
            try:
                headers = {"Last-Event-ID": str(seen)}
                async with self.http.get(f"{self.yard.url}/v1/jobs/{job_id}/events", headers=headers) as reply:
                    if reply.status == 200:
                        async for block in _blocks(reply):
                            assert int(block["id"]) == seen + 1, f"event {block['id']} after {seen}"
                            seen += 1
                            if block["event"] == "chunk":
                                choices = json.loads(block["data"])["choices"]
                                text += [choice["delta"].get("content") or "" for choice in choices]
                            elif block["event"] in ("done", "error"):
                                assert block["event"] == "done", block
                                return "".join(text)
            except (aiohttp.ClientError, OSError):
                pass
            await asyncio.sleep(0.1)

    async def wait(self, number: int) -> str:
        """A job's whole answer."""
        job_id = await self.submit(number)
        while not (job := await self.ask("GET", f"/v1/jobs/{job_id}"))["ended_at"]:
            await asyncio.sleep(0.3)
        assert job["status"] == "succeeded", (job["status"], job["error"], job["stages"])
        result = await self.ask("GET", f"/v1/jobs/{job_id}/result")
        return str(result["choices"][0]["message"]["content"])


async def _blocks(reply: aiohttp.ClientResponse) -> Any:
    """The server-sent events of a reply, each once it is complete."""
    fields: dict[str, str] = {}
    async for raw in reply.content:
        line = raw.decode().rstrip("\n")
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            yield fields
            fields = {}


async def test_every_answer_is_whole_and_told_once(yard: Yard) -> None:
    tokenizer = Tokenizer.from_file(str(yard.folder / "tokenizer" / "tokenizer.json"))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=2**20) as http:
        storm = Storm(yard, http)
        asking = [
            asyncio.create_task(storm.follow(number) if number % 2 else storm.wait(number))
            for number in range(2 * COUNT)
        ]
        try:
            await storm.kill(random.Random(SEED))
            async with asyncio.timeout(GIVE_UP_S):
                answers = await asyncio.gather(*asking)
        except TimeoutError:
            stuck = sum(not task.done() for task in asking)
            raise AssertionError(f"{stuck} are stuck after {dict(storm.killed)}\n{yard.logs()}") from None
        finally:
            for task in asking:
                task.cancel()
    expected = [echoed(tokenizer, PROMPT.format(number), TOKENS) for number in range(2 * COUNT)]
    wrong = [number for number, (got, right) in enumerate(zip(answers, expected, strict=True)) if got != right]
    assert not wrong, (len(wrong), dict(storm.killed), answers[wrong[0]][-200:], expected[wrong[0]][-200:])
    with redis.Redis.from_url(yard.redis.url, decode_responses=True) as client:
        forever = [key for key in client.scan_iter("ty:*") if client.ttl(key) == -1 and key not in OWNED]
        assert [key for key in forever if not _has_owner(client, key)] == []
        assert client.zcard(keys.WATCH) == 0, "nothing is under way any more"


def _has_owner(client: Any, key: str) -> bool:
    """Inboxes and wakes belong to a process that is alive."""
    for prefix in (keys.INBOX, keys.WAKE):
        if key.startswith(prefix):
            return bool(client.exists(keys.WORKER + key.removeprefix(prefix)))
    return False
