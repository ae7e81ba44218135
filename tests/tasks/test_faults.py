"""A start that is refused names every fault: where, what, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.yard import free_port
from tasks.faults import read_settings, redis_faults, settings_or_exit
from tasks.settings import Settings, load_settings
from tests.conftest import RedisServer, redis_binary

FILE = """
redis_ur = "redis://elsewhere:6379/0"
log_level = "loud"

[limits]
max_queue = 7
max_choices = "many"

[[models]]
nme = "a"
tokenizer = "x"

[[models]]
name = "b"
tokenizer = "x"
[models.engine]
kind = "vlm"
concurency = 3
"""


@pytest.fixture(autouse=True)
def _read_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    load_settings.cache_clear()
    yield
    load_settings.cache_clear()


def faults_of(text: str) -> list[str]:
    Path("tokenyard.toml").write_text(text)
    settings, faults = read_settings()
    assert settings is None and all(fault.fatal for fault in faults)
    return [fault.text for fault in faults]


def test_all_faults_of_the_settings_are_named_at_once() -> None:
    faults = faults_of(FILE)
    for expected in (
        r"tokenyard.toml: unknown key redis_ur; did you mean redis_url\?",
        r"tokenyard.toml: log_level = 'loud': must be 'debug', 'info', 'warning' or 'error'",
        r"tokenyard.toml: unknown key limits.max_queue; did you mean limits.max_queued\?",
        r"tokenyard.toml: limits.max_choices = 'many': must be a valid integer.*",
        r"tokenyard.toml: unknown key models.0.nme; did you mean models.0.name\?",
        r"tokenyard.toml: models.0.name is missing",
        r"tokenyard.toml: models.1.engine.kind = 'vlm': must be 'vllm', 'llamacpp' or 'scripted'",
        r"tokenyard.toml: unknown key models.1.engine.concurency; did you mean models.1.engine.concurrency\?",
    ):
        assert any(re.fullmatch(expected, fault) for fault in faults), (expected, faults)
    assert len(faults) == 8 and not any("pydantic" in fault for fault in faults)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TOKENYARD_LIMITS__MAX_QUEUED", "many", "TOKENYARD_LIMITS__MAX_QUEUED: limits.max_queued = 'many'"),
        ("TOKENYARD_LIMITS__MAX_QUEUE", "7", "TOKENYARD_LIMITS__MAX_QUEUE: unknown key limits.max_queue"),
        ("TOKENYARD_MODELS", '[{"name": "a"}]', "TOKENYARD_MODELS: models.0.tokenizer is missing"),
        ("TOKENYARD_CONFIG", "/no/such.toml", "TOKENYARD_CONFIG names /no/such.toml"),
    ],
)
def test_a_fault_of_the_environment_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    settings, (fault,) = read_settings()
    assert settings is None and fault.text.startswith(says)


def test_a_file_that_is_no_toml_is_named_with_the_place() -> None:
    (fault,) = faults_of("a = 1\nb = = 2\n")
    assert fault.startswith("tokenyard.toml: this is not valid TOML: ") and "line 2" in fault


def test_a_process_without_valid_settings_ends_with_their_faults() -> None:
    Path("tokenyard.toml").write_text("redis_ur = 'x'")
    with pytest.raises(SystemExit, match=r"^error: tokenyard.toml: unknown key redis_ur; did you mean redis_url\?$"):
        settings_or_exit()


def texts(url: str) -> list[str]:
    return [fault.text for fault in redis_faults(Settings(redis_url=url)) if fault.fatal]


def test_a_redis_that_does_not_answer_is_named_without_its_password(redis_server: RedisServer) -> None:
    assert texts(redis_server.url) == texts(redis_server.socket_url) == []
    port = free_port()
    for url, shown in (
        (f"redis://:secret@127.0.0.1:{port}/0", f"redis://:***@127.0.0.1:{port}/0"),
        ("unix:///no/such.sock", "unix:///no/such.sock"),
    ):
        (fault,) = texts(url)
        assert fault.startswith(f"redis_url: {shown} does not answer (") and "start Redis there" in fault
        assert "secret" not in fault
    (fault,) = texts("http://127.0.0.1:80")
    assert "is not a Redis URL" in fault


def test_a_redis_that_may_lose_or_evict_jobs_is_a_warning(tmp_path: Path) -> None:
    binary = redis_binary()
    if binary is None:
        pytest.skip("no Redis server")
    server = RedisServer(binary, tmp_path)
    server.start()
    try:
        import redis

        with redis.Redis.from_url(server.url) as client:
            client.config_set("appendonly", "no")
            client.config_set("maxmemory", "100mb")
            client.config_set("maxmemory-policy", "allkeys-lru")
        faults = list(redis_faults(Settings(redis_url=server.url)))
    finally:
        server.stop()
    assert [fault.fatal for fault in faults] == [False, False]
    assert "append-only" in faults[0].text and "allkeys-lru" in faults[1].text
