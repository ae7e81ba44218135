"""The ledger's Lua scripts: their arguments, their replies, and the names that they share with Python.

    source = load_scripts()["claim"]
    EVALSHA <source> 0 pack(claim_call(settings, "job_1", "render", "cpu-1", ("request",)))
    -> unpack(reply) == {"outcome": b"ok", "attempt": 1, "record": [...], "payloads": {"request": b"..."}}

A script has one argument and one reply, both MessagePack maps; the head of each file in `lua/` lists their fields.
Strings come back as bytes, because payloads are bytes. An empty map comes back as an empty list, because Lua has only
one kind of table. Every script is idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final, cast

import msgpack

from tasks.errors import Cancelled, error_to_json
from tasks.ledger import keys
from tasks.ledger.store import (
    ABANDONED,
    TERMINAL,
    Claim,
    ClaimLost,
    Commit,
    Job,
    Message,
    NewJob,
    Refused,
    StageRecord,
    StageState,
    Status,
)
from tasks.protocol.base import JsonObject, compact_json
from tasks.settings import Settings
from tasks.specs import STAGES, Stage

SCRIPTS: Final = ("submit", "claim", "renew", "commit", "retry", "end", "listen", "due", "redispatch")


def load_scripts() -> dict[str, str]:
    """Return each script's source by name, with the shared names and the prelude before it."""
    folder = resources.files("tasks.ledger") / "lua"
    shared = shared_names() + (folder / "prelude.lua").read_text()
    return {name: shared + (folder / f"{name}.lua").read_text() for name in SCRIPTS}


def shared_names() -> str:
    """Return Lua code that defines the names of keys, states and stages."""
    return "".join(
        f"local {name} = {_lua(table)}\n"
        for name, table in (
            ("KEY", keys.ALL),
            ("STATUS", {status.name: status.value for status in Status}),
            ("TERMINAL", {status.value: True for status in sorted(TERMINAL)}),
            ("STATE", {state.name: state.value for state in StageState}),
            ("STAGES", list(STAGES)),
        )
    )


def _lua(table: Mapping[str, Any] | list[str]) -> str:
    if isinstance(table, list):
        return "{" + ", ".join(json.dumps(value) for value in table) + "}"
    return "{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in table.items()) + "}"


def pack(call: Mapping[str, Any]) -> bytes:
    """Encode a script's argument."""
    # Lua has only one kind of string, so text and bytes need no distinction.
    return cast("bytes", msgpack.packb(call, use_bin_type=False))


def unpack(reply: bytes) -> dict[str, Any]:
    """Decode a script's reply: fields by name, strings as bytes."""
    fields = msgpack.unpackb(reply, raw=True, strict_map_key=False)
    return {name.decode(): value for name, value in fields.items()}


def text(value: Any) -> str:
    """Decode a string from Redis or from a script's reply."""
    return value.decode() if isinstance(value, bytes) else str(value)


def pairs(record: Any) -> dict[str, str]:
    """Decode a Redis hash, whether it came as a map or as alternating names and values."""
    if isinstance(record, dict):
        return {text(key): text(value) for key, value in record.items()}
    return {text(record[i]): text(record[i + 1]) for i in range(0, len(record), 2)}


# ---- calls -------------------------------------------------------------------------------------------


def submit_call(
    settings: Settings, job: NewJob, payloads: Mapping[str, bytes], messages: Sequence[Message], max_queued: int
) -> JsonObject:
    return {
        "id": job.id,
        "record": {
            "endpoint": job.endpoint,
            "model": job.model,
            "class": job.job_class,
            "stream": int(job.stream),
            "followed": int(job.followed),
            "detached": int(job.detached),
            "stages": " ".join(job.stages),
            "listeners": job.listener,
            "digest": job.idempotency_digest,
            "metadata": compact_json(job.metadata),
        },
        "deadline_in": job.deadline_in_s,
        "ttl": job.ttl_s,
        "queues": job.queues,
        "max_queued": max_queued,
        "payloads": dict(payloads),
        "messages": [_message(message) for message in messages],
        "detached": job.detached,
        "idempotency_key": job.idempotency_key,
        "request_id": job.request_id,
        "lost_after": settings.queue.lost_after_s,
    }


def claim_call(settings: Settings, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> JsonObject:
    return {
        "id": job_id,
        "stage": stage,
        "owner": owner,
        "lease": settings.queue.lease_s,
        "most": settings.limits.max_attempts,
        "reads": list(reads),
    }


def claim_from(job_id: str, stage: Stage, owner: str, reply: Mapping[str, Any]) -> Claim | Refused:
    """Decode the reply of the `claim` script."""
    if reply["outcome"] != b"ok":
        return Refused(cast("Any", text(reply["outcome"])))
    payloads = {text(name): value for name, value in dict(reply["payloads"]).items()}
    return Claim(job_from(job_id, pairs(reply["record"])), stage, owner, reply["attempt"], payloads)


def require_ok(reply: Mapping[str, Any]) -> None:
    """Raise ClaimLost if a script refused to write."""
    if reply["outcome"] != b"ok":
        raise ClaimLost(text(reply["outcome"]))


def commit_call(settings: Settings, job_id: str, stage: Stage, owner: str, commit: Commit) -> JsonObject:
    counts = {"prompt_tokens": commit.prompt_tokens, "completion_tokens": commit.completion_tokens}
    return {
        "id": job_id,
        "stage": stage,
        "owner": owner,
        "payloads": dict(commit.payloads),
        "counts": {name: count for name, count in counts.items() if count is not None},
        "tokens": list(commit.tokens),
        "tokens_from": commit.tokens_from,
        "events": list(commit.events),
        "consumed": commit.consumed,
        "done": commit.done,
        "messages": [_message(message) for message in commit.messages],
        "status": None if commit.status is None else commit.status.value,
        "error": compact_json(commit.error) if commit.error else b"",
        "lost_after": settings.queue.lost_after_s,
    }


def renew_call(settings: Settings, owner: str, claims: Sequence[tuple[str, Stage]]) -> JsonObject:
    abandoned = Cancelled(ABANDONED)
    return {
        "owner": owner,
        "lease": settings.queue.lease_s,
        "abandoned": compact_json(error_to_json(abandoned)),
        "claims": list(claims),
    }


def retry_call(
    settings: Settings, job_id: str, owner: str, message: Message, delay_s: float, *, counted: bool
) -> JsonObject:
    return {
        "id": job_id,
        "owner": owner,
        "message": _message(message),
        "delay": delay_s,
        "counted": counted,
        "most": settings.limits.max_attempts,
        "lost_after": settings.queue.lost_after_s,
    }


def redispatch_call(settings: Settings, message: Message) -> JsonObject:
    return {"id": message.job_id, "message": _message(message), "lost_after": settings.queue.lost_after_s}


def _message(message: Message) -> JsonObject:
    return {"stage": message.stage, "queue": message.queue, "body": message.body}


# ---- records -----------------------------------------------------------------------------------------


def job_from(job_id: str, record: Mapping[str, str]) -> Job:
    """Decode a job from its hash in Redis."""
    stages = tuple(record["stages"].split())
    return Job(
        id=job_id,
        endpoint=record["endpoint"],
        model=record["model"],
        stages=stages,
        job_class=cast("Any", record["class"]),
        stream=record["stream"] == "1",
        followed=record["followed"] == "1",
        detached=record["detached"] == "1",
        status=Status(record["status"]),
        created_at=float(record["created"]),
        deadline_at=float(record["deadline"]),
        ended_at=float(record.get("ended", 0)),
        ttl_s=int(record["ttl"]),
        idempotency_digest=record.get("digest", ""),
        records={stage: _stage_from(stage, record) for stage in stages},
        error=json.loads(record["error"]) if record.get("error") else None,
        prompt_tokens=int(record["prompt_tokens"]) if "prompt_tokens" in record else None,
        completion_tokens=int(record["completion_tokens"]) if "completion_tokens" in record else None,
        token_chunks=int(record.get("tokens", 0)),
        metadata=json.loads(record.get("metadata") or "{}"),
    )


def _stage_from(stage: Stage, record: Mapping[str, str]) -> StageRecord:
    return StageRecord(
        state=StageState(record.get(f"{stage}.state", StageState.WAITING)),
        owner=record.get(f"{stage}.owner", ""),
        lease_until=float(record.get(f"{stage}.lease", 0)),
        attempts=int(record.get(f"{stage}.attempts", 0)),
        fruitless=int(record.get(f"{stage}.fruitless", 0)),
        sent_at=float(record.get(f"{stage}.sent", 0)),
        started_at=float(record.get(f"{stage}.started", 0)),
        ended_at=float(record.get(f"{stage}.ended", 0)),
    )
