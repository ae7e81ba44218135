"""Engines by their kind in a model's settings."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from tasks.settings import EngineSettings
from workers.generate.engines.base import Engine

ENGINES = {
    "vllm": "workers.generate.engines.vllm_http:VllmEngine",
    "llamacpp": "workers.generate.engines.llamacpp:LlamaCppEngine",
    "scripted": "workers.generate.engines.scripted:ScriptedEngine",
}


def create_engine(settings: EngineSettings) -> Engine:
    """The engine that `settings` describe; it connects on first use.

    Raises:
        ValueError: this kind of engine does not know an option, or needs a URL and has none.
    """
    module, attribute = ENGINES[settings.kind].split(":")
    return cast(Engine, getattr(import_module(module), attribute)(settings))
