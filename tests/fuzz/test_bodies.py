"""No body whatsoever is answered with a 500, or with a status that the API does not describe.

Real processes answer: API, CPU worker, GPU worker over the scripted engine. By default a thousand bodies of one seed;
`make fuzz` sends them for ten minutes. A body that fails is shown with its seed.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import time
from collections import Counter
from collections.abc import Callable

import aiohttp

from tests.fuzz.bodies import mutated
from tests.integration.harness import Yard

COUNT = 1000
CONNECTIONS = 8
MOST_SHOWN = 6
DURATION_S = float(os.environ.get("TOKENYARD_FUZZ_S", "0"))
SEED = int(os.environ.get("TOKENYARD_FUZZ_SEED", "20260101"))


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
                async with http.post(yard.url + path, data=io.BytesIO(body), headers=headers) as reply:
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
