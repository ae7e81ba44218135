"""The ledger for worker threads: pop a message, claim its stage, commit it.

A rendering thread waits for nothing but Redis. Calling Redis directly costs less CPU time and adds less latency than a
round trip over the event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from tasks.errors import BrokerUnavailable
from tasks.ledger import keys
from tasks.ledger.redis_store import LOST_CONNECTION, connection_options
from tasks.ledger.scripts import claim_call, claim_from, commit_call, load_scripts, pack, require_ok, text, unpack
from tasks.ledger.store import Claim, Commit, Refused
from tasks.protocol.base import JsonObject
from tasks.settings import Settings
from tasks.specs import Stage

T = TypeVar("T")

WAKE_TTL_S: Final = 60


class BlockingLedger:
    """Blocking versions of `JobStore.claim` and `JobStore.commit`, and `pop`; safe to share between threads.

    Each thread keeps its own connection and bypasses the pool: a pool's work around a command takes as long as the
    command itself. A call repeats itself for `patience_s` while Redis is down, then raises BrokerUnavailable.
    """

    def __init__(self, settings: Settings, *, patience_s: float = 30.0) -> None:
        self._settings = settings
        self._patience_s = patience_s
        self._pool = redis.ConnectionPool.from_url(
            settings.redis_url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=20,
            max_connections=1024,
            **connection_options(settings.redis_url),
        )
        self._local = threading.local()
        self._sources = load_scripts()
        self._shas: dict[str, str] = {}

    def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused:
        """Claim a stage, as `JobStore.claim` does."""
        reply = self._run("claim", claim_call(self._settings, job_id, stage, owner, reads))
        return claim_from(job_id, stage, owner, reply)

    def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        """Write under a claim, as `JobStore.commit` does."""
        require_ok(self._run("commit", commit_call(self._settings, job_id, stage, owner, commit)))

    def pop(self, waker: str, queues: Sequence[str], wait_s: float) -> tuple[str, bytes] | None:
        """Pop the oldest message of the first queue that has one; return the queue's name and the message.

        Returns None if no message arrives within `wait_s`, or if another thread calls `wake(waker)`.
        """
        lists = (keys.WAKE + waker, *queues)
        popped = self._retrying(lambda: self._execute("BLMPOP", wait_s, len(lists), *lists, "RIGHT"))
        if popped is None or text(popped[0]) == lists[0]:
            return None
        return text(popped[0]), popped[1][0]

    def put_back(self, queue: str, body: bytes) -> None:
        """Push a popped message back to the front of its queue."""
        self._retrying(lambda: self._execute("RPUSH", queue, body))

    def wake(self, waker: str) -> None:
        """Make the current `pop` of this waker return at once, or the next one if none is waiting."""
        key = keys.WAKE + waker

        def push() -> None:
            self._execute("LPUSH", key, b"")
            self._execute("EXPIRE", key, WAKE_TTL_S)

        self._retrying(push)

    def close(self) -> None:
        self._pool.disconnect()

    def _execute(self, *command: Any) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        except ResponseError:
            raise
        except BaseException:
            # The reply may still arrive; the next command must not mistake it for its own.
            connection.disconnect()
            raise

    def _run(self, script: str, call: JsonObject) -> JsonObject:
        argument = pack(call)

        def run() -> JsonObject:
            while True:
                if script not in self._shas:
                    self._shas[script] = text(self._execute("SCRIPT", "LOAD", self._sources[script]))
                try:
                    return unpack(self._execute("EVALSHA", self._shas[script], 0, argument))
                except NoScriptError:  # Redis restarted and does not persist its script cache
                    self._shas.pop(script, None)

        return self._retrying(run)

    def _retrying(self, call: Callable[[], T]) -> T:
        """Repeat a call while Redis is down, for at most `patience_s`."""
        give_up_at = time.monotonic() + self._patience_s
        pause_s = 0.05
        while True:
            try:
                return call()
            except LOST_CONNECTION as error:
                if time.monotonic() + pause_s > give_up_at:
                    raise BrokerUnavailable(
                        f"Redis does not answer ({type(error).__name__}). Try again later.", retry_after_s=5
                    ) from error
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)
