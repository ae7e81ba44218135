"""The ledger's calls of a stage that computes, for the thread that computes it.

A pool thread that renders has nothing to wait for but Redis: asking it directly takes less processor time than a way over
the event loop and back, and less of the request's time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from tasks.errors import BrokerUnavailable
from tasks.settings import Settings
from tasks.specs import Stage
from tasks.store import Claim, ClaimLost, Commit, Refused
from tasks.store_redis import LOST_CONNECTION, claim_arguments, claim_from_answer, commit_arguments, load_scripts


class BlockingLedger:
    """`claim` and `commit` of `JobStore`, blocking; safe to share between threads.

    Each thread keeps one connection and talks over it directly: what a pool does around a command takes as long as the
    command.
    """

    def __init__(self, settings: Settings, *, patience_s: float = 30.0) -> None:
        self._settings = settings
        self._patience_s = patience_s
        self._pool = redis.ConnectionPool.from_url(
            settings.redis_url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=20,
            socket_connect_timeout=5,
            socket_keepalive=True,
            max_connections=1024,
        )
        self._own = threading.local()
        self._sources = load_scripts()
        self._shas: dict[str, str] = {}

    def claim(self, job_id: str, stage: Stage, owner: str, reads: Sequence[str]) -> Claim | Refused:
        """As `JobStore.claim`."""
        arguments = claim_arguments(self._settings, job_id, stage, owner, reads)
        return claim_from_answer(job_id, stage, owner, reads, self._run("claim", arguments))

    def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        """As `JobStore.commit`."""
        outcome = self._run("commit", commit_arguments(self._settings, job_id, stage, owner, commit))
        if outcome != b"ok":
            raise ClaimLost(outcome.decode())

    def take(self, queues: Sequence[str], wait_s: float = 0.0) -> bytes | None:
        """The next message of these queues, as a broker's consumer would pop it; None if there is none within `wait_s`.

        A message that is lost between this and its claim is found missing by the reaper, as one is that a consumer loses.
        """
        command = ("BLMPOP", wait_s) if wait_s else ("LMPOP",)
        popped = self._patiently(lambda: self._ask(*command, len(queues), *queues, "RIGHT"))
        message: bytes | None = None if popped is None else popped[1][0]
        return message

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

    def _run(self, script: str, arguments: tuple[Any, ...]) -> Any:
        def run() -> Any:
            while True:
                if script not in self._shas:
                    loaded = self._ask("SCRIPT", "LOAD", self._sources[script])
                    self._shas[script] = loaded.decode() if isinstance(loaded, bytes) else str(loaded)
                try:
                    return self._ask("EVALSHA", self._shas[script], 0, *arguments)
                except NoScriptError:  # Redis was restarted: its script cache is not part of its data
                    self._shas.pop(script, None)

        return self._patiently(run)

    def _patiently(self, ask: Callable[[], Any]) -> Any:
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
