from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tasks.errors import TokenyardError
from tests.workers.conftest import TEMPLATE
from tests.workers.text.conftest import LINES, byte_level
from workers.models import loading
from workers.models.loading import fingerprint_of, load


def test_a_folder_s_tokenizer_and_templates(loaded, folder):
    plain = byte_level()
    assert [loaded.tokenizer.encode(line) for line in LINES] == [plain.encode(line) for line in LINES]
    assert loaded.tokenizer.eos_token_id == plain.added_tokens["<|end|>"]
    assert loaded.templates == {"default": TEMPLATE, "tool_use": "T" + TEMPLATE}
    assert loaded.tokenizer.fingerprint == fingerprint_of(folder)
    assert loaded.tokenizer.max_chars_per_token == max(map(len, plain._backend.get_vocab()))


def test_the_second_time_nothing_is_compiled(loaded, folder, cache, monkeypatch):
    monkeypatch.setattr(loading, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load(folder, cache=cache).templates == loaded.templates


def test_a_changed_file_is_another_tokenizer(loaded, folder, cache, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    (changed / "chat_template.jinja").write_text("hello")
    again = load(changed, cache=cache)
    assert again.tokenizer.fingerprint != loaded.tokenizer.fingerprint
    assert again.templates["default"] == "hello"


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(TokenyardError, match="no tokenizer"):
        load(tmp_path, cache=tmp_path)


def test_a_broken_tokenizer_says_why_and_leaves_nothing(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    cache = tmp_path / "cache"
    with pytest.raises(TokenyardError, match="cannot be loaded"):
        load(tmp_path, cache=cache)
    assert list(cache.iterdir()) == []


def test_transformers_stays_out_of_the_worker(loaded, folder, cache):
    script = (
        "import sys; from pathlib import Path; from workers.models.loading import load;"
        "load(Path(sys.argv[1]), cache=Path(sys.argv[2])); sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(folder), str(cache)], check=True)
