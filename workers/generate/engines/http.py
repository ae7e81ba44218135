"""The HTTP client of the engines: several servers, one session, and the engine's errors as our own.

A streamed answer is server-sent events, ended by `data: [DONE]`; errors come as a status or as an event:

    data: {"choices": [...]}
    data: {"error": {"message": "...", "type": "...", "param": null, "code": 500}}
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp

from tasks.errors import EngineFailed, EngineRefused, EngineUnavailable, TokenyardError
from tasks.protocol.base import JsonObject
from tasks.settings import EngineSettings
from workers.generate.engines.base import Health

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
HEALTH_TIMEOUT_S = 3.0
_DONE = b"[DONE]"


@dataclass(slots=True)
class Server:
    """One base URL, its requests in flight, and the time (monotonic seconds) until which it counts as down."""

    url: str
    in_flight: int = 0
    failures: int = 0
    down_until_s: float = 0.0

    def note_failure(self, now_s: float) -> None:
        """Counts the server as down; each failure in a row doubles the time."""
        self.down_until_s = now_s + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures, 10))
        self.failures += 1

    def note_success(self) -> None:
        self.failures = 0
        self.down_until_s = 0.0


class ServerPool:
    """The servers of one model; the one with the fewest requests in flight goes first."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self.servers = [Server(url.rstrip("/")) for url in urls]

    def in_order(self) -> Iterator[Server]:
        """Yields each server once, the best first, ranked anew at each step; those that are down come last."""
        left = list(self.servers)
        while left:
            now_s = time.monotonic()
            best = min(left, key=lambda s: (s.down_until_s > now_s, s.in_flight, s.down_until_s))
            left.remove(best)
            yield best

    def retry_after_s(self) -> int:
        soonest_s = min((s.down_until_s for s in self.servers), default=0.0) - time.monotonic()
        return max(1, math.ceil(soonest_s))


class HttpEngine:
    """The base of the engines behind HTTP; each kind of engine adds its wire format."""

    def __init__(self, settings: EngineSettings) -> None:
        if not settings.urls:
            raise ValueError(f"an engine of kind {settings.kind!r} needs at least one URL: set urls in its settings")
        self.settings = settings
        self.pool = ServerPool(settings.urls)
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """The session, which is created on first use because it belongs to the running event loop."""
        if self._session is None or self._session.closed:
            headers = {"Authorization": f"Bearer {self.settings.api_key}"} if self.settings.api_key else {}
            self._session = aiohttp.ClientSession(
                headers=headers,
                # Servers close idle connections without notice (llama-server after each stream), and a POST that hits
                # such a moment cannot be repeated safely. A handshake is cheap next to a generation.
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                # A generation has no time limit here: the caller cancels it at its deadline.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.settings.connect_timeout_s),
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def exchange(
        self, path: str, body: JsonObject, *, stream: bool, headers: dict[str, str] | None = None
    ) -> AsyncGenerator[JsonObject, None]:
        """Posts `body` and yields the events of the answer, or its body if it is not streamed.

        If a server fails before its first event, the next one is tried.

        Raises:
            EngineUnavailable, EngineRefused, EngineFailed: as in `Engine.generate`.
        """
        payload = json.dumps(body, separators=(",", ":")).encode()
        failure: TokenyardError = EngineUnavailable()
        for server in self.pool.in_order():
            answered = False
            server.in_flight += 1
            try:
                async with aclosing(self._post(server, path, payload, stream, headers or {})) as events:
                    async for event in events:
                        answered = True
                        yield event
                server.note_success()
                return
            except (EngineUnavailable, EngineFailed) as error:
                if isinstance(error, EngineUnavailable):
                    server.note_failure(time.monotonic())
                if answered:
                    raise
                failure = error
            finally:
                server.in_flight -= 1
        if isinstance(failure, EngineUnavailable) and failure.retry_after_s is None:
            failure.retry_after_s = self.pool.retry_after_s()
        raise failure

    async def _post(
        self, server: Server, path: str, payload: bytes, stream: bool, headers: dict[str, str]
    ) -> AsyncGenerator[JsonObject, None]:
        connected = False
        try:
            async with self.session().post(
                server.url + path, data=payload, headers={"Content-Type": "application/json", **headers}
            ) as response:
                connected = True
                if response.status >= 400:
                    raise _error_of(response, await response.read())
                if not stream:
                    yield _checked(json.loads(await response.read()))
                    return
                async with aclosing(_read_events(response)) as events:
                    async for data in events:
                        yield _checked(json.loads(data))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineUnavailable(f"could not connect to the engine at {server.url}: {error}") from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            if not connected and isinstance(error, aiohttp.ClientConnectionError | ConnectionError):
                raise EngineUnavailable(
                    f"the engine at {server.url} closed the connection before it answered"
                ) from error
            raise EngineFailed(f"the connection to the engine at {server.url} broke: {error!r}") from error
        except ValueError as error:
            raise EngineFailed(f"the answer of the engine at {server.url} is not JSON: {error}") from error

    async def probe(self, path: str) -> Health:
        """Requests `path` from every server; a server is healthy if it answers with status 200."""

        async def ask(server: Server) -> tuple[str, str]:
            try:
                async with self.session().get(
                    server.url + path, timeout=aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
                ) as response:
                    if response.status == 200:
                        server.note_success()
                        return server.url, "ok"
                    return server.url, f"status {response.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                server.note_failure(time.monotonic())
                return server.url, str(error) or type(error).__name__

        states = dict(await asyncio.gather(*(ask(server) for server in self.pool.servers)))
        bad = [f"{url}: {state}" for url, state in states.items() if state != "ok"]
        return Health(ok=len(bad) < len(states), detail="; ".join(bad), servers=states)


async def _read_events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The `data` of each event up to `[DONE]`; a line may have any length."""
    buffer = bytearray()
    async for block in response.content.iter_any():
        buffer += block
        if b"\n" not in block:
            continue
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = bytes(line[5:]).strip()
            if data == _DONE:
                return
            yield data


def _checked(event: Any) -> JsonObject:
    if not isinstance(event, dict):
        raise EngineFailed("the engine answered JSON that is not an object")
    error = event.get("error")
    if error:
        info = error if isinstance(error, dict) else {"message": str(error)}
        code = info.get("code")
        raise _error_from(code if isinstance(code, int) else 500, info)
    return event


def _error_of(response: aiohttp.ClientResponse, body: bytes) -> TokenyardError:
    info: dict[str, Any] = {}
    try:
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            nested = parsed.get("error", parsed)
            info = nested if isinstance(nested, dict) else {"message": str(nested)}
    except ValueError:
        info = {"message": body[:500].decode("utf-8", "replace")}
    if "message" not in info and "detail" in info:
        info = {**info, "message": str(info["detail"])}
    error = _error_from(response.status, info)
    if isinstance(error, EngineUnavailable):
        retry_after = response.headers.get("Retry-After", "")
        error.retry_after_s = int(retry_after) if retry_after.isdigit() else None
    return error


def _error_from(status: int, info: dict[str, Any]) -> TokenyardError:
    message = str(info.get("message") or f"status {status}")
    param = info.get("param")
    if status in (408, 429, 503):
        return EngineUnavailable(f"the engine is not available: {message}")
    if status in (401, 403):
        return EngineFailed(f"the engine rejects the configured api_key: {message}")
    if status >= 500 or (status == 404 and not info.get("type")):
        return EngineFailed(f"the engine answered {status}: {message}")
    return EngineRefused(message, param=param if isinstance(param, str) else None)
