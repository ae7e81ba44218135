"""What is wrong with a model is found in its files, without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.settings import Settings
from workers.models.__main__ import main
from workers.models.check import folder_report, model_faults


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


def test_a_renderer_that_is_found_needs_no_template_and_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    assert faults_of(tokenizer=str(tmp_path)) == []
    (fault,) = faults_of(tokenizer=str(tmp_path), renderer="jinja")
    assert "has no chat template" in fault, "what is named is used"
    (tmp_path / "tekken.json").write_text("{}")
    assert faults_of(tokenizer=str(tmp_path)) == []
    monkeypatch.setattr("workers.models.check.find_spec", lambda name: None)
    (fault,) = faults_of(tokenizer=str(tmp_path))
    assert "pip install 'tokenyard[mistral]'" in fault


def test_a_folder_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = """{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}
        <tool_call>{"name": "{{ c.function.name }}", "arguments": {{ '' + c.function.arguments }}}</tool_call>
        {% endfor %}{% endfor %}"""
    (folder / "chat_template.jinja").write_text(template)
    report = folder_report(str(folder))
    assert report["tool_parser"] == {"name": "hermes", "why": "the chat template has '<tool_call>'"}
    assert report["reasoning_parser"]["name"] is None and report["faults"] == []
    form = {"arguments": "text", "no_content": "empty", "text_beside": "together"}
    assert report["templates"] == {"default": {"content": "string", "calls": form}}
    assert main(["check", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report
    assert main(["check", str(folder)]) == 0
    assert capsys.readouterr().out == (
        'renderer = "jinja"  # there is a chat template\n'
        "tool_parser = \"hermes\"  # the chat template has '<tool_call>'\n"
        "reasoning_parser = \"none\"  # the chat template has no 'assistant\\\\n<think>\\\\n'\n"
        "chat template 'default': content as text; calls with arguments as text, no content as empty, "
        "a text beside them together\n"
    )


def test_a_folder_with_faults_is_described_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "/no/such/folder"]) == 1
    assert capsys.readouterr().out == (
        "fault: tokenizer = '/no/such/folder': there is no such folder; correct the path\n"
    )
    assert main(["check", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "this folder is empty" in report["faults"][0] and report["renderer"]["name"] == "jinja"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert main(["check", str(tmp_path)]) == 0
    assert "chat template 'default': content as text; writes no calls\n" in capsys.readouterr().out
