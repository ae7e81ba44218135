"""One frozen tree of settings, read once from the environment and `tokenyard.toml`.

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
    """How a model's engine is reached."""

    kind: EngineKind = "vllm"
    urls: tuple[str, ...] = ()
    """Base URLs; requests go to the one with the fewest in flight."""
    concurrency: int = Field(256, ge=1)
    """Requests in flight for this model and GPU worker process."""
    api_key: str | None = None
    model: str | None = None
    """The name under which the engine serves the model, where it is another."""
    connect_timeout_s: float = 5.0
    options: dict[str, Any] = Field(default_factory=dict)
    """What one kind of engine understands and others do not."""

    @property
    def stops_on_strings(self) -> bool:
        """Whether the engine itself ends a text at a stop string; if not, its tokens must be read as they come."""
        return self.kind != "scripted" and bool(self.options.get("send_stop", True))


class MediaSettings(_Frozen):
    """What beside text a model takes; its engine fetches it, and has allow-lists of its own."""

    limits: dict[Modality, int] = Field(default_factory=dict)
    """How many of each one prompt may have; what is not named is refused."""
    allowed_domains: tuple[str, ...] = ()
    """Hosts that http and https URLs may name; any if empty."""
    allowed_local_path: str | None = None
    """The folder on the engine's machine that file URLs may name; none if not set."""
    placeholders: dict[Modality, str] = Field(default_factory=dict)
    """What stands for one of them in the prompt, for chat templates that read a message's content as text only."""


class ModelSettings(_Frozen):
    """One served model: explicit, nothing is guessed from its name."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")
    aliases: tuple[str, ...] = ()
    tokenizer: str
    """A folder with the tokenizer's files, a `.gguf` file, a file of Mistral's own, or a Hugging Face repository."""
    chat_template: str | None = None
    """A template file; the tokenizer's own if not set."""
    renderer: str = "jinja"
    """What writes prompts: `jinja` (chat templates), `harmony`, `deepseek_v32`, `deepseek_v4`, or `mistral`, which reads
    `tekken.json` or `tokenizer.model.v3` and needs the extra of its name."""
    tool_parser: str | None = None
    """A name that vLLM has for `--tool-call-parser`, one that a package adds, or `path/to/file.py:ATTRIBUTE`."""
    reasoning_parser: str | None = None
    """The same for `--reasoning-parser`."""
    default_template_arguments: dict[str, Any] = Field(default_factory=dict)
    max_model_len: int = Field(8192, ge=1)
    """Tokens of prompt and output together."""
    max_output_tokens: int | None = Field(None, ge=1)
    """No answer is longer, whatever its request says."""
    max_logprobs: int = Field(20, ge=-1)
    """Candidates for a position that derender routes read; -1 for any number."""
    tool_arguments: Literal["stream", "complete"] = "stream"
    """Whether a streamed call's arguments come as the model writes them or once the call has closed."""
    trust_request_chat_template: bool = False
    generation_defaults: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters for requests that leave them out; a `generation_config.json` beside the tokenizer is read."""
    media: MediaSettings = MediaSettings()
    preload: bool = True
    """Load at worker start rather than on the first request."""
    engine: EngineSettings = EngineSettings()


class Limits(_Frozen):
    """What is refused, and what is given up."""

    max_body_bytes: int = 32 * 1024 * 1024
    max_queued: int = 10_000
    """Interactive requests waiting for one model; beyond it 429."""
    max_choices: int = 128
    request_timeout_s: float = 600.0
    """From acceptance to the last token of an interactive request."""
    job_timeout_s: float = 86_400.0
    max_attempts: int = 4
    """Runs of one stage, counted over all workers, before the job fails."""
    job_ttl_s: int = 86_400
    """How long a finished job and its result are kept."""
    response_ttl_s: int = 300
    """The same for a request whose client waited for the answer."""


class QueueSettings(_Frozen):
    """Delivery guarantees of the broker and the ledger."""

    lease_s: float = 6.0
    """A worker that has not renewed its claim on a stage for this long is dead."""
    reap_interval_s: float = 1.0
    lost_after_s: float = 3.0
    """A message that is neither queued nor claimed for this long is lost and is sent again."""
    flush_interval_s: float = 0.01
    """Tokens that arrive within it travel together."""


class ApiSettings(_Frozen):
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = ()
    """Bearer keys that clients must send one of; open if empty."""
    heartbeat_s: float = 15.0


class FlowerSettings(_Frozen):
    host: str = "127.0.0.1"
    port: int = 5555
    user: str = "tokenyard"
    password: str = "tokenyard"


class WorkerSettings(_Frozen):
    cpu_processes: int = Field(2, ge=1)
    cpu_threads: int = Field(2, ge=1)
    """Threads of a CPU worker that render and derender."""
    gpu_processes: int = Field(1, ge=1)
    drain_s: float = 8.0
    """How long a stopping worker goes on with what it has before it gives it to another."""
    batch_share: float = Field(0.75, gt=0, le=1)
    """The part of an engine's slots that batch work may take while interactive work leaves them free."""


class Settings(BaseSettings):
    """The whole tree."""

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
                    raise ValueError(f"two models are called {name!r}")
                seen.add(name)
        return models

    @model_validator(mode="after")
    def _lease_outlives_its_renewal(self) -> Settings:
        if self.queue.lost_after_s < self.queue.reap_interval_s:
            raise ValueError("queue.lost_after_s must not be shorter than queue.reap_interval_s")
        return self

    def model_named(self, name: str) -> ModelSettings | None:
        """The model of that name or alias."""
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
        named = os.environ.get("TOKENYARD_CONFIG")
        path = Path(named or "tokenyard.toml")
        if named and not path.is_file():
            raise ValueError(f"TOKENYARD_CONFIG names {named}, which is not there")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=path)


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """This process's settings; read on first use and never again."""
    return Settings()
