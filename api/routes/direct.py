"""Dispatches the endpoints whose requests become jobs by their exact path, ahead of FastAPI's routes.

These endpoints read their own bodies and need neither path patterns nor dependency injection, which cost more than the
rest of a short request. FastAPI's routes still describe them in the OpenAPI document, and refuse other methods.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from api.auth import require_key
from api.routes.openai import answer
from tasks.specs import Endpoint


class EndpointRoute(BaseRoute):
    """Matches POST requests to any of these endpoints."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        mine = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._endpoints
        return Match.FULL if mine else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await require_key(request)
        response = await answer(request, self._endpoints[scope["path"]])
        await response(scope, receive, send)
