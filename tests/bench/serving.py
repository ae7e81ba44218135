"""Rendering over HTTP: this API, its queue and its workers against the reference's one render server.

Both serve the same real tokenizer on the same cores, one after the other, and get the same requests from the same
client. The reference is left out where it is not installed (`TOKENYARD_PEER`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from api.cli.yard import answers, free_port
from tests.bench.table import Table
from tests.conftest import RedisServer, redis_binary
from tests.integration.harness import Yard

PEER = Path(os.environ.get("TOKENYARD_PEER", "~/.cache/vllm-peer")).expanduser()
TOKENIZER = Path(os.environ.get("TOKENYARD_REAL_TOKENIZERS", "~/.cache/real-tokenizers")).expanduser() / "qwen3"
MAX_MODEL_LEN = 65_536
CONNECTIONS = (1, 16, 64)
SECONDS = 6.0
UNIQUE = "number 00000000"
"""Stands at the beginning of every request's text and is replaced, so that no two requests are the same."""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def _chat(words: int, **more: Any) -> dict[str, Any]:
    text = " ".join(f"word{i % 97} and" for i in range(words // 2))
    content = f"{UNIQUE} {text or 'What is the weather?'}"
    return {"model": "qwen3", "messages": [{"role": "user", "content": content}], **more}


_numbers = count()
BODIES = {
    "short chat, one tool": _chat(0, tools=[TOOL]),
    "4,000 tokens": _chat(2_600),
    "50,000 tokens": _chat(33_000),
}


def run() -> list[Table]:
    """The table of this benchmark."""
    if not TOKENIZER.is_dir():
        return []
    ours: dict[tuple[str, int], tuple[float, float]] = {}
    theirs: dict[tuple[str, int], tuple[float, float]] = {}
    with _yard() as url:
        ours = asyncio.run(_measure(url))
    if (PEER / "bin" / "vllm").is_file():
        with _reference() as url:
            theirs = asyncio.run(_measure(url))
    rows = []
    for (name, connections), (rate, p99_s) in ours.items():
        row = [name, str(connections), f"{rate:.0f}", f"{1e3 * p99_s:.0f}"]
        if (name, connections) in theirs:
            their_rate, their_p99_s = theirs[name, connections]
            row += [f"{their_rate:.0f}", f"{1e3 * their_p99_s:.0f}", f"{rate / their_rate:.2f}"]
        else:
            row += ["-", "-", "-"]
        rows.append(row)
    headings = ("request", "connections", "ours, per second", "p99, ms", "reference, per second", "p99, ms", "ratio")
    notes = ("Two CPU workers and one API process against `vllm launch render`; the client shares the cores.",)
    return [Table("Rendering over HTTP (Qwen3's tokenizer)", headings, rows, notes)]


@contextmanager
def _yard() -> Iterator[str]:
    binary = redis_binary()
    assert binary is not None, "no Redis server"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        redis = RedisServer(binary, folder / "redis")
        redis.start()
        model = {
            "name": "qwen3",
            "tokenizer": str(TOKENIZER),
            "max_model_len": MAX_MODEL_LEN,
            "tool_parser": "hermes",
            "reasoning_parser": "qwen3",
            "engine": {"kind": "scripted"},
        }
        yard = Yard(folder, redis, [model])
        yard.start_all(cpu=2, gpu=0)
        try:
            give_up_at = time.monotonic() + 60
            while not _serves(yard.url):
                assert time.monotonic() < give_up_at, yard.logs()
                time.sleep(0.2)
            yield yard.url
        finally:
            yard.stop()
            redis.stop()


def _serves(url: str) -> bool:
    if not answers(f"{url}/health/live")():
        return False
    return asyncio.run(_once(url)) == 200


async def _once(url: str) -> int:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions/render", json=_chat(0)) as reply:
        await reply.read()
        return reply.status


@contextmanager
def _reference() -> Iterator[str]:
    port = free_port()
    command = [str(PEER / "bin" / "vllm"), "launch", "render", str(TOKENIZER), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", "qwen3", "--max-model-len", str(MAX_MODEL_LEN)]
    command += ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--enable-auto-tool-choice"]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            give_up_at = time.monotonic() + 300
            while not answers(f"{url}/health")():
                assert time.monotonic() < give_up_at and server.poll() is None, "the reference did not come up"
                time.sleep(0.5)
            yield url
        finally:
            server.terminate()
            server.wait(60)


async def _measure(url: str) -> dict[tuple[str, int], tuple[float, float]]:
    """Requests per second and the 99th percentile of their latency, in seconds, for each body and concurrency."""
    results = {}
    timeout = aiohttp.ClientTimeout(total=120)
    for name, body in BODIES.items():
        payload = json.dumps(body).encode()
        for connections in CONNECTIONS:
            await _load(url, payload, connections, 1.0, timeout)
            began = time.perf_counter()
            times = sorted(await _load(url, payload, connections, SECONDS, timeout))
            rate = len(times) / (time.perf_counter() - began)
            results[name, connections] = rate, times[int(0.99 * (len(times) - 1))]
    return results


async def _load(
    url: str, payload: bytes, connections: int, seconds: float, timeout: aiohttp.ClientTimeout
) -> list[float]:
    """The latencies of requests over new connections: what a server closed because it was idle is no failure."""
    times: list[float] = []
    end_at = time.perf_counter() + seconds
    headers = {"Content-Type": "application/json"}

    async def client() -> None:
        while time.perf_counter() < end_at:
            began = time.perf_counter()
            own = payload.replace(UNIQUE.encode(), b"number %08d" % next(_numbers), 1)
            async with http.post(f"{url}/v1/chat/completions/render", data=own, headers=headers) as reply:
                await reply.read()
                assert reply.status == 200, await reply.text()
            times.append(time.perf_counter() - began)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        await asyncio.gather(*(client() for _ in range(connections)))
    return times
