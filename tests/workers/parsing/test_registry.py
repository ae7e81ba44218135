"""Format names, and formats from files, entry points and response templates."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tasks.protocol.events import CallArguments, CallEnd, CallStart, Reasoning, Text
from workers.parsing import Format, ParseContext, bind, load_format, parse
from workers.parsing.registry import REASONING, TOOLS

GOLDEN = Path(__file__).parents[2] / "golden"
README = Path(__file__).parents[3] / "workers/parsing/README.md"
MINE = """
from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

MINE = Format(
    name="mine",
    markers={"CALL": "<<", "/CALL": ">>"},
    modes={"call": Mode(Sink.BODY, "json_call", "after"), "after": Mode(Sink.GAP)},
    rules={(CONTENT, "CALL"): Go("call", Emit.CALL), ("after", "/CALL"): Go(CONTENT)},
)
TEXT = "no table"
"""
BAD = "from workers.parsing.spec import Format\nBAD = Format(name='bad', markers={'X': 'x'})\n"


def test_every_name_has_its_recorded_cases_and_its_line() -> None:
    folders = {path.parent.name for path in GOLDEN.glob("*/*.json")}
    assert folders == {*TOOLS, *REASONING}
    text = README.read_text(encoding="utf-8")
    for name in {*TOOLS, *REASONING}:
        assert f"`{name}`" in text, name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"no tool parser 'herms'; did you mean 'hermes'\? Otherwise use one of .*hermes"
    ):
        load_format("herms", None)
    with pytest.raises(
        ValueError, match=r"no reasoning parser 'qwen'; did you mean 'qwen3'\? Otherwise use one of .*qwen3"
    ):
        load_format(None, "qwen")


def test_a_format_comes_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    table = load_format(f"{path}:MINE", "deepseek_r1")
    tools = ({"type": "function", "function": {"name": "f"}},)
    events, reason = parse(bind(table, {}), ParseContext(tools=tools), (), ['</think><<{"name": "f"}>>'], "stop")
    assert (len(events), reason) == (3, "tool_calls")
    for wrong, says in (
        (f"{path}:YOURS", "YOURS"),
        (f"{path}:TEXT", "not a format"),
        ("/no/such.py:X", "no format file"),
    ):
        with pytest.raises(ValueError, match=says):
            load_format(wrong, None)
    (tmp_path / "bad.py").write_text(BAD)
    with pytest.raises(ValueError, match="format bad: markers without a rule: X"):
        load_format(f"{tmp_path / 'bad.py'}:BAD", None)


def test_a_format_comes_from_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_format.py").write_text(MINE)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tokenyard.formats]\ntheir_calls = their_format:MINE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "their_calls" in metadata.entry_points(group="tokenyard.formats").names
    assert isinstance(load_format("their_calls", None), Format)


TEMPLATE = {
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {"close": "<end>"},
        "tool_calls": {"open": ["<call>", "<calls>"], "close": "</call>", "content": "json", "repeats": True},
    }
}


def test_a_format_comes_from_the_tokenizers_response_template() -> None:
    tools = ({"type": "function", "function": {"name": "f"}},)
    text = '<think>hm </think>Hi<call>{"name": "f", "arguments": {"a": 1}}</call><end>'
    for name in ("hf", "beam"):
        parser = bind(load_format(name, name, TEMPLATE), {})
        events, reason = parse(parser, ParseContext(tools=tools), (), [text], "stop")
        called = [CallStart(0, "f"), CallArguments(0, '{"a": 1}'), CallEnd(0)]
        assert (events, reason) == ([Reasoning("hm "), Text("Hi"), *called], "tool_calls")
    with pytest.raises(ValueError, match="'hf' needs a tokenizer with a response_template"):
        load_format("hermes", "hf", None)
    with pytest.raises(ValueError, match="cannot be combined"):
        load_format("hermes", "hf", TEMPLATE)


@pytest.mark.parametrize("chunk", [[], ["--chunk", "1"], ["--chunk", "random:7"]])
def test_the_command_shows_the_events(chunk: list[str]) -> None:
    text = 'hm</think><tool_call>{"name": "ping", "arguments": {"a": "é"}}</tool_call>'
    command = [sys.executable, "-m", "workers.parsing", "hermes+qwen3", "--tools", str(GOLDEN / "offered.json"), *chunk]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=README.parents[2])
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        "reasoning  'hm'", "call 0     ping", 'arguments  {"a": "é"}', "end 0", "finish     tool_calls",
    ]  # fmt: skip
    assert len(lines) == (6 if chunk else 5)


def command(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "workers.parsing", *arguments]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False, cwd=README.parents[2])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "use one of"),
        (["hermes", "--chunk", "0"], "--chunk 0: use a number"),
        (["hermes", "--tools", "pyproject.toml"], "pyproject.toml is not JSON: "),
        (["hermes", "--tools", "/no/such.json"], "/no/such.json"),
        (["hermes", "--tools", str(GOLDEN / "offered.json"), "--tool-choice", "pong"], "get_weather, ping"),
        (["hf"], "response_template"),
        (["hermes", "--chat-template-kwargs", "{"], "--chat-template-kwargs is not JSON"),
        (["hermes", "--chat-template-kwargs", "[]"], "--chat-template-kwargs must be a JSON object"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], says: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_the_command_reads_requests_templates_and_template_arguments(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"tools": [{"function": {"name": "f"}}]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"response_template": TEMPLATE}))
    given = ["--tools", str(tmp_path / "request.json"), "--template", str(tmp_path / "tokenizer_config.json")]
    done = command("hf", *given, text='<think>hm</think><call>{"name": "f", "arguments": {}}</call>')
    assert done.stdout.splitlines()[:2] == ["reasoning  'hm'", "call 0     f"]
    done = command("+qwen3", "--chat-template-kwargs", '{"enable_thinking": false}', text="a\n")
    assert done.stdout.splitlines() == ["text       'a\\n'", "finish     stop"]
    assert "no --tools" in command("hermes").stderr
