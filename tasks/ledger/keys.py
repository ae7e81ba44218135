"""The ledger's Redis keys. Python and the Lua scripts both get them from here.

A constant that ends in a colon is a prefix: an id follows, and for a payload its name (`ty:payload:job_01...:prompt`).
Queues are not here: `tasks.specs` names them.
"""

from __future__ import annotations

from typing import Final

JOB: Final = "ty:job:"
"""Hash: a job's record."""
PAYLOAD: Final = "ty:payload:"
"""String: a payload of a job, by job and name."""
TOKENS: Final = "ty:tokens:"
"""Stream: a job's token channel."""
EVENTS: Final = "ty:events:"
"""Stream: a job's events channel."""
INBOX: Final = "ty:bus:"
"""List: messages for one process (`tasks.ledger.bus`)."""
WAKE: Final = "ty:wake:"
"""List: pushing to it wakes a worker that blocks on its queues."""
WORKER: Final = "ty:worker:"
"""String with a TTL: a live process, set again by each heartbeat."""
WORKERS: Final = "ty:workers"
"""Set: the ids of all processes that have sent a heartbeat."""
WATCH: Final = "ty:watch"
"""Sorted set: `<job>|<stage>`, or `<job>|` for a deadline, by the time when the reaper next checks it."""
JOBS: Final = "ty:jobs"
"""Sorted set: detached jobs by the time when they were accepted."""
IDEMPOTENCY: Final = "ty:idempotency:"
"""String: the id of the job with this idempotency key."""
REQUEST: Final = "ty:request:"
"""Set: the ids of the jobs whose clients sent this request id."""

ALL: Final = {
    name: value for name, value in dict(globals()).items() if isinstance(value, str) and value.startswith("ty:")
}
