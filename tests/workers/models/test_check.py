"""What is wrong with a model is found in its files, without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.settings import Settings
from workers.models.check import model_faults


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return tmp_path


def faults_of(**model: Any) -> list[str]:
    return model_faults(Settings(models=({"name": "m", **model},)))


def test_a_sound_model_has_no_faults(folder: Path) -> None:
    assert faults_of(tokenizer=str(folder), tool_parser="hermes", reasoning_parser="qwen3") == []
    assert faults_of(tokenizer="org/repository") == [], "a repository is fetched by the worker"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer": "/no/such/folder"}, "tokenizer = '/no/such/folder': there is no such folder"),
        ({"tokenizer": "./model.gguf"}, "tokenizer = './model.gguf': there is no such file"),
        ({"tokenizer": "nobody"}, "tokenizer = 'nobody': there is no such folder"),
        ({"chat_template": "/no/template"}, "chat_template = '/no/template': there is no such file"),
        ({"renderer": "jinjer"}, "renderer = 'jinjer': there is no such renderer"),
        ({"tool_parser": "hermez"}, "There is no tool parser 'hermez'; did you mean 'hermes'?"),
        ({"reasoning_parser": "qwen33"}, "There is no reasoning parser 'qwen33'; did you mean 'qwen3'?"),
        ({"tool_parser": "hf"}, "The parser 'hf' needs a tokenizer with a response_template"),
    ],
)
def test_a_fault_says_which_model_and_what_to_do(folder: Path, changes: dict[str, Any], says: str) -> None:
    (fault,) = faults_of(**{"tokenizer": str(folder), **changes})
    assert fault.startswith(f"models.0 (m): {says}")


def test_all_models_and_all_their_faults_are_named(folder: Path) -> None:
    models = [{"name": "a", "tokenizer": "/x", "renderer": "y"}, {"name": "b", "tokenizer": str(folder)}]
    models.append({"name": "c", "tokenizer": "/z"})
    faults = model_faults(Settings(models=models))
    assert [fault.split(":")[0] for fault in faults] == ["models.0 (a)", "models.0 (a)", "models.2 (c)"]


def test_a_chat_model_needs_a_template_of_some_kind(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    chat = {"tokenizer": str(tmp_path), "tool_parser": "openai"}
    (fault,) = faults_of(**chat)
    assert "has no chat template" in fault and "harmony" in fault
    assert faults_of(**chat, renderer="harmony") == faults_of(tokenizer=str(tmp_path)) == []
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert faults_of(**chat) == []
