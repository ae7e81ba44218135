"""What is wrong with the settings and with Redis, in words that say where, what, and what to do.

    tokenyard.toml: unknown key redis_ur; did you mean redis_url?
    TOKENYARD_LIMITS__MAX_QUEUED: 'many' is not a valid integer
    redis_url: redis://10.0.0.5:6379/0 does not answer (Connection refused); start Redis there, or correct the URL

Every check returns all the faults that it finds, so that one start names them all.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import redis
from pydantic import BaseModel, ValidationError
from redis.exceptions import RedisError

from tasks.settings import Settings, load_settings, settings_file

CONNECT_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, where, and what to do. A start is refused if it is `fatal`."""

    text: str
    fatal: bool = True


def read_settings() -> tuple[Settings | None, list[Fault]]:
    """The settings of this process, or None and what is wrong with them."""
    try:
        return load_settings(), []
    except ValidationError as error:
        return None, [Fault(text) for text in dict.fromkeys(_faults_of(error))]
    except tomllib.TOMLDecodeError as error:
        return None, [Fault(f"{settings_file()}: this is not valid TOML: {error}")]
    except ValueError as error:
        return None, [Fault(str(error))]


def settings_or_exit() -> Settings:
    """The settings of this process; without valid ones it ends, and says why on standard error."""
    settings, faults = read_settings()
    if settings is None:
        raise SystemExit("\n".join(f"error: {fault.text}" for fault in faults))
    return settings


def redis_faults(settings: Settings) -> Iterator[Fault]:
    """Whether Redis answers, is recent enough, and keeps what it was given."""
    shown = _without_password(settings.redis_url)
    try:
        client = redis.Redis.from_url(
            settings.redis_url, socket_timeout=CONNECT_TIMEOUT_S, **_connect_options(settings.redis_url)
        )
    except ValueError as error:
        yield Fault(f"redis_url: {shown!r} is not a Redis URL ({error}); use redis://host:6379/0, rediss:// or unix://")
        return
    try:
        server: Any = client.info("server")
        memory: Any = client.info("memory")
        persistence: Any = client.info("persistence")
    except (RedisError, OSError) as error:
        yield Fault(f"redis_url: {shown} does not answer ({error}); start Redis there, or correct the URL")
        return
    finally:
        client.close()
    if int(str(server["redis_version"]).split(".")[0]) < 7:
        yield Fault(f"redis_url: {shown} is Redis {server['redis_version']}; Tokenyard needs 7.0 or newer")
    if not persistence.get("aof_enabled"):
        yield Fault(
            f"redis_url: {shown} has no append-only file, so its restart loses accepted jobs; start it with "
            "--appendonly yes",
            fatal=False,
        )
    if memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction":
        policy = memory["maxmemory_policy"]
        yield Fault(f"redis_url: {shown} may evict jobs (maxmemory-policy {policy}); set it to noeviction", fatal=False)


def _connect_options(url: str) -> dict[str, Any]:
    return {} if url.startswith("unix:") else {"socket_connect_timeout": CONNECT_TIMEOUT_S}


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@")


def _faults_of(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_url=False):
        path = [str(part) for part in one["loc"]]
        where, key = _source_of(path), ".".join(path)
        if one["type"] == "extra_forbidden":
            known = get_close_matches(path[-1], _keys_at(path[:-1]), n=1)
            prefix = "".join(f"{part}." for part in path[:-1])
            hint = f"; did you mean {prefix}{known[0]}?" if known else ""
            yield f"{where}: unknown key {key}{hint}"
        elif one["type"] == "missing":
            yield f"{where}: {key} is missing"
        else:
            given = repr(one["input"])
            value = f" = {given}" if not isinstance(one["input"], dict | list) and len(given) < 200 else ""
            reason = one["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
            must = "must be " if one["msg"].startswith("Input should be ") else ""
            yield f"{where}: {key}{value}: {must}{reason}" if key else f"{where}: {reason}"


def _source_of(path: list[str]) -> str:
    """Where a key was set: the name of its environment variable, or the file."""
    for depth in range(len(path), 0, -1):
        name = "TOKENYARD_" + "__".join(path[:depth]).upper()
        for variable in os.environ:
            if variable.upper() == name:
                return variable
    return str(settings_file())


def _keys_at(path: list[str]) -> list[str]:
    """The known keys of the table at this path."""
    model: Any = Settings
    for part in path:
        if part.isdecimal():
            continue
        field = model.model_fields.get(part)
        if field is None:
            return []
        model = next(_models_in(field.annotation), None)
        if model is None:
            return []
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
