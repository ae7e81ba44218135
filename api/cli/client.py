"""The console script's HTTP client for a running API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import httpx

from tasks.faults import read_settings
from tasks.settings import Settings


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    name: str
    id: str
    data: Any


def load_settings_or_defaults() -> Settings:
    """The settings of the working directory, which say where its API is; the defaults if they are not valid."""
    settings, _ = read_settings()
    return settings or Settings.model_construct()


def address_of(settings: Settings) -> str:
    """Where the API of these settings is reached from this machine."""
    host = settings.api.host
    # An address to listen on for every interface is none to connect to.
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{reached}]' if ':' in reached else reached}:{settings.api.port}"


class Client:
    """Calls the API. An error ends the command with its message."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(30, read=None))
        if context := click.get_current_context(silent=True):
            context.call_on_close(self._http.close)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        try:
            reply = self._http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise click.ClickException(f"{self._http.base_url}: {error}") from error
        _check(reply)
        return reply.json()

    def stream(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Iterator[Event]:
        try:
            with self._http.stream(method, path, json=body, headers=headers) as reply:
                if reply.is_error:
                    reply.read()
                    _check(reply)
                fields: dict[str, str] = {}
                for line in reply.iter_lines():
                    if line:
                        name, _, value = line.partition(":")
                        fields[name] = value.removeprefix(" ")
                    elif "data" in fields:
                        data = fields["data"]
                        parsed = None if data == "[DONE]" else json.loads(data)
                        yield Event(fields.get("event", "message"), fields.get("id", ""), parsed)
                        fields = {}
                    else:
                        fields = {}
        except httpx.HTTPError as error:
            raise click.ClickException(f"{self._http.base_url}: {error}") from error


def _check(reply: httpx.Response) -> None:
    if not reply.is_error:
        return
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text
    raise click.ClickException(f"{reply.status_code}: {message}")
