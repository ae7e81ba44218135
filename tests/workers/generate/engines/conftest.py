"""The fixture that starts fake servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.workers.generate.engines.fake_server import Handler, Start


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[TestServer] = []

    async def start_one(handler: Handler) -> str:
        app = web.Application()
        app.router.add_post("/inference/v1/generate", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return f"http://127.0.0.1:{server.port}"

    yield start_one
    for server in servers:
        await server.close()
