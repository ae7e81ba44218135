"""How a worker takes messages from its Celery queues. This is the only way.

1. Messages are Celery's (protocol 2, `tasks.broker.routing`) and wait in Celery's queues, which are Redis lists.
2. A worker's own threads take them. Each thread blocks on the worker's queues with one `BLMPOP`, in order of priority.
3. The thread claims the stage that the message names (`tasks/ledger/lua/claim.lua`). The claim's lease replaces an
   acknowledgement: when a worker dies, its lease runs out and the reaper redispatches the stage.
4. If a message is lost between pop and claim, the reaper redispatches its stage after `queue.lost_after_s`.
5. A thread takes its next message only when it can run it: nothing is prefetched. `accepts` excludes queues for which
   the worker has no free slot, so a GPU worker never holds more than its engines' concurrency.
6. A list that only this worker pushes to (`ty:wake:`) ends a wait: when a slot is freed, and when the worker drains.

Celery's consumer takes no task messages. Its acknowledgement on Redis costs eleven commands for each message and a turn
of its loop, which is longer than most renders take (`tests/bench/RESULTS.md`), and it may lose a message that it
popped. It runs next to the threads for what it is good at: heartbeats, task events, remote control, signals.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tasks.errors import BrokerUnavailable
from tasks.ledger.blocking_store import BlockingLedger
from tasks.telemetry import get_logger

log = get_logger(__name__)

WAIT_S: Final = 4.0
STOP_TIMEOUT_S: Final = 5.0

Headers = Mapping[str, Any]


class Delivery:
    """The threads of one worker process that pop messages from its queues and run them.

    `run(headers)` runs a message in the thread that popped it, and returns when the thread may pop the next one.
    """

    def __init__(
        self,
        ledger: BlockingLedger,
        owner: str,
        queues: Sequence[str],
        run: Callable[[Headers], None],
        *,
        threads: int = 1,
        accepts: Callable[[str], bool] = lambda queue: True,
    ) -> None:
        self._ledger, self._owner, self._queues = ledger, owner, tuple(queues)
        self._run, self._accepts = run, accepts
        self._threads = [threading.Thread(target=self._take, name=f"take-{n}", daemon=True) for n in range(threads)]
        self._narrowed = False
        self._stopping = False

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take nothing more; a message popped from now on goes back to its queue."""
        self._stopping = True
        for _ in self._threads:
            self.wake()

    def join(self) -> None:
        """Wait until no thread runs a message any more, at most `STOP_TIMEOUT_S` for each thread."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=STOP_TIMEOUT_S)

    @property
    def narrowed(self) -> bool:
        """Whether a thread waits, or is about to wait, on only some of the queues."""
        return self._narrowed and not self._stopping

    def wake(self) -> None:
        """Make a waiting thread check `accepts` again."""
        try:
            self._ledger.wake(self._owner)
        except BrokerUnavailable:
            log.warning("wake_failed", worker=self._owner)  # the wait ends by itself within WAIT_S

    def _take(self) -> None:
        while not self._stopping:
            try:
                self._take_one()
            except BrokerUnavailable:
                continue  # the ledger has paused between its retries already
            except Exception as error:
                log.error("delivery_raised", exc_info=error)

    def _take_one(self) -> None:
        # Set before `accepts` is checked: a slot freed in between must end this wait.
        self._narrowed = True
        queues = [queue for queue in self._queues if self._accepts(queue)]
        self._narrowed = len(queues) < len(self._queues)
        popped = self._ledger.pop(self._owner, queues, WAIT_S)
        if popped is None:
            return
        queue, body = popped
        if self._stopping:
            self._ledger.put_back(queue, body)
            return
        headers = read_headers(body)
        if headers is None:
            log.error(
                "message_dropped", queue=queue, reason="not a Tokenyard message: its headers name no job and task"
            )
        else:
            self._run(headers)


def read_headers(body: bytes) -> Headers | None:
    """Return the headers of a Tokenyard message, or None for any other message."""
    try:
        headers = json.loads(body)["headers"]
        return headers if isinstance(headers["job"], str) and isinstance(headers["task"], str) else None
    except (ValueError, KeyError, TypeError):
        return None
