"""The ledger's calls of a stage that computes, for the thread that computes it.

A pool thread that renders has nothing to wait for but Redis: asking it directly takes less processor time than a way over
the event loop and back, and less of the request's time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from tasks.errors import BrokerUnavailable
from tasks.ledger.redis_store import LOST_CONNECTION, claim_arguments, claim_from_answer, commit_arguments, load_scripts
from tasks.ledger.store import Claim, ClaimLost, Commit, Refused
from tasks.protocol.base import JsonObject
from tasks.settings import Settings
from tasks.specs import Stage

HANDING_S = 0.005


@dataclass(frozen=True, slots=True)
class Taken:
    """A message's headers, and what became of the claim of the stage that it is about; None if it is to be asked for."""

    headers: JsonObject
    claim: Claim | Refused | None


class BlockingLedger:
    """`claim` and `commit` of `JobStore`, and `take`, blocking; safe to share between threads.

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
        return claim_from_answer(job_id, stage, owner, self._run("claim", arguments))

    def commit(self, job_id: str, stage: Stage, owner: str, commit: Commit) -> None:
        """As `JobStore.commit`."""
        outcome = self._run("commit", commit_arguments(self._settings, job_id, stage, owner, commit))
        if outcome != b"ok":
            raise ClaimLost(outcome.decode())

    def take(self, owner: str, queues: Sequence[str], pools: Sequence[str] = (), wait_s: float = 0.0) -> list[Taken]:
        """The next message of these queues, as a broker's consumer would pop it, claimed for `owner`; none if there is
        none.

        If there are pools, this thread then counts as waiting for their work for `wait_s`, and is handed what comes:
        one message of each pool at most. What is lost on its way to this thread was claimed: it is found when its lease
        runs out.
        """
        hands = f"{owner} {threading.get_ident()}"
        queue, limits = self._settings.queue, self._settings.limits
        arguments = (hands, wait_s, queue.lease_s, limits.max_attempts, len(pools), *pools, *queues)
        found = self._run("take", arguments)
        if found is not None:
            return [_taken(owner, found)]
        if not pools:
            return []
        # What comes after the registration waits in the list already; the thread stays a little longer than it counts.
        read = ("BLMPOP", wait_s + HANDING_S, 1, f"ty:hands:{hands}", "LEFT", "COUNT", 1_000_000)
        popped = self._patiently(lambda: self._ask(*read))
        records = [] if popped is None else popped[1]
        taken = []
        while records:
            count = int(records[0])
            taken.append(_taken(owner, records[1 : count + 1]))
            records = records[count + 1 :]
        return taken

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


def _taken(owner: str, record: list[bytes]) -> Taken:
    message, *answer = record
    headers = json.loads(message)["headers"]
    if answer == [b"ask"]:
        return Taken(headers, None)
    return Taken(headers, claim_from_answer(headers["job"], headers["stage"], owner, answer))
