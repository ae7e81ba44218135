"""The models that a worker serves, each with the tokenizer, renderer and parser that its settings or its folder name.

catalog = Catalog(settings)
catalog.preload()
profile = catalog.get("qwen3-8b")       # by name or alias; ModelNotFound
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import ModelNotFound
from tasks.protocol.base import JsonObject
from tasks.settings import ModelSettings, Settings
from tasks.telemetry import get_logger
from workers import parsing
from workers.models.discovery import resolve
from workers.models.gguf import ensure_tokenizer
from workers.models.loading import load
from workers.renderers.base import Renderer, make_renderer
from workers.text.tokenizer import LoadedTokenizer, Tokenizer

log = get_logger(__name__)

GENERATION_DEFAULTS = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("temperature", "top_k", "top_p", "min_p", "skip_special_tokens"),
)
"""The sampling parameters that are read from a model's generation_config.json."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One served model, ready to render and derender. Immutable and shared between threads."""

    name: str
    settings: ModelSettings
    """With the renderer and parsers that are used; None for no parser."""
    tokenizer: Tokenizer
    renderer: Renderer
    parser: parsing.Parser
    fingerprint: str
    """Changes with the tokenizer, its templates, or the parsers; a derender state is valid for one fingerprint only."""
    max_model_len: int
    """Tokens of prompt and output together."""
    generation_defaults: Mapping[str, Any]
    """Sampling parameters for requests that leave them out."""
    eos_token_ids: tuple[int, ...]
    """The tokens that the engine stops on; the usual one comes first."""


class Catalog:
    """Profiles by name; each is loaded once, when it is first needed."""

    def __init__(
        self, settings: Settings, *, load_profile: Callable[[ModelSettings], ModelProfile] | None = None
    ) -> None:
        self._settings = settings
        self._load_profile = load_profile or load_model
        self._profiles: dict[str, ModelProfile] = {}
        self._seconds: dict[str, float] = {}
        self._locks = {model.name: threading.Lock() for model in settings.models}

    @property
    def names(self) -> tuple[str, ...]:
        """All names and aliases under which models are served."""
        return tuple(name for model in self._settings.models for name in (model.name, *model.aliases))

    @property
    def loaded(self) -> Mapping[str, float]:
        """The models in memory, and the seconds that each took to load."""
        return dict(self._seconds)

    def preload(self) -> None:
        """Load all models with the setting `preload`; raises the error of the first that fails."""
        for model in self._settings.models:
            if model.preload:
                self.get(model.name)

    def get(self, name: str) -> ModelProfile:
        """The model with this name or alias, loaded if necessary; raises ModelNotFound."""
        model = self._settings.model_named(name)
        if model is None:
            raise ModelNotFound(f"There is no model {name!r}: GET /v1/models lists the served ones.", param="model")
        profile = self._profiles.get(model.name)
        if profile is not None:
            return profile
        with self._locks[model.name]:
            if model.name not in self._profiles:
                started = time.perf_counter()
                self._profiles[model.name] = self._load_profile(model)
                self._seconds[model.name] = time.perf_counter() - started
            return self._profiles[model.name]


def load_model(model: ModelSettings) -> ModelProfile:
    """Load a model's tokenizer, renderer and parser.

    Raises ValueError for an unknown renderer or parser, AssetError or TokenyardError if there is no usable tokenizer,
    and OSError if a file cannot be read.
    """
    folder = ensure_tokenizer(model.tokenizer)
    template = None if model.chat_template is None else Path(model.chat_template).read_text(encoding="utf-8")
    model, found = resolve(model, folder, template)
    renderer = found.renderer.name or "jinja"
    parsed = parsing.load_format(model.tool_parser, model.reasoning_parser, _response_template(folder))
    loaded = load(folder, origin="mistral" if renderer == "mistral" else None)
    generation = _config(folder, "generation_config.json")
    profile = ModelProfile(
        name=model.name,
        settings=model,
        tokenizer=loaded.tokenizer,
        renderer=make_renderer(
            renderer,
            loaded,
            chat_template=template,
            default_template_arguments=model.default_template_arguments,
            max_model_len=model.max_model_len,
            trust_request_chat_template=model.trust_request_chat_template,
            media=model.media,
        ),
        parser=parsing.bind(parsed, loaded.tokenizer.added_tokens),
        fingerprint=_fingerprint(model, loaded, template),
        max_model_len=model.max_model_len,
        generation_defaults=_sampling_of(generation) | model.generation_defaults,
        eos_token_ids=_eos_of(generation, loaded.tokenizer),
    )
    log.info(
        "model_loaded",
        model=model.name,
        renderer=renderer,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
        why={name: choice.why for name, choice in found.choices.items()},
    )
    return profile


def _fingerprint(model: ModelSettings, loaded: LoadedTokenizer, template: str | None) -> str:
    parts = [
        loaded.tokenizer.fingerprint,
        model.tool_parser,
        model.reasoning_parser,
        template if template is not None else dict(sorted(loaded.templates.items())),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _response_template(folder: Path) -> JsonObject | None:
    template: JsonObject | None = _config(folder, "tokenizer_config.json").get("response_template")
    return template


def _config(folder: Path, name: str) -> JsonObject:
    path = folder / name
    config: JsonObject = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return config


def _sampling_of(generation: JsonObject) -> JsonObject:
    sampling = {name: generation[name] for name in GENERATION_DEFAULTS if generation.get(name) is not None}
    if generation.get("max_new_tokens") is not None:
        sampling["max_tokens"] = generation["max_new_tokens"]
    return sampling


def _eos_of(generation: JsonObject, tokenizer: Tokenizer) -> tuple[int, ...]:
    given = generation.get("eos_token_id")
    listed = [given] if isinstance(given, int) else given or []
    usual = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tuple(dict.fromkeys([*usual, *listed]))
