"""The invariants and the recorded cases find bugs: each bug planted in a copy of the parser makes them fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

CHECK = """
import random
from tests.contract import test_format as laws
from tests.workers.parsing import test_goldens as recorded
from tests.workers.parsing import test_written as written

for tools in ("hermes", "qwen3_coder", "pythonic", "gemma4", "minimax_m3", "deepseek_v32"):
    recorded.test_recorded_cases("tools", tools)
for pair in (("hermes", "glm45"), ("qwen3_coder", "deepseek_r1"), ("kimi_k2", "kimi_k2"), ("gemma4", None)):
    laws.test_any_split_and_any_restore_gives_the_same_events(pair)
    laws.test_text_without_markup_is_not_touched(pair)
    laws.test_the_state_does_not_grow_with_the_output(pair)
    laws.test_malformed_and_unfinished_markup_never_ends_as_a_call(pair)
written.test_an_argument_that_closes_itself_is_empty("minimax_m2")
written.test_what_may_end_an_argument_is_data_if_the_argument_goes_on("qwen3_coder")
written.test_the_last_argument_ends_where_its_call_ends("qwen3_coder")
written.test_text_spelled_like_a_marker_is_data_in_an_argument("kimi_k3")
written.test_the_text_of_a_special_token_in_an_argument_belongs_to_it("hermes")
written.test_noise_between_a_sections_opening_and_its_first_call_is_dropped("kimi_k2")
written.test_noise_that_no_call_follows_is_text("kimi_k2")
written.test_a_call_list_that_is_cut_is_no_call("jamba")
written.test_messages_of_reasoning_and_of_the_answer_do_not_run_together()
"""

BUGS = {
    "a held beginning of a marker is dropped": (
        "run.py", "                self.held = text[begin:end]\n                return\n", "                return\n",
    ),
    "the beginning of a marker is not held": (
        "lexer.py", "if not final and found.end() == len(text) and literal in self.prefixes:", "if False:",
    ),
    "the shorter of two markers wins": ("lexer.py", "key=len, reverse=True", "key=len"),
    "an escape is doubled": ("partial_json.py", "out.append(held)\n", 'out.append("\\\\" + held)\n'),
    "an escape is forgotten between chunks": ("partial_json.py", "return [self.stack, self.expect, self.held]",
                                              'return [self.stack, self.expect, ""]'),
    "strings are not escaped": (
        "calls.py", "self.add_arguments(json.dumps(text, ensure_ascii=False)[1:-1])", "self.add_arguments(text)",
    ),
    "a field is not restored": ("state.py", "if value != default:", 'if value != default and name != "captured":'),
    "leading white space is not restored": ("state.py", "if value != default:", 'if value != default and name != "lead":'),
    "calls are not counted": ("calls.py", "        self.index += 1\n        self.forget()", "        self.forget()"),
    "parallel calls are always allowed": ("calls.py", "return self.state.parallel or self.index == 0", "return True"),
    "what is malformed is lost": ("run.py", "        self.forget()\n        self._text(unseen)", "        self.forget()"),
    "a cut call is completed": ("run.py", "            if not cut or unsure:\n                self._fail()",
                                "            if self.call == 2:\n                self.end()"),
    "types are not looked at": ("calls.py", 'self.value = "t" if typed else "s"', 'self.value = "s"'),
    "the state keeps all text": ("run.py", "            self._text(plain)\n            return",
                                 "            self.kept += plain\n            self._text(plain)\n            return"),
    "what may end a value is lost where it is data": (
        "run.py", "        self.read_value(self.table.modes[self.mode].mode, lead)\n", "",
    ),
    "what may end a value always ends it": ("run.py", 'if plain.isspace() and', "if"),
    "tokens are read as their text": ("run.py", "self.parser.stand_ins.get(token.token_id, token.text)", "token.text"),
    "tokens in a value are hidden": ("run.py", "or (sink is Sink.BODY and self._in_string(here))", ""),
    "noise in a section is lost": ("run.py", "self._text(self.raw + (self.lead or \"\") + (literal", "((literal"),
    "a call in a list ends with its brace": ("styles_json.py", 'return state["p"] in ("]", ";", ".")',
                                             'return state["p"] in (",", "]", ";", ".")'),
    "messages run together": ("run.py", 'return "\\n" + text', "return text"),
}  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages under test, to plant bugs in."""
    folder = tmp_path_factory.mktemp("copy")
    keep = shutil.ignore_patterns("__pycache__")
    for part in ("workers/parsing", "workers/text", "tests/contract", "tests/golden", "tests/workers/parsing", "tasks"):
        shutil.copytree(ROOT / part, folder / part, ignore=keep)
    for part in ("workers", "tests", "tests/workers"):
        shutil.copy(ROOT / part / "__init__.py", folder / part / "__init__.py")
    return folder


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "TOKENYARD_WALKS": "25", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", CHECK]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_copy_is_sound(copy: Path) -> None:
    done = check(copy)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(copy: Path, bug: str) -> None:
    file, right, wrong = BUGS[bug]
    path = copy / "workers/parsing" / file
    source = path.read_text(encoding="utf-8")
    assert right in source
    path.write_text(source.replace(right, wrong, 1), encoding="utf-8")
    try:
        done = check(copy)
    finally:
        path.write_text(source, encoding="utf-8")
    assert done.returncode == 1, "the bug was not found"
    assert str(copy) in done.stderr
