"""The ledger in Redis: one Lua script for each transition, many calls in one round trip.

Calls made during a round trip leave together in the next one, so a busy process needs one connection and a few
microseconds for each call. Every script is idempotent (see its header), so a call whose reply is lost is repeated for
up to `patience_s`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, NoScriptError, RedisError, ResponseError, TimeoutError

from tasks.errors import BrokerUnavailable, Conflict, QueueFull
from tasks.ledger import keys
from tasks.ledger.scripts import (
    claim_call,
    claim_from,
    commit_call,
    job_from,
    load_scripts,
    pack,
    pairs,
    redispatch_call,
    renew_call,
    require_ok,
    retry_call,
    submit_call,
    text,
    unpack,
)
from tasks.ledger.store import (
    IDEMPOTENCY_CONFLICT,
    Claim,
    Commit,
    Due,
    Entry,
    Job,
    Message,
    NewJob,
    Refused,
    Status,
    Worker,
)
from tasks.protocol.base import JsonObject, compact_json
from tasks.settings import Settings
from tasks.specs import Stage

LOST_CONNECTION = (ConnectionError, TimeoutError, BusyLoadingError, OSError)


def connect(url: str, *, blocking: bool = False) -> aioredis.Redis:
    """Create a client that never repeats a write by itself; with `blocking`, its reads never time out."""
    return aioredis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=None if blocking else 20,
        max_connections=64,
        **connection_options(url),
    )


def connection_options(url: str) -> dict[str, Any]:
    """Return further connection options: a connect timeout and keep-alive for TCP, none for a Unix socket."""
    return {} if url.startswith("unix:") else {"socket_connect_timeout": 5, "socket_keepalive": True}


ANSWER_TIMEOUT_S: Final = 20.0


class RedisStore:
    """`JobStore` over one Redis database, shared with the broker."""

    def __init__(self, settings: Settings, *, patience_s: float = 30.0) -> None:
        self._settings = settings
        self._patience_s = patience_s
        self._redis = connect(settings.redis_url, blocking=True)
        self._connection: Any = None
        self._sources = load_scripts()
        self._shas: dict[str, str] = {}
        self._pending: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._flusher: asyncio.Task[None] | None = None

    # ---- one round trip for many calls -------------------------------------------------------

    def _post(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._pending.append((command, future))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        return future

    async def _flush(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending[:512], self._pending[512:]
                try:
                    answers = await self._exchange([command for command, _ in batch])
                except Exception as error:  # noqa: BLE001 - every caller of this round trip gets it
                    answers = [error] * len(batch)
                for (_, future), answer in zip(batch, answers, strict=True):
                    if future.done():
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._flusher = None

    async def _exchange(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one round trip; return each one's reply, or the error that Redis replied with.

        Exchanges run one at a time over one connection and bypass the client, whose work around a command takes as
        long as the command itself.
        """
        if self._connection is None:
            self._connection = await self._redis.connection_pool.get_connection()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await _exchange(self._connection, commands)

    async def _call(self, *command: Any) -> Any:
        give_up_at = time.monotonic() + self._patience_s
        pause_s = 0.05
        while True:
            try:
                return await self._post(command)
            except LOST_CONNECTION as error:
                if time.monotonic() + pause_s > give_up_at:
                    raise BrokerUnavailable(
                        f"Redis does not answer ({type(error).__name__}). Try again later.", retry_after_s=5
                    ) from error
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)

    async def _run(self, script: str, call: JsonObject) -> JsonObject:
        argument = pack(call)
        if script in self._shas:
            try:
                return unpack(await self._call("EVALSHA", self._shas[script], 0, argument))
            except NoScriptError:  # Redis restarted and does not persist its script cache
                pass
        self._shas[script] = text(await self._call("SCRIPT", "LOAD", self._sources[script]))
        return unpack(await self._call("EVALSHA", self._shas[script], 0, argument))

    # ---- transitions ---------------------------------------------------------------------------

    async def submit(
        self, job: NewJob, payloads: Mapping[str, bytes], messages: Sequence[Message], max_queued: int
    ) -> str:
        reply = await self._run("submit", submit_call(self._settings, job, payloads, messages, max_queued))
        outcome = reply["outcome"]
        if outcome == b"full":
            raise QueueFull(retry_after_s=2)
        if outcome == b"repeat" and text(reply["digest"]) != job.idempotency_digest:
            raise Conflict(IDEMPOTENCY_CONFLICT, param="Idempotency-Key")
        return text(reply["id"])

    async def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused:
        reply = await self._run("claim", claim_call(self._settings, job_id, stage, owner, reads))
        return claim_from(job_id, stage, owner, reply)

    async def renew(self, owner: str, held: Sequence[tuple[str, Stage]]) -> list[tuple[str, Stage]]:
        if not held:
            return []
        reply = await self._run("renew", renew_call(self._settings, owner, held))
        return [held[position] for position in reply["lost"]]

    async def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        require_ok(await self._run("commit", commit_call(self._settings, job_id, stage, owner, commit)))

    async def retry(
        self, job_id: str, stage: Stage, owner: str, message: Message, delay_s: float, *, counted: bool
    ) -> bool:
        reply = await self._run("retry", retry_call(self._settings, job_id, owner, message, delay_s, counted=counted))
        if reply["outcome"] == b"exhausted":
            return False
        require_ok(reply)
        return True

    async def end(self, job_id: str, status: Status, error: JsonObject | None) -> bool:
        failure = compact_json(error) if error else b""
        reply = await self._run("end", {"id": job_id, "status": status.value, "error": failure})
        return bool(reply["ended"])

    async def listen(self, job_id: str, listener: str) -> bool:
        return bool((await self._run("listen", {"id": job_id, "inbox": listener}))["known"])

    async def due(self, limit: int) -> list[Due]:
        reply = await self._run("due", {"most": limit, "again_after": self._settings.queue.lost_after_s})
        return [Due(*text(member).split("|", 1)) for member in reply["members"]]

    async def redispatch(self, message: Message) -> bool:
        return bool((await self._run("redispatch", redispatch_call(self._settings, message)))["sent"])

    # ---- reads ---------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        record = pairs(await self._call("HGETALL", f"{keys.JOB}{job_id}"))
        return job_from(job_id, record) if record else None

    async def page(self, limit: int, before: str | None) -> list[Job]:
        start = 0
        if before is not None:
            rank = await self._call("ZREVRANK", keys.JOBS, before)
            if rank is None:
                return []
            start = int(rank) + 1
        jobs: list[Job] = []
        while len(jobs) < limit:
            ids = await self._call("ZREVRANGE", keys.JOBS, start, start + limit - len(jobs) - 1)
            if not ids:
                break
            found = await asyncio.gather(*(self.get(text(job_id)) for job_id in ids))
            kept = [job for job in found if job is not None]
            jobs += kept
            start += len(kept)
            for job_id in (job_id for job_id, job in zip(ids, found, strict=True) if job is None):
                await self._call("ZREM", keys.JOBS, job_id)  # expired: those below move up
        return jobs

    async def requested(self, request_id: str) -> list[str]:
        return sorted(text(job_id) for job_id in await self._call("SMEMBERS", f"{keys.REQUEST}{request_id}"))

    async def payload(self, job_id: str, name: str) -> bytes | None:
        return cast("bytes | None", await self._call("GET", f"{keys.PAYLOAD}{job_id}:{name}"))

    async def read_tokens(self, job_id: str, after: int) -> list[Entry]:
        return await self._read(f"{keys.TOKENS}{job_id}", after)

    async def read_events(self, job_id: str, after: int) -> list[Entry]:
        return await self._read(f"{keys.EVENTS}{job_id}", after)

    async def _read(self, key: str, after: int) -> list[Entry]:
        rows = await self._call("XRANGE", key, f"({after}-0" if after else "-", "+")
        return [Entry(int(text(seq).split("-")[0]), fields[1]) for seq, fields in rows]

    async def queued(self, queues: Sequence[str]) -> list[int]:
        return [int(n) for n in await asyncio.gather(*(self._call("LLEN", queue) for queue in queues))]

    # ---- presence ------------------------------------------------------------------------------

    async def announce(self, worker: Worker) -> None:
        body = json.dumps(
            {"role": worker.role, "queues": worker.queues, "models": worker.models, "detail": worker.detail}
        )
        await asyncio.gather(
            self._call("SET", f"{keys.WORKER}{worker.id}", body, "EX", worker.ttl_s),
            self._call("SADD", keys.WORKERS, worker.id),
        )

    async def withdraw(self, worker_id: str) -> None:
        await asyncio.gather(
            self._call("DEL", f"{keys.WORKER}{worker_id}"),
            self._call("SREM", keys.WORKERS, worker_id),
            self._call("DEL", f"{keys.INBOX}{worker_id}"),
        )

    async def workers(self) -> list[Worker]:
        ids = sorted(text(worker_id) for worker_id in await self._call("SMEMBERS", keys.WORKERS))
        if not ids:
            return []
        bodies = await self._call("MGET", *(f"{keys.WORKER}{worker_id}" for worker_id in ids))
        alive = []
        for worker_id, body in zip(ids, bodies, strict=True):
            if body is None:
                await self.withdraw(worker_id)
                continue
            data = json.loads(body)
            alive.append(Worker(worker_id, data["role"], tuple(data["queues"]), tuple(data["models"]), data["detail"]))
        return alive

    async def ping(self) -> None:
        await self._call("PING")

    async def close(self) -> None:
        await self._redis.aclose()


class RedisBus:
    """One process's inbox in Redis (see `tasks.ledger.bus`)."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._redis = connect(settings.redis_url, blocking=True)
        self._connection: Any = None
        self._key = f"{keys.INBOX}{name}"

    async def receive(self, wait_s: float) -> list[bytes]:
        """Return the next messages, at most 500; an empty list if none arrive within `wait_s`.

        Raises:
            OSError: the connection broke and messages may be lost; read the channels.
        """
        try:
            if self._connection is None:
                self._connection = await self._redis.connection_pool.get_connection()
            command = ("BLMPOP", wait_s, 1, self._key, "LEFT", "COUNT", 500)
            (answer,) = await _exchange(self._connection, [command])
            if isinstance(answer, RedisError):
                raise answer
        except (RedisError, OSError) as error:
            raise OSError(f"lost the connection to the inbox {self._key}: {error}") from error
        return cast("list[bytes]", answer[1]) if answer else []

    async def close(self) -> None:
        await self._redis.aclose()


async def _exchange(connection: Any, commands: list[tuple[Any, ...]]) -> list[Any]:
    try:
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        return [await _answer(connection) for _ in commands]
    except BaseException:
        # Replies may still arrive; the next commands must not mistake them for their own.
        await connection.disconnect(nowait=True)
        raise


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
