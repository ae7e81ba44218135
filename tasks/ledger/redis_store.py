"""The ledger in Redis: one Lua script for each transition, many calls in one round trip.

Calls that are made while an earlier round trip is under way leave together in the next one, so a busy process
needs one connection and a few microseconds a call. Every script can be sent twice without harm (see its header),
so a call whose answer was lost is sent again until `patience_s` is over.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final, Literal, cast

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, NoScriptError, RedisError, ResponseError, TimeoutError

from tasks.errors import BrokerUnavailable, Cancelled, Conflict, QueueFull, error_to_json
from tasks.ledger.store import (
    Claim,
    ClaimLost,
    Commit,
    Due,
    Entry,
    Job,
    Message,
    NewJob,
    Refused,
    StageRecord,
    Status,
    Worker,
)
from tasks.protocol.base import JsonObject, compact_json
from tasks.settings import Settings
from tasks.specs import Stage

SCRIPTS: Final = ("submit", "claim", "take", "renew", "commit", "retry", "end", "listen", "due", "redispatch")
LOST_CONNECTION = (ConnectionError, TimeoutError, BusyLoadingError, OSError)


def connect(url: str, *, blocking: bool = False) -> aioredis.Redis:
    """A client that neither repeats a write by itself nor gives up a blocking read."""
    return aioredis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=None if blocking else 20,
        socket_connect_timeout=5,
        socket_keepalive=True,
        max_connections=64,
    )


def load_scripts() -> dict[str, str]:
    folder = resources.files("tasks.ledger") / "lua"
    prelude = (folder / "prelude.lua").read_text()
    return {name: prelude + (folder / f"{name}.lua").read_text() for name in SCRIPTS}


def claim_arguments(settings: Settings, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> tuple[Any, ...]:
    """What the `claim` script is called with."""
    return job_id, stage, owner, settings.queue.lease_s, settings.limits.max_attempts, *reads


def claim_from_answer(job_id: str, stage: Stage, owner: str, answer: Any) -> Claim | Refused:
    """What the `claim` of the scripts' prelude returned."""
    outcome, *rest = answer
    if outcome != b"ok":
        return Refused(cast("Any", _text(outcome)))
    attempt, fields = int(rest[0]), int(rest[1])
    record, payloads = rest[2 : 2 + fields], rest[2 + fields :]
    return Claim(
        _job_from_hash(job_id, _pairs(record)),
        stage,
        owner,
        attempt,
        {_text(payloads[i]): payloads[i + 1] for i in range(0, len(payloads), 2)},
    )


def _dispatch_terms(settings: Settings) -> dict[str, Any]:
    """What the scripts' `dispatch` must know besides the messages."""
    return {
        "lost_after": settings.queue.lost_after_s,
        "lease": settings.queue.lease_s,
        "most": settings.limits.max_attempts,
    }


def _addressed(message: Message) -> tuple[Any, ...]:
    return message.stage, message.queue, message.pool, message.reads


def commit_arguments(settings: Settings, job_id: str, stage: Stage, owner: str, commit: Commit) -> tuple[Any, ...]:
    """What the `commit` script is called with."""
    header: dict[str, Any] = {
        "id": job_id,
        "stage": stage,
        "owner": owner,
        "payloads": list(commit.payloads),
        "fields": {
            name: value
            for name, value in (
                ("prompt_tokens", commit.prompt_tokens),
                ("completion_tokens", commit.completion_tokens),
            )
            if value is not None
        },
        "n_tokens": len(commit.tokens),
        "tokens_from": commit.tokens_from,
        "n_events": len(commit.events),
        "done": commit.done,
        "messages": [_addressed(message) for message in commit.messages],
        **_dispatch_terms(settings),
    }
    if commit.consumed is not None:
        header["consumed"] = commit.consumed
    if commit.status is not None:
        header["status"] = commit.status.value
        header["error"] = compact_json(commit.error).decode() if commit.error else ""
    return (
        json.dumps(header),
        *commit.payloads.values(),
        *commit.tokens,
        *commit.events,
        *(message.body for message in commit.messages),
    )


ANSWER_TIMEOUT_S = 20.0


class RedisStore:
    """`JobStore` over one Redis database, which is the broker's as well."""

    def __init__(self, settings: Settings, *, patience_s: float = 30.0) -> None:
        self._settings = settings
        self._queue = settings.queue
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
                except Exception as error:  # noqa: BLE001 - every caller of this round trip learns of it
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
        """Each command's answer, or the error that Redis answers it with.

        There is one exchange at a time, over one connection: what a client does around a command takes as long as the
        command.
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
                        f"Redis does not answer: {type(error).__name__}", retry_after_s=5
                    ) from error
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)

    async def _run(self, script: str, *arguments: Any) -> Any:
        if script in self._shas:
            try:
                return await self._call("EVALSHA", self._shas[script], 0, *arguments)
            except NoScriptError:  # Redis was restarted: its script cache is not part of its data
                pass
        self._shas[script] = _text(await self._call("SCRIPT", "LOAD", self._sources[script]))
        return await self._call("EVALSHA", self._shas[script], 0, *arguments)

    # ---- transitions ---------------------------------------------------------------------------

    async def submit(
        self, job: NewJob, payloads: Mapping[str, bytes], messages: Sequence[Message], max_queued: int
    ) -> str:
        header = {
            "id": job.id,
            "endpoint": job.endpoint,
            "model": job.model,
            "class": job.job_class,
            "stream": int(job.stream),
            "followed": int(job.followed),
            "detached": int(job.detached),
            "stages": " ".join(job.stages),
            "messages": [_addressed(message) for message in messages],
            "queues": job.queues,
            "deadline_in": job.deadline_in_s,
            "ttl": job.ttl_s,
            "listener": job.listener,
            "idempotency_key": job.idempotency_key,
            "digest": job.idempotency_digest,
            "request_id": job.request_id,
            "metadata": json.dumps(job.metadata),
            "payloads": list(payloads),
            "max_queued": max_queued,
            **_dispatch_terms(self._settings),
        }
        bodies = (message.body for message in messages)
        outcome, job_id, digest = map(_text, await self._run("submit", json.dumps(header), *payloads.values(), *bodies))
        if outcome == "full":
            raise QueueFull(retry_after_s=2)
        if outcome == "repeat" and digest != job.idempotency_digest:
            raise Conflict("this Idempotency-Key was used with another request", param="Idempotency-Key")
        return job_id

    async def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused:
        arguments = claim_arguments(self._settings, job_id, stage, owner, reads)
        return claim_from_answer(job_id, stage, owner, await self._run("claim", *arguments))

    async def renew(self, owner: str, held: Sequence[tuple[str, Stage]]) -> list[tuple[str, Stage]]:
        if not held:
            return []
        flat = [part for claim in held for part in claim]
        abandoned = compact_json(error_to_json(Cancelled("The process that waited for the answer is gone.")))
        lost = await self._run("renew", owner, self._queue.lease_s, abandoned, *flat)
        return [held[int(position)] for position in lost]

    async def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        outcome = await self._run("commit", *commit_arguments(self._settings, job_id, stage, owner, commit))
        if outcome != b"ok":
            raise ClaimLost(_text(outcome))

    async def retry(
        self, job_id: str, stage: Stage, owner: str, message: Message, delay_s: float, *, counted: bool
    ) -> None:
        outcome = await self._run(
            "retry",
            job_id,
            stage,
            owner,
            message.queue,
            message.body,
            delay_s,
            int(counted),
            self._queue.lost_after_s,
        )
        if outcome != b"ok":
            raise ClaimLost(_text(outcome))

    async def end(self, job_id: str, status: Status, error: JsonObject | None) -> bool:
        return bool(await self._run("end", job_id, status.value, compact_json(error) if error else b""))

    async def listen(self, job_id: str, listener: str) -> bool:
        return bool(await self._run("listen", job_id, listener))

    async def due(self, limit: int) -> list[Due]:
        members = await self._run("due", limit, self._queue.lost_after_s)
        return [Due(*_text(member).split("|", 1)) for member in members]

    async def redispatch(self, message: Message) -> bool:
        return bool(
            await self._run(
                "redispatch", message.job_id, message.stage, message.queue, message.body, self._queue.lost_after_s
            )
        )

    # ---- reads ---------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        record = _pairs(await self._call("HGETALL", f"ty:job:{job_id}"))
        return _job_from_hash(job_id, record) if record else None

    async def page(self, limit: int, before: str | None) -> list[Job]:
        highest = "+inf"
        if before is not None:
            score = await self._call("ZSCORE", "ty:jobs", before)
            if score is None:
                return []
            highest = f"({_text(score)}"
        jobs: list[Job] = []
        while len(jobs) < limit:
            ids = await self._call(
                "ZREVRANGEBYSCORE", "ty:jobs", highest, "-inf", "WITHSCORES", "LIMIT", 0, limit - len(jobs)
            )
            rows = [row if isinstance(row, list) else None for row in ids]
            pairs = (
                [(_text(row[0]), _text(row[1])) for row in rows if row is not None]
                if all(rows)
                else [(_text(ids[i]), _text(ids[i + 1])) for i in range(0, len(ids), 2)]
            )
            if not pairs:
                break
            found = await asyncio.gather(*(self.get(job_id) for job_id, _ in pairs))
            for (job_id, _), job in zip(pairs, found, strict=True):
                if job is None:  # forgotten since
                    await self._call("ZREM", "ty:jobs", job_id)
                else:
                    jobs.append(job)
            highest = f"({pairs[-1][1]}"
        return jobs

    async def requested(self, request_id: str) -> list[str]:
        return sorted(_text(job_id) for job_id in await self._call("SMEMBERS", f"ty:request:{request_id}"))

    async def payload(self, job_id: str, name: str) -> bytes | None:
        return cast("bytes | None", await self._call("GET", f"ty:payload:{job_id}:{name}"))

    async def read_tokens(self, job_id: str, after: int) -> list[Entry]:
        return await self._read(f"ty:tokens:{job_id}", after)

    async def read_events(self, job_id: str, after: int) -> list[Entry]:
        return await self._read(f"ty:events:{job_id}", after)

    async def _read(self, key: str, after: int) -> list[Entry]:
        rows = await self._call("XRANGE", key, f"({after}-0" if after else "-", "+")
        return [Entry(int(_text(seq).split("-")[0]), fields[1]) for seq, fields in rows]

    async def queued(self, queues: Sequence[str]) -> list[int]:
        return [int(n) for n in await asyncio.gather(*(self._call("LLEN", queue) for queue in queues))]

    # ---- presence ------------------------------------------------------------------------------

    async def announce(self, worker: Worker) -> None:
        body = json.dumps(
            {"role": worker.role, "queues": worker.queues, "models": worker.models, "detail": worker.detail}
        )
        await asyncio.gather(
            self._call("SET", f"ty:worker:{worker.id}", body, "EX", worker.ttl_s),
            self._call("SADD", "ty:workers", worker.id),
        )

    async def withdraw(self, worker_id: str) -> None:
        await asyncio.gather(
            self._call("DEL", f"ty:worker:{worker_id}"),
            self._call("SREM", "ty:workers", worker_id),
            self._call("DEL", f"ty:bus:{worker_id}"),
        )

    async def workers(self) -> list[Worker]:
        ids = sorted(_text(worker_id) for worker_id in await self._call("SMEMBERS", "ty:workers"))
        if not ids:
            return []
        bodies = await self._call("MGET", *(f"ty:worker:{worker_id}" for worker_id in ids))
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
    """One process's inbox: whatever the scripts tell it, in order (see `tasks.ledger.bus`)."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._redis = connect(settings.redis_url, blocking=True)
        self._connection: Any = None
        self._key = f"ty:bus:{name}"

    async def receive(self, wait_s: float) -> list[bytes]:
        """The next messages, at most 500; none if nothing came within `wait_s`.

        Raises:
            ConnectionError: messages may be lost; read the channels again.
        """
        try:
            if self._connection is None:
                self._connection = await self._redis.connection_pool.get_connection()
            command = ("BLMPOP", wait_s, 1, self._key, "LEFT", "COUNT", 500)
            (answer,) = await _exchange(self._connection, [command])
            if isinstance(answer, RedisError):
                raise answer
        except (RedisError, OSError) as error:
            raise OSError(f"the bus broke: {error}") from error
        return cast("list[bytes]", answer[1]) if answer else []

    async def close(self) -> None:
        await self._redis.aclose()


async def _exchange(connection: Any, commands: list[tuple[Any, ...]]) -> list[Any]:
    try:
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        return [await _answer(connection) for _ in commands]
    except BaseException:
        # Answers may still be on their way: nobody must take them for those to other commands.
        await connection.disconnect(nowait=True)
        raise


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pairs(record: Any) -> dict[str, str]:
    if isinstance(record, dict):
        return {_text(key): _text(value) for key, value in record.items()}
    return {_text(record[i]): _text(record[i + 1]) for i in range(0, len(record), 2)}


def _job_from_hash(job_id: str, h: Mapping[str, str]) -> Job:
    stages = tuple(h["stages"].split())
    records = {
        stage: StageRecord(
            state=cast("Any", h.get(f"{stage}.state", "waiting")),
            owner=h.get(f"{stage}.owner", ""),
            lease_until=float(h.get(f"{stage}.lease", 0)),
            attempts=int(h.get(f"{stage}.attempts", 0)),
            sent_at=float(h.get(f"{stage}.sent", 0)),
            started_at=float(h.get(f"{stage}.started", 0)),
            ended_at=float(h.get(f"{stage}.ended", 0)),
        )
        for stage in stages
    }
    return Job(
        id=job_id,
        endpoint=h["endpoint"],
        model=h["model"],
        stages=stages,
        job_class=cast("Literal['interactive', 'batch']", h["class"]),
        stream=h["stream"] == "1",
        followed=h["followed"] == "1",
        detached=h["detached"] == "1",
        status=Status(h["status"]),
        created_at=float(h["created"]),
        deadline_at=float(h["deadline"]),
        ended_at=float(h.get("ended", 0)),
        ttl_s=int(h["ttl"]),
        idempotency_digest=h.get("digest", ""),
        records=records,
        error=json.loads(h["error"]) if h.get("error") else None,
        prompt_tokens=int(h["prompt_tokens"]) if "prompt_tokens" in h else None,
        completion_tokens=int(h["completion_tokens"]) if "completion_tokens" in h else None,
        token_chunks=int(h.get("tokens", 0)),
        metadata=json.loads(h.get("metadata") or "{}"),
    )
