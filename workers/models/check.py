"""What is wrong with the served models, found in their files without loading them.

models.0 (qwen3-8b): tokenizer = '/models/Qwen3-8B': there is no such folder; correct the path
models.0 (qwen3-8b): no tool parser 'hermez'; use one of ..., or a file as PATH.py:NAME
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from tasks.protocol.base import JsonObject
from tasks.settings import ModelSettings, Settings
from workers import parsing
from workers.models.discovery import NONE, ModelFiles, discover, resolve
from workers.models.download import MODELS, find_model
from workers.renderers.base import RENDERERS
from workers.renderers.forms import call_form_of
from workers.renderers.templates import content_format_of


def model_faults(settings: Settings) -> list[str]:
    """Everything that would keep a CPU worker from serving these models, in a few milliseconds a model."""
    return [
        f"models.{place} ({model.name}): {fault}"
        for place, model in enumerate(settings.models)
        for fault in _faults_of(model)
    ]


def folder_report(name: str) -> JsonObject:
    """What a model's folder is served with if the settings name nothing but it, and what is wrong with it."""
    model = ModelSettings(name="m", tokenizer=name)
    report: JsonObject = {"tokenizer": name, "faults": list(_faults_of(model))}
    source = find_model(name)
    if source is None or source.suffix == ".gguf":
        return report
    found = discover(source)
    report |= {setting: {"name": choice.name, "why": choice.why} for setting, choice in found.choices.items()}
    if found.renderer.name == "jinja":
        report["templates"] = {
            template: {"content": content_format_of(text), "calls": _call_form(text)}
            for template, text in sorted(ModelFiles(source).templates.items())
        }
    return report


def _call_form(template: str) -> JsonObject | None:
    form = call_form_of(template)
    return None if form is None else asdict(form)


def _faults_of(model: ModelSettings) -> Iterator[str]:
    source = find_model(model.tokenizer)
    template = response_template = None
    if model.chat_template is not None:
        try:
            template = Path(model.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            yield f"chat_template = {model.chat_template!r}: there is no such file; correct the path"
    if source is None:
        yield from _missing(model.tokenizer)
    elif source.is_dir() or source.suffix != ".gguf":
        model, _ = resolve(model, source, template)
        files = ModelFiles(source)
        response_template = files.tokenizer_config.get("response_template")
        if source.is_dir() and not any(source.iterdir()):
            yield f"tokenizer = {model.tokenizer!r}: this folder is empty; name the folder with the tokenizer's files"
        elif model.renderer == "jinja" and not (files.templates or model.chat_template) and _is_chat_model(model):
            yield (
                f"tokenizer = {model.tokenizer!r}: this folder has no chat template; set chat_template to a template "
                f"file, or renderer to one of {', '.join(sorted(set(RENDERERS) - {'jinja'}))}"
            )
    if model.renderer is not None and model.renderer not in RENDERERS:
        yield f"renderer = {model.renderer!r}: there is no such renderer; use one of {', '.join(sorted(RENDERERS))}"
    if model.renderer == "mistral" and find_spec("mistral_common") is None:
        yield "renderer = 'mistral': the library mistral-common is missing; run: pip install 'tokenyard[mistral]'"
    tools, reasoning = (None if name == NONE else name for name in (model.tool_parser, model.reasoning_parser))
    try:
        parsing.load_format(tools, reasoning, response_template)
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
