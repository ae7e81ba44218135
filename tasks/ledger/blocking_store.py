"""The ledger's calls for threads: take a message, claim its stage, commit it.

A thread that renders waits for nothing but Redis. Asking Redis directly takes less processor time than a round trip over
the event loop, and less of the request's time.
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
    """`claim` and `commit` of `JobStore`, and `pop`, blocking; safe to share between threads.

    Each thread keeps one connection and talks over it directly: what a connection pool does around a command takes as
    long as the command.
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
        self._own = threading.local()
        self._sources = load_scripts()
        self._shas: dict[str, str] = {}

    def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused:
        """As `JobStore.claim`."""
        reply = self._run("claim", claim_call(self._settings, job_id, stage, owner, reads))
        return claim_from(job_id, stage, owner, reply)

    def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        """As `JobStore.commit`."""
        require_ok(self._run("commit", commit_call(self._settings, job_id, stage, owner, commit)))

    def pop(self, waker: str, queues: Sequence[str], wait_s: float) -> tuple[str, bytes] | None:
        """The oldest message of the first queue that has one, with the queue's name; None if none came within `wait_s`,
        or if somebody called `wake(waker)`."""
        lists = (keys.WAKE + waker, *queues)
        popped = self._patiently(lambda: self._ask("BLMPOP", wait_s, len(lists), *lists, "RIGHT"))
        if popped is None or text(popped[0]) == lists[0]:
            return None
        return text(popped[0]), popped[1][0]

    def put_back(self, queue: str, body: bytes) -> None:
        """Return a message that was popped to the front of its queue."""
        self._patiently(lambda: self._ask("RPUSH", queue, body))

    def wake(self, waker: str) -> None:
        """Let the next or the current `pop` of this waker return at once."""
        key = keys.WAKE + waker

        def push() -> None:
            self._ask("LPUSH", key, b"")
            self._ask("EXPIRE", key, WAKE_TTL_S)

        self._patiently(push)

    def close(self) -> None:
        self._pool.disconnect()

    def _ask(self, *command: Any) -> Any:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        except ResponseError:
            raise
        except BaseException:
            # An answer may still be on its way: nobody must take it for that to another question.
            connection.disconnect()
            raise

    def _run(self, script: str, call: JsonObject) -> JsonObject:
        argument = pack(call)

        def run() -> JsonObject:
            while True:
                if script not in self._shas:
                    self._shas[script] = text(self._ask("SCRIPT", "LOAD", self._sources[script]))
                try:
                    return unpack(self._ask("EVALSHA", self._shas[script], 0, argument))
                except NoScriptError:  # Redis was restarted: its script cache is not part of its data
                    self._shas.pop(script, None)

        return self._patiently(run)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while Redis is away."""
        give_up_at = time.monotonic() + self._patience_s
        pause_s = 0.05
        while True:
            try:
                return ask()
            except LOST_CONNECTION as error:
                if time.monotonic() + pause_s > give_up_at:
                    raise BrokerUnavailable(
                        f"Redis does not answer: {type(error).__name__}", retry_after_s=5
                    ) from error
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)
