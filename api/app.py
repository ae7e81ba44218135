"""The FastAPI application: `create_app(settings)`, its lifespan and its routes."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache, partial

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import errors
from api.deps import Process
from api.limits import REFRESH_S, Admission
from api.openapi import describe
from api.relay import Hub
from api.routes import generate, health, jobs, openai, stages
from api.routes.direct import EndpointRoute
from tasks.broker.app import create_app as create_celery
from tasks.errors import BrokerUnavailable, TokenyardError
from tasks.ledger.bus import Bus
from tasks.ledger.redis_store import RedisBus, RedisStore
from tasks.ledger.store import JobStore
from tasks.periodic import repeat
from tasks.pipeline import Pipeline
from tasks.reaper import reap
from tasks.settings import Settings, load_settings
from tasks.specs import ENDPOINTS
from tasks.telemetry import configure_logging, get_logger

log = get_logger(__name__)

DESCRIPTION = """LLM inference as queued work. OpenAI's clients work with `/v1/chat/completions` and `/v1/models`;
`/v1/jobs` runs the same bodies as durable jobs that clients can follow and cancel."""


class Requests:
    """Names every request, and answers what nothing else has answered. Plain ASGI: streams pass untouched.

    Each response has the `x-request-id` of its request, or a new one. An unexpected exception is logged once, with
    that id, and becomes a 500 without its details; the connection stays usable. After a response has begun, the
    connection is closed: the client must not take what it got for the whole.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id") or secrets.token_hex(16)
        begun = False

        async def send_named(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).setdefault("x-request-id", request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as error:
            log.error("request_raised", request_id=request_id, path=scope["path"], exc_info=error)
            if begun:
                raise ResponseCutOff from None
            await errors.response_from(TokenyardError())(scope, receive, send_named)


class ResponseCutOff(Exception):
    """A response that had begun could not be completed; the server closes its connection. The cause has been logged."""


Connect = Callable[[Settings, str], tuple[JobStore, Bus]]


def connect_redis(settings: Settings, name: str) -> tuple[JobStore, Bus]:
    """Connect to the ledger, and to the inbox of the process `name`, in Redis."""
    # If Redis stays down, clients should get a 503 soon instead of waiting.
    return RedisStore(settings, patience_s=5.0), RedisBus(settings, name)


def create_app(settings: Settings | None = None, *, connect: Connect = connect_redis) -> FastAPI:
    """Create the API application with these settings, or with those of the environment."""
    settings = settings or load_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        configure_logging(settings.log_level, settings.log_format, "api")
        name = f"api-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        store, bus = connect(settings, name)
        hub = Hub(name, store, bus)
        pipeline = Pipeline(settings, create_celery(settings), store)
        admission = Admission(settings, store, name)
        with suppress(BrokerUnavailable):  # start anyway: clients get a 503 until the broker answers
            await admission.refresh()
        app.state.process = Process(settings, store, pipeline, hub, admission)
        background = [
            asyncio.create_task(work)
            for work in (
                repeat("receive", hub.receive, 0.0),
                repeat("refresh", admission.refresh, REFRESH_S),
                repeat("reap", partial(reap, pipeline), settings.queue.reap_interval_s),
            )
        ]
        try:
            yield
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            with suppress(BrokerUnavailable):
                await store.withdraw(name)
            await bus.close()
            await store.close()

    app = FastAPI(title="Tokenyard", description=DESCRIPTION, version="0.1.0", lifespan=lifespan)
    errors.install(app)
    app.add_middleware(Requests)

    app.router.routes.append(EndpointRoute(ENDPOINTS))
    for routes in (openai.router, stages.router, generate.router, jobs.router, health.router):
        app.include_router(routes)
    app.openapi = cache(lambda: describe(app))  # type: ignore[method-assign]
    return app
