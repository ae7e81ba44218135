"""Runs processes on one machine: starts them in order, restarts those that exit, merges their logs, stops them all.

00:00:01 redis   | Ready to accept connections
00:00:03 cpu-1   | worker_started worker=cpu-host-4711-a1b2c3
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

RESTART_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
HEALTHY_AFTER_S = 20.0
STOP_TIMEOUT_S = 15.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Service:
    """One process: its name in the log, its command, and a check that tells when it is ready."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = lambda: True
    ready_timeout_s: float = 60.0


class ServiceFailed(Exception):
    """A service did not become ready."""


class _Running:
    def __init__(self, service: Service, log: Callable[[str, str], None]) -> None:
        self.service = service
        self._log = log
        self.started_at = 0.0
        self.failures = 0
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            self.service.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.service.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C must reach only the supervisor, which stops its processes in order.
            start_new_session=True,
            preexec_fn=_die_with_parent if _LIBC else None,  # noqa: PLW1509 - calls nothing but prctl
        )
        assert self.process.stdout is not None
        threading.Thread(target=self._copy, args=(self.process.stdout,), daemon=True).start()

    def _copy(self, output: IO[str]) -> None:
        with output:
            for line in output:
                if line := line.rstrip():
                    self._log(self.service.name, line)

    def stop(self, timeout_s: float) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class Supervisor:
    """Starts services, keeps them running until `stop`, and writes their output to one log."""

    def __init__(self, log: IO[str]) -> None:
        self._log_file = log
        self._log_lock = threading.Lock()
        self._began = time.monotonic()
        self._running: list[_Running] = []
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def log(self, name: str, line: str) -> None:
        elapsed_s = int(time.monotonic() - self._began)
        stamp = f"{elapsed_s // 3600:02}:{elapsed_s // 60 % 60:02}:{elapsed_s % 60:02}"
        with self._log_lock:
            self._log_file.write(f"{stamp} {name:<8}| {line}\n")
            self._log_file.flush()

    def start(self, *services: Service) -> None:
        """Start services together, and wait until all of them are ready.

        Raises:
            ServiceFailed: a service exited, or was not ready in time.
        """
        started = [_Running(service, self.log) for service in services]
        self._running += started
        for running in started:
            give_up_at = time.monotonic() + running.service.ready_timeout_s
            while not running.service.ready():
                if running.process.poll() is not None:
                    raise ServiceFailed(f"{running.service.name} exited with status {running.process.returncode}")
                if time.monotonic() > give_up_at:
                    raise ServiceFailed(
                        f"{running.service.name} was not ready in time: it had {running.service.ready_timeout_s:g} s"
                    )
                time.sleep(0.05)

    def watch(self) -> None:
        """Start restarting services that exit."""
        self._watcher.start()

    def _watch(self) -> None:
        while not self._stopping.wait(0.1):
            for running in self._running:
                status = running.process.poll()
                if status is None:
                    continue
                lived_s = time.monotonic() - running.started_at
                running.failures = 0 if lived_s > HEALTHY_AFTER_S else running.failures
                pause_s = RESTART_PAUSES_S[min(running.failures, len(RESTART_PAUSES_S) - 1)]
                if lived_s < pause_s and running.failures:
                    continue
                running.failures += 1
                self.log(running.service.name, f"exited with status {status}; restarting it")
                running.start()

    def pids(self) -> dict[str, int]:
        return {running.service.name: running.process.pid for running in self._running}

    def stop(self) -> None:
        """Stop all services, the last started first."""
        self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for running in reversed(self._running):
            running.stop(STOP_TIMEOUT_S)
        self._running.clear()


def _die_with_parent() -> None:
    """Ask Linux to stop this process when the supervisor dies, even if it is killed."""
    assert _LIBC is not None
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
