"""What the queues cost: time to first token, latency and throughput through the yard and at the engine directly.

Both are asked in turn, in one run, with the same prompts. The engine is llama.cpp with the embedded model; a scripted
engine that answers at once shows what the yard can carry by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from api.cli.yard import answers, free_port, python
from tasks.protocol.tokens import GenerateRequest
from tasks.settings import EngineSettings
from tests.bench.table import Table, milliseconds
from tests.conftest import RedisServer, redis_binary
from tests.integration.harness import Yard, scripted_model, write_tokenizer
from workers.generate.engines.base import Engine
from workers.generate.engines.registry import create_engine

PROMPT = "Tell me about the number {}."
SLOTS = 8


def run() -> list[Table]:
    """All tables of this benchmark."""
    return asyncio.run(_run())


async def _run() -> list[Table]:
    binary = redis_binary()
    if binary is None:
        raise SystemExit("no Redis server")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        redis = RedisServer(binary, folder / "redis")
        redis.start()
        try:
            return [*await _with_model(folder, redis), *await _scripted(folder, redis)]
        finally:
            redis.stop()


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        yield http


async def _with_model(folder: Path, redis: RedisServer) -> list[Table]:
    located = subprocess.run(python("workers.models", "pull", "smollm2"), check=True, capture_output=True, text=True)
    gguf = located.stdout.strip().splitlines()[-1]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = python("workers.generate.engines.embedded", "--gguf", gguf, "--port", str(port), "--parallel", str(SLOTS))
    with subprocess.Popen([*command, "--context", "2048"], stdout=subprocess.DEVNULL) as server:
        engine_settings: dict[str, Any] = {"kind": "llamacpp", "urls": [url], "concurrency": SLOTS}
        engine = create_engine(EngineSettings(**engine_settings))
        model = {"name": "smollm2", "tokenizer": gguf, "max_model_len": 2048, "engine": engine_settings}
        yard = Yard(folder, redis, [model])
        try:
            while not answers(f"{url}/health")():
                await asyncio.sleep(0.1)
            async with _session() as http:
                starts = await _start_one_by_one(yard, http)
                memory = _memory({**{n: p.pid for n, p in yard.processes.items()}, "engine": server.pid})
                return [
                    await _latency(yard, http, engine),
                    Table(
                        "Processes",
                        ("process", "ready after, s", "resident, MB"),
                        [(name, starts.get(name, "-"), memory[name]) for name in memory],
                        ("One embedded model. Ready: the worker consumes, with its models loaded; the API answers.",),
                    ),
                ]
        finally:
            yard.stop()
            await engine.close()
            server.terminate()


async def _start_one_by_one(yard: Yard, http: aiohttp.ClientSession) -> dict[str, str]:
    began = time.perf_counter()
    yard.start_api()
    while not answers(f"{yard.url}/health/live")():
        await asyncio.sleep(0.02)
    starts = {"api": f"{time.perf_counter() - began:.1f}"}
    for kind, name in (("cpu", "cpu1"), ("gpu", "gpu1")):
        began = time.perf_counter()
        yard.start_worker(kind, name)
        await yard.until(http, lambda report, kind=kind: any(w["role"] == kind for w in report["workers"]))  # type: ignore[misc]
        starts[name] = f"{time.perf_counter() - began:.1f}"
    yard.await_ready()
    return starts


def _memory(pids: dict[str, int]) -> dict[str, str]:
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1e6
    return {
        name: f"{int(Path(f'/proc/{pid}/statm').read_text().split()[1]) * page_mb:.0f}" for name, pid in pids.items()
    }


async def _latency(yard: Yard, http: aiohttp.ClientSession, engine: Engine) -> Table:
    def body(number: int) -> dict[str, Any]:
        return yard.body(PROMPT.format(number), 16, stream=True, temperature=0, ignore_eos=True)

    async def directly(number: int) -> tuple[float, float]:
        async with http.post(f"{yard.url}/v1/chat/completions/render", json=body(number)) as reply:
            request = GenerateRequest.model_validate(await reply.json())
        began = time.perf_counter()
        first = 0.0
        async with aclosing(engine.generate(request, stream=True)) as chunks:
            async for chunk in chunks:
                if chunk.token_ids:
                    first = first or time.perf_counter() - began
        return first, time.perf_counter() - began

    async def through(number: int) -> tuple[float, float]:
        return await _first_and_last(http, yard, body(number))

    for number in range(4):
        await directly(number), await through(number)
    alone: dict[str, list[tuple[float, float]]] = {"directly": [], "through": []}
    for number in range(100, 140):
        # The same length, another prompt: neither finds the other's in the engine's cache.
        alone["directly"].append(await directly(number))
        alone["through"].append(await through(number + 300))
    rates = {}
    for name, ask, start in (("directly", directly, 200), ("through", through, 600)):
        began = time.perf_counter()
        await _at_once(ask, range(start, start + 5 * SLOTS), SLOTS)
        rates[name] = 5 * SLOTS / (time.perf_counter() - began)
    firsts = {name: [first for first, _ in times] for name, times in alone.items()}
    totals = {name: [total for _, total in times] for name, times in alone.items()}
    added = [b - a for a, b in zip(firsts["directly"], firsts["through"], strict=True)]
    return Table(
        "Through the yard and at the engine directly (SmolLM2-135M on llama.cpp, 16 tokens)",
        ("measure", "engine directly", "through the yard", "added"),
        [
            (
                "time to first token, ms (median / p95)",
                milliseconds(firsts["directly"]),
                milliseconds(firsts["through"]),
                milliseconds(added),
            ),
            (
                "latency, ms (median / p95)",
                milliseconds(totals["directly"]),
                milliseconds(totals["through"]),
                milliseconds([b - a for a, b in zip(totals["directly"], totals["through"], strict=True)]),
            ),
            (
                f"requests per second, {SLOTS} at once",
                f"{rates['directly']:.1f}",
                f"{rates['through']:.1f}",
                f"{100 * rates['through'] / rates['directly'] - 100:+.0f} %",
            ),
        ],
    )


async def _first_and_last(http: aiohttp.ClientSession, yard: Yard, body: dict[str, Any]) -> tuple[float, float]:
    """Seconds until a streamed answer's first content, and until its end."""
    began = time.perf_counter()
    first = 0.0
    async with http.post(f"{yard.url}/v1/chat/completions", json=body) as reply:
        async for line in reply.content:
            if not first and line.startswith(b"data: {") and _has_content(line):
                first = time.perf_counter() - began
    return first, time.perf_counter() - began


def _has_content(line: bytes) -> bool:
    return any(choice["delta"].get("content") for choice in json.loads(line[6:])["choices"])


async def _at_once(ask: Callable[[int], Awaitable[Any]], numbers: range, most: int) -> None:
    slots = asyncio.Semaphore(most)

    async def one(number: int) -> None:
        async with slots:
            await ask(number)

    await asyncio.gather(*(one(number) for number in numbers))


async def _scripted(folder: Path, redis: RedisServer) -> list[Table]:
    tokenizer = write_tokenizer(folder / "tokenizer")
    yard = Yard(folder, redis, [scripted_model("echo", tokenizer, chunk_tokens=4)])
    yard.start_all(cpu=2, gpu=1)
    rows: list[tuple[str, str, str]] = []
    try:
        yard.await_ready()
        async with _session() as http:
            firsts = [
                (await _first_and_last(http, yard, yard.body(PROMPT.format(number), 32, stream=True)))[0]
                for number in range(60)
            ]
            rows.append(("time to first token, 1 at once, ms (median / p95)", milliseconds(firsts[10:]), "-"))
            for stream in (False, True):

                async def ask(number: int, stream: bool = stream) -> None:
                    await (yard.stream if stream else yard.chat)(http, PROMPT.format(number), 32)

                await _at_once(ask, range(20), 4)
                for most in (1, 16, 64):
                    count = 40 if most == 1 else 300
                    before = _cpu_seconds(yard)
                    began = time.perf_counter()
                    await _at_once(ask, range(count), most)
                    took_s = time.perf_counter() - began
                    spent = {name: seconds - before[name] for name, seconds in _cpu_seconds(yard).items()}
                    parts = ", ".join(f"{name} {1e3 * seconds / count:.1f}" for name, seconds in spent.items())
                    kind = "streamed" if stream else "whole"
                    rows.append((f"{kind}, {most} at once", f"{count / took_s:.0f}", parts))
    finally:
        yard.stop()
    return [
        Table(
            "The yard by itself (scripted engine that answers at once, 32 tokens in 8 chunks)",
            ("requests", "per second, or as named", "processor time per request, ms"),
            rows,
            ("Two CPU workers, one GPU worker, one API process, Redis and the client share the machine's cores.",),
        )
    ]


def _cpu_seconds(yard: Yard) -> dict[str, float]:
    ticks = os.sysconf("SC_CLK_TCK")
    spent = {}
    for name, process in yard.processes.items():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        spent[name] = (int(fields[11]) + int(fields[12])) / ticks
    return spent


if __name__ == "__main__":
    for table in run():
        sys.stdout.write(table.markdown() + "\n\n")
