"""What is wrong with the served models, found in their files without loading them.

models.0 (qwen3-8b): tokenizer = '/models/Qwen3-8B': there is no such folder; correct the path
models.0 (qwen3-8b): no tool parser 'hermez'; use one of ..., or a file as PATH.py:NAME
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.settings import ModelSettings, Settings
from workers import parsing
from workers.models.download import MODELS, find_model
from workers.renderers.base import RENDERERS

_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")


def model_faults(settings: Settings) -> list[str]:
    """Everything that would keep a CPU worker from serving these models, in a few milliseconds a model."""
    return [
        f"models.{place} ({model.name}): {fault}"
        for place, model in enumerate(settings.models)
        for fault in _faults_of(model)
    ]


def _faults_of(model: ModelSettings) -> Iterator[str]:
    source = find_model(model.tokenizer)
    config: dict[str, Any] = {}
    if source is None:
        yield from _missing(model.tokenizer)
    elif source.is_dir():
        config = _json(source / "tokenizer_config.json")
        own = config.get("chat_template") or any((source / name).exists() for name in _TEMPLATE_FILES)
        if not any(source.iterdir()):
            yield f"tokenizer = {model.tokenizer!r}: this folder is empty; name the folder with the tokenizer's files"
        elif model.renderer == "jinja" and not own and model.chat_template is None and _is_chat_model(model):
            yield (
                f"tokenizer = {model.tokenizer!r}: this folder has no chat template; set chat_template to a template "
                f"file, or renderer to one of {', '.join(sorted(set(RENDERERS) - {'jinja'}))}"
            )
    if model.chat_template is not None and not Path(model.chat_template).is_file():
        yield f"chat_template = {model.chat_template!r}: there is no such file; correct the path"
    if model.renderer not in RENDERERS:
        yield f"renderer = {model.renderer!r}: there is no such renderer; use one of {', '.join(sorted(RENDERERS))}"
    try:
        parsing.load_format(model.tool_parser, model.reasoning_parser, config.get("response_template"))
    except ValueError as error:
        yield str(error)


def _missing(name: str) -> Iterator[str]:
    if name in MODELS:
        yield f"tokenizer = {name!r}: this model is not downloaded; run: tokenyard models pull {name}"
    elif name.startswith((".", "/", "~")) or name.count("/") != 1 or name.endswith(".gguf"):
        kind = "file" if name.endswith((".gguf", ".json")) else "folder"
        yield f"tokenizer = {name!r}: there is no such {kind}; correct the path"
    # Any other name is a repository, which a worker fetches when it starts.


def _is_chat_model(model: ModelSettings) -> bool:
    """A model without parsers may be meant for completions alone."""
    return bool(model.tool_parser or model.reasoning_parser)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
