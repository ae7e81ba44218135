"""`tokenyard check`, and what `up`, `api` and workers refuse to start with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api.cli.client import address_of
from api.cli.yard import free_port, worker_command
from tasks.settings import Settings
from tests.conftest import RedisServer
from tests.integration.harness import write_tokenizer

WRONG = """
redis_url = "redis://127.0.0.1:1/0"

[[models]]
name = "m"
tokenizer = "/no/such/folder"
tool_parser = "hermez"
"""


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKENYARD_")}
    root = str(Path(__file__).parents[3])
    return subprocess.run(
        command or (sys.executable, "-m", "api.cli.main", "check"),
        cwd=folder,
        env={**kept, "PYTHONPATH": root, "TOKENYARD_LOG_FORMAT": "text", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def tokenyard(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "api.cli.main", *arguments)


@pytest.mark.parametrize(
    "command",
    [tokenyard("check"), tokenyard("up"), tokenyard("api"), worker_command("cpu"), worker_command("gpu")],
    ids=str,
)
def test_what_cannot_start_says_all_that_is_wrong_and_ends(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "tokenyard.toml").write_text(WRONG)
    done = run(tmp_path, *command, TOKENYARD_API__PORT=str(free_port()), TOKENYARD_FLOWER__PORT=str(free_port()))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "redis_url: redis://127.0.0.1:1/0 does not answer" in done.stderr
    if command[-1] in ("check", "up") or "workers.cpu" in command:
        assert "/no/such/folder" in done.stderr and "did you mean 'hermes'?" in done.stderr


@pytest.mark.parametrize("command", [tokenyard("up"), worker_command("cpu")], ids=str)
def test_settings_that_are_not_valid_are_named_before_anything_else(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "tokenyard.toml").write_text("redis_ur = 'x'")
    done = run(tmp_path, *command)
    assert done.returncode != 0
    assert "error: tokenyard.toml: unknown key redis_ur; did you mean redis_url?" in done.stderr
    assert "pydantic" not in done.stderr and "Traceback" not in done.stderr


def test_a_sound_yard_is_in_order_and_a_taken_port_is_not(tmp_path: Path, redis_server: RedisServer) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    file = f"""
    redis_url = "{redis_server.url}"
    [[models]]
    name = "m"
    tokenizer = "{tokenizer}"
    tool_parser = "hermes"
    [models.engine]
    urls = ["http://127.0.0.1:1"]
    """
    (tmp_path / "tokenyard.toml").write_text(file)
    ports = {"TOKENYARD_API__PORT": str(free_port()), "TOKENYARD_FLOWER__PORT": str(free_port())}
    done = run(tmp_path, **ports)
    assert (done.returncode, done.stderr) == (0, ""), "an engine that is down is no fault"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(ports["TOKENYARD_FLOWER__PORT"])))
        taken.listen()
        done = run(tmp_path, **ports)
    assert (
        done.returncode == 2 and f"flower.port: port {ports['TOKENYARD_FLOWER__PORT']} is already in use" in done.stderr
    )


def test_a_check_takes_a_moment(tmp_path: Path) -> None:
    (tmp_path / "tokenyard.toml").write_text(WRONG)
    fastest = min(_seconds(tmp_path) for _ in range(3))
    assert fastest < 20, "it starts nothing and waits for nothing"


def _seconds(folder: Path) -> float:
    began = time.monotonic()
    run(folder)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 8000, "http://127.0.0.1:8000"),
        ("0.0.0.0", 9000, "http://127.0.0.1:9000"),
        ("::", 80, "http://[::1]:80"),
        ("yard.example", 80, "http://yard.example:80"),
    ],
)
def test_the_api_is_where_the_settings_say(host: str, port: int, address: str) -> None:
    assert address_of(Settings(api={"host": host, "port": port})) == address


def test_commands_ask_the_api_of_the_settings_here(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "tokenyard.toml").write_text(f"[api]\nport = {port}\n")
    done = run(tmp_path, *tokenyard("models"))
    assert done.returncode == 1 and f"http://127.0.0.1:{port}" in done.stderr
    other = free_port()
    done = run(tmp_path, *tokenyard("models"), TOKENYARD_URL=f"http://127.0.0.1:{other}")
    assert f"http://127.0.0.1:{other}" in done.stderr
