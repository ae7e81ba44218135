"""The event loop of a worker process, in its own thread: all I/O that waits runs here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Loop:
    """One event loop; `start` it once, `stop` it at the end of the process."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._background: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine from another thread, and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from another thread, and wait for its result."""
        return self.submit(work).result()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, from any thread."""
        self._loop.call_soon_threadsafe(function)

    def in_thread(self, function: Callable[[], object]) -> None:
        """Call a blocking function on the loop's thread pool, from any thread."""
        self.call(lambda: self._loop.run_in_executor(None, function))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background; call this only on the loop."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def cancel_background(self) -> None:
        """Cancel everything that `spawn` started; call this only on the loop."""
        for task in list(self._background):
            task.cancel()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
