"""Servers that answer what a test wants, in vLLM's wire format."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Start = Callable[[Handler], Awaitable[str]]
TOKENS = {"index": 0, "token_ids": [5], "finish_reason": None}
END = {"index": 0, "token_ids": [6], "finish_reason": "stop"}


def events(*events: Any, done: bool = True) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return answer


def choices(*choices: Any) -> dict[str, Any]:
    return {"choices": list(choices)}


GOOD = events(choices(TOKENS), choices(END))


def status(code: int, body: Any, headers: dict[str, str] | None = None) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=code, text=text, headers=headers)

    return answer
