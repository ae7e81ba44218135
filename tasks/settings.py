"""The settings: one frozen tree, read once from the environment and `tokenyard.toml`.

    redis_url = "redis://127.0.0.1:6379/0"

    [[models]]
    name = "qwen3-8b"
    aliases = ["gpt-4o-mini"]
    tokenizer = "/models/Qwen3-8B"
    tool_parser = "hermes"
    reasoning_parser = "qwen3"
    max_model_len = 32768
    engine = { kind = "vllm", urls = ["http://gpu-1:8000"], concurrency = 256 }

Every key has an environment variable: `TOKENYARD_` and the path with `__` between the parts
(`TOKENYARD_LIMITS__MAX_BODY_BYTES`); the environment wins over the file. `TOKENYARD_CONFIG` names another file.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

EngineKind = Literal["vllm", "llamacpp", "scripted"]
Modality = Literal["image", "audio", "video"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSettings(_Frozen):
    """How to reach a model's engine."""

    kind: EngineKind = "vllm"
    urls: tuple[str, ...] = ()
    """Base URLs; requests go to the one with the fewest in flight."""
    concurrency: int = Field(256, ge=1)
    """Slots: how many requests one GPU worker process may have in flight for this model."""
    api_key: str | None = None
    model: str | None = None
    """The engine's own name for the model, if it differs."""
    connect_timeout_s: float = 5.0
    options: dict[str, Any] = Field(default_factory=dict)
    """Options that only this kind of engine has."""

    @property
    def stops_on_strings(self) -> bool:
        """Whether the engine itself stops at stop strings. If not, a worker must read its tokens as they arrive."""
        return self.kind != "scripted" and bool(self.options.get("send_stop", True))


class MediaSettings(_Frozen):
    """The media that a model takes. The engine fetches them, and has its own allow-lists."""

    limits: dict[Modality, int] = Field(default_factory=dict)
    """How many items of each modality one prompt may have; modalities not listed are refused."""
    allowed_domains: tuple[str, ...] = ()
    """Hosts that http and https URLs may name; any host if empty."""
    allowed_local_path: str | None = None
    """The folder on the engine's machine that file URLs may point into; file URLs are refused if not set."""
    placeholders: dict[Modality, str] = Field(default_factory=dict)
    """The text that marks a medium's place in the prompt, for chat templates that read message content as text only."""


class ModelSettings(_Frozen):
    """One served model. What is not set is found in its folder, and nothing is guessed from its name."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")
    aliases: tuple[str, ...] = ()
    tokenizer: str
    """A folder with tokenizer files, a `.gguf` file, a file in Mistral's own format, or a Hugging Face repository."""
    chat_template: str | None = None
    """A template file; the tokenizer's own template if not set."""
    renderer: str | None = None
    """What writes prompts: `jinja` (chat templates), `harmony`, `deepseek_v32`, `deepseek_v4`, or `mistral`, which
    reads `tekken.json` or `tokenizer.model.v3` and needs the extra `mistral`. Found in the folder if not set."""
    tool_parser: str | None = None
    """A name from vLLM's `--tool-call-parser` or from an installed package, or `path/to/file.py:ATTRIBUTE`; `none` for
    no parser. Found in the folder if not set."""
    reasoning_parser: str | None = None
    """The same, for `--reasoning-parser`."""
    default_template_arguments: dict[str, Any] = Field(default_factory=dict)
    max_model_len: int = Field(8192, ge=1)
    """Maximum of prompt and output tokens together."""
    max_output_tokens: int | None = Field(None, ge=1)
    """Upper limit on output tokens, whatever the request asks for."""
    max_logprobs: int = Field(20, ge=-1)
    """How many candidates for each position derender routes accept; -1 for any number."""
    tool_arguments: Literal["stream", "complete"] = "stream"
    """Whether to stream a call's arguments as the model writes them, or send them once the call has closed."""
    trust_request_chat_template: bool = False
    generation_defaults: dict[str, Any] = Field(default_factory=dict)
    """Default sampling parameters. A `generation_config.json` next to the tokenizer is read too."""
    media: MediaSettings = MediaSettings()
    preload: bool = True
    """Load the model's tokenizer at worker start instead of on the first request."""
    engine: EngineSettings = EngineSettings()


class Limits(_Frozen):
    """Limits on what the API accepts, and on how long and how often a job runs."""

    max_body_bytes: int = 32 * 1024 * 1024
    max_queued: int = 10_000
    """Maximum messages in a queue; a request beyond it gets a 429."""
    max_choices: int = 128
    request_timeout_s: float = 600.0
    """Time from accepting an interactive request to its last token."""
    job_timeout_s: float = 86_400.0
    max_attempts: int = Field(3, ge=1)
    """Attempts at one stage in a row that end without progress before the job is set aside; any progress resets them."""
    job_ttl_s: int = 86_400
    """How long a finished job and its result are kept."""
    response_ttl_s: int = 300
    """The same, for a request whose client waits on the connection."""


class QueueSettings(_Frozen):
    """Timing of leases, the reaper and token commits."""

    lease_s: float = 6.0
    """How long a claim holds without being renewed; after that, its worker counts as dead."""
    reap_interval_s: float = 1.0
    lost_after_s: float = 3.0
    """A message that is neither queued nor claimed for this long counts as lost; its stage is redispatched."""
    flush_interval_s: float = 0.01
    """Tokens that arrive within this interval are committed together."""


class ApiSettings(_Frozen):
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = ()
    """API keys; a client must send one of them. If empty, the API is open to everybody."""
    heartbeat_s: float = 15.0


class FlowerSettings(_Frozen):
    host: str = "127.0.0.1"
    port: int = 5555
    user: str = "tokenyard"
    password: str = "tokenyard"


class WorkerSettings(_Frozen):
    cpu_processes: int = Field(2, ge=1)
    cpu_threads: int = Field(2, ge=1)
    """Threads of one CPU worker process that render and derender."""
    gpu_processes: int = Field(1, ge=1)
    drain_s: float = 8.0
    """How long a stopping worker may finish its work before it gives back the rest."""
    batch_share: float = Field(0.75, gt=0, le=1)
    """Batch work gets a slot only while less than this share of the engine's slots is busy."""


class Settings(BaseSettings):
    """The root of the settings tree."""

    model_config = SettingsConfigDict(
        env_prefix="TOKENYARD_", env_nested_delimiter="__", frozen=True, extra="forbid", toml_file="tokenyard.toml"
    )

    redis_url: str = "redis://127.0.0.1:6379/0"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    limits: Limits = Limits()
    queue: QueueSettings = QueueSettings()
    api: ApiSettings = ApiSettings()
    flower: FlowerSettings = FlowerSettings()
    workers: WorkerSettings = WorkerSettings()
    models: tuple[ModelSettings, ...] = ()

    @field_validator("models")
    @classmethod
    def _names_once(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        seen: set[str] = set()
        for model in models:
            for name in (model.name, *model.aliases):
                if name in seen:
                    raise ValueError(f"two models are called {name!r}; names and aliases must be unique")
                seen.add(name)
        return models

    @model_validator(mode="after")
    def _lease_outlives_its_renewal(self) -> Settings:
        if self.queue.lost_after_s < self.queue.reap_interval_s:
            raise ValueError(
                f"queue.lost_after_s ({self.queue.lost_after_s}) must not be shorter than queue.reap_interval_s "
                f"({self.queue.reap_interval_s})"
            )
        return self

    def model_named(self, name: str) -> ModelSettings | None:
        """Return the model with this name or alias, or None."""
        return next((m for m in self.models if name == m.name or name in m.aliases), None)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = settings_file()
        if "TOKENYARD_CONFIG" in os.environ and not path.is_file():
            raise ValueError(f"TOKENYARD_CONFIG names {path}, but there is no such file")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=path)


def settings_file() -> Path:
    """The file that settings are read from, whether it exists or not."""
    return Path(os.environ.get("TOKENYARD_CONFIG") or "tokenyard.toml")


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """Return this process's settings; they are read on first use only."""
    return Settings()
