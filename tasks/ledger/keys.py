"""The ledger's keys in Redis, and how its scripts know them: written here and nowhere else.

A constant that ends in a colon is a prefix: an id follows it, and a payload's name after that
(`ty:payload:job_01...:prompt`). Queues are not among them: their names are those of the tasks (`tasks.specs`).
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
"""List: what makes a worker that waits for its queues look again."""
WORKER: Final = "ty:worker:"
"""String with a ttl: a live process."""
WORKERS: Final = "ty:workers"
"""Set: the ids of processes that announced themselves."""
WATCH: Final = "ty:watch"
"""Sorted set: `<job>|<stage>` by the time at which the reaper looks at it; `<job>|` for the deadline."""
JOBS: Final = "ty:jobs"
"""Sorted set: detached jobs by the time at which they were accepted."""
IDEMPOTENCY: Final = "ty:idempotency:"
"""String: the job of an idempotency key."""
REQUEST: Final = "ty:request:"
"""Set: the jobs of the requests that their clients call so."""

ALL: Final = {
    name: value for name, value in dict(globals()).items() if isinstance(value, str) and value.startswith("ty:")
}
