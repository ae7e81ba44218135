"""Rendering over HTTP: this API, its queue and its workers against the reference's one render server.

Both serve the same real tokenizer on the same cores, one after the other, and get the same requests from the same
client. The reference is left out where it is not installed (`TOKENYARD_PEER`).
"""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count
from typing import Any

import aiohttp

from tests.bench.servers import PEER, TOKENIZER, serve_reference, serve_yard
from tests.bench.table import Table

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
    with serve_yard() as url:
        ours = asyncio.run(_measure(url))
    if (PEER / "bin" / "vllm").is_file():
        with serve_reference() as url:
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
