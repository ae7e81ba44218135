"""No body whatsoever is answered with a 500, or with a status that the API does not describe.

Real processes answer: API, CPU worker, GPU worker over the scripted engine. By default a thousand bodies of one seed;
`make fuzz` sends them for ten minutes. A body that fails is shown with its seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import aiohttp
import pytest

from tests.conftest import RedisServer
from tests.fuzz.bodies import MODEL, mutated
from tests.integration.harness import Yard, scripted_model, write_tokenizer

COUNT = 1000
CONNECTIONS = 8
MOST_SHOWN = 6
DURATION_S = float(os.environ.get("TOKENYARD_FUZZ_S", "0"))
SEED = int(os.environ.get("TOKENYARD_FUZZ_SEED", "20260101"))


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("fuzz")
    model = scripted_model(MODEL, write_tokenizer(folder / "tokenizer"), chunk_tokens=3)
    model |= {"tool_parser": "hermes", "reasoning_parser": "qwen3", "max_output_tokens": 64}
    yard = Yard(folder, redis_server, [model], limits={"max_body_bytes": 1_000_000, "request_timeout_s": 60.0})
    yard.start_all(cpu=1, gpu=1)
    try:
        yard.await_ready()
        yield yard
    finally:
        yard.stop()


async def test_no_body_is_answered_with_a_500_or_an_undescribed_status(
    yard: Yard, record_property: Callable[[str, object], None]
) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    seeds = iter(range(SEED, SEED + 10**9))
    give_up_at = time.monotonic() + DURATION_S
    seen: Counter[int] = Counter()
    wrong: list[str] = []

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS), timeout=timeout) as http:
        described = await described_statuses(yard, http)

        async def send_on() -> None:
            while len(wrong) < MOST_SHOWN and (sum(seen.values()) < COUNT or time.monotonic() < give_up_at):
                seed = next(seeds)
                path, body, headers = mutated(random.Random(seed))
                async with http.post(yard.url + path, data=body, headers=headers) as reply:
                    text = await reply.text()
                seen[reply.status] += 1
                failed = reply.status == 500 or '"code":"internal_error"' in text
                if failed or reply.status not in described[path]:
                    wrong.append(f"seed {seed}: {path} {headers} {body[:1500]!r}\n-> {reply.status} {text[:500]}")

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(send_on())
    assert not wrong, "\n".join([*wrong, yard.logs()])
    assert seen[200] > COUNT / 20 and seen[400] > COUNT / 20, "sound and wrong bodies are both tried"
    assert [name for name, process in yard.processes.items() if process.poll() is not None] == []
    record_property("statuses", dict(seen))


async def described_statuses(yard: Yard, http: aiohttp.ClientSession) -> dict[str, set[int]]:
    """The statuses that the API's own description has for each path."""
    async with http.get(f"{yard.url}/openapi.json") as reply:
        paths = (await reply.json())["paths"]
    return {path: set(map(int, routes["post"]["responses"])) for path, routes in paths.items() if "post" in routes}
