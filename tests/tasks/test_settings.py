"""Settings: the environment overrides the file, names are unique, and a mistake is an error, not a default."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.settings import Settings, load_settings

FILE = """
redis_url = "redis://file:6379/0"
log_level = "warning"

[limits]
max_queued = 7
max_choices = 3

[[models]]
name = "qwen3-8b"
aliases = ["gpt-4o-mini"]
tokenizer = "/models/Qwen3-8B"
engine = { kind = "vllm", urls = ["http://gpu-1:8000"], concurrency = 16 }
"""


@pytest.fixture(autouse=True)
def _file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tokenyard.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)


def test_the_file_is_read() -> None:
    settings = Settings()
    assert settings.redis_url == "redis://file:6379/0" and settings.limits.max_queued == 7
    (model,) = settings.models
    assert model.engine.urls == ("http://gpu-1:8000",) and model.engine.concurrency == 16
    assert settings.model_named("gpt-4o-mini") is settings.model_named("qwen3-8b") is model
    assert settings.model_named("qwen") is None


def test_the_environment_wins_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_REDIS_URL", "redis://environment:6379/0")
    monkeypatch.setenv("TOKENYARD_LIMITS__MAX_QUEUED", "9")
    monkeypatch.setenv("TOKENYARD_API__KEYS", '["a", "b"]')
    settings = Settings()
    assert settings.redis_url == "redis://environment:6379/0" and settings.log_level == "warning"
    assert (settings.limits.max_queued, settings.limits.max_choices) == (9, 3)
    assert settings.api.keys == ("a", "b")


def test_models_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_MODELS", '[{"name": "b", "tokenizer": "t"}]')
    assert [model.name for model in Settings().models] == ["b"]


def test_another_file_can_be_named_and_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('redis_url = "redis://other:6379/0"')
    monkeypatch.setenv("TOKENYARD_CONFIG", str(tmp_path / "other.toml"))
    assert Settings().redis_url == "redis://other:6379/0"
    monkeypatch.setenv("TOKENYARD_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(ValueError, match=r"missing\.toml"):
        Settings()


def test_without_a_file_there_are_defaults(tmp_path: Path) -> None:
    (tmp_path / "tokenyard.toml").unlink()
    assert Settings().models == ()


@pytest.mark.parametrize(
    "line", ["redis_ulr = 'x'", "[limit]\nmax_queued = 1", "[limits]\nmax_qeued = 1", "log_level = 'loud'"]
)
def test_a_misspelt_key_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "tokenyard.toml").write_text(line)
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize(
    ("first", "second"), [(("a", []), ("a", [])), (("a", ["b"]), ("b", [])), (("a", ["c"]), ("b", ["c"]))]
)
def test_two_models_do_not_share_a_name(first: tuple[str, list[str]], second: tuple[str, list[str]]) -> None:
    models = [{"name": name, "aliases": aliases, "tokenizer": "t"} for name, aliases in (first, second)]
    with pytest.raises(ValidationError, match="two models are called"):
        Settings(models=models)


@pytest.mark.parametrize("name", ["", "with space", "-x", "a\nb"])
def test_a_model_name_is_fit_for_a_queue_name(name: str) -> None:
    with pytest.raises(ValidationError):
        Settings(models=[{"name": name, "tokenizer": "t"}])


def test_the_tree_is_frozen() -> None:
    settings = Settings()
    for owner, field in ((settings, "redis_url"), (settings.limits, "max_queued"), (settings.models[0], "name")):
        with pytest.raises(ValidationError):
            setattr(owner, field, "x")


def test_times_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValidationError, match="lost_after_s"):
        Settings(queue={"lost_after_s": 0.1, "reap_interval_s": 1})


def test_a_process_reads_its_settings_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load_settings.cache_clear()
    try:
        before = load_settings()
        monkeypatch.setenv("TOKENYARD_LOG_LEVEL", "debug")
        assert load_settings() is before
    finally:
        load_settings.cache_clear()
