"""A GGUF file's tokenizer, written as a folder, gives the same token ids as llama.cpp's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer

from tests.contract.test_engine import find_gguf, free_port
from tests.workers.models.lines import varied_lines
from workers.models.download import AssetError
from workers.models.gguf import PRE_TOKENIZERS, build_tokenizer, ensure_tokenizer, read_metadata

TOKENS = ["<|end|>", "<|turn|>", "<tool>", "a", "b", "1", "2", "Ġ", "ab", "Ġa", "Ċ", "12"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b", "Ġ a", "1 2"],
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gguf = find_gguf()
    monkeypatch.setenv("TOKENYARD_CACHE", str(tmp_path / "cache"))
    if gguf is not None:
        monkeypatch.setenv("GGUF_FOR_THIS_TEST", str(gguf))
    return tmp_path / "cache"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(METADATA["tokenizer.ggml.token_type"])
    writer.add_token_merges(METADATA["tokenizer.ggml.merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_eot_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for m in messages %}<|turn|>{{ m.content }}<|end|>{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert ensure_tokenizer(tmp_path) == tmp_path


def test_a_file_becomes_a_folder_that_transformers_loads(gguf_file: Path, own_cache: Path) -> None:
    from transformers import AutoTokenizer

    folder = ensure_tokenizer(gguf_file)
    assert folder.parent == own_cache / "tokenizers"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("ab a12\n<|end|><tool>").input_ids == [1, 8, 9, 5, 6, 10, 0, 2]
    assert tokenizer.decode([8, 9, 5, 6, 0, 2], skip_special_tokens=True) == "ab a12<tool>"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.model_max_length) == ("<|turn|>", "<|end|>", 512)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<|turn|>ab<|end|>"
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [0, 1]}


def test_it_is_written_once_and_anew_when_the_file_changes(gguf_file: Path) -> None:
    first = ensure_tokenizer(gguf_file)
    written = (first / "tokenizer.json").stat().st_mtime_ns
    assert ensure_tokenizer(gguf_file) == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == written
    os.utime(gguf_file, ns=(1, 1))
    assert ensure_tokenizer(gguf_file) != first


def test_nothing_half_written_is_left(gguf_file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workers.models.gguf._write_json", break_off)
    with pytest.raises(KeyboardInterrupt):
        ensure_tokenizer(gguf_file)
    assert list((own_cache / "tokenizers").iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.pre", "never-heard-of", "never-heard-of.*known are.*smollm"),
        ("tokenizer.ggml.pre", None, "pre-tokenizer is None"),
        ("tokenizer.ggml.model", "llama", "kind 'llama'"),
    ],
)
def test_an_unknown_tokenizer_is_refused(key: str, value: str | None, message: str) -> None:
    with pytest.raises(AssetError, match=message):
        build_tokenizer({**METADATA, key: value})


@pytest.mark.parametrize("source", ["no-such-model", "/no/such/folder", "./no/such.gguf"])
def test_a_missing_tokenizer_is_reported(source: str) -> None:
    with pytest.raises(AssetError, match="no tokenizer at"):
        ensure_tokenizer(source)


def test_a_named_model_that_is_not_here_says_how_to_get_it() -> None:
    with pytest.raises(AssetError, match="pull smollm2"):
        ensure_tokenizer("smollm2")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"not a model at all, " * 20)
    with pytest.raises(AssetError, match="not a GGUF file"):
        read_metadata(path)


@pytest.mark.parametrize(("pre", "folder"), [("qwen2", "qwen3"), ("llama-bpe", "llama3.1")])
def test_the_pre_tokenizer_is_the_one_of_the_models_own_files(pre: str, folder: str) -> None:
    path = Path.home() / ".cache" / "real-tokenizers" / folder / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"the tokenizer of {folder} is not on this machine")
    own = Tokenizer.from_file(str(path))
    ours = build_tokenizer({**METADATA, "tokenizer.ggml.pre": pre})
    assert pre in PRE_TOKENIZERS
    for line in varied_lines(1500):
        normal = own.normalizer.normalize_str(line) if own.normalizer else line
        assert (ours.normalizer.normalize_str(line) if ours.normalizer else line) == normal
        assert ours.pre_tokenizer.pre_tokenize_str(normal) == own.pre_tokenizer.pre_tokenize_str(normal), repr(line)


@pytest.fixture
def llama_server() -> Iterator[tuple[Path, str]]:
    pytest.importorskip("xllamacpp")
    if "GGUF_FOR_THIS_TEST" not in os.environ:
        pytest.skip("the model smollm2 is not in the cache")
    gguf, port = Path(os.environ["GGUF_FOR_THIS_TEST"]), free_port()
    command = [sys.executable, "-m", "workers.generate.engines.embedded", "--gguf", str(gguf), "--port", str(port)]
    command += ["--parallel", "1", "--context", "256"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("engine: ready")
        yield gguf, f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)


def test_every_line_has_the_ids_that_llama_cpp_gives_it(llama_server: tuple[Path, str]) -> None:
    gguf, url = llama_server
    tokenizer = Tokenizer.from_file(str(ensure_tokenizer(gguf) / "tokenizer.json"))
    differing = []
    for line in varied_lines(3000):
        body = json.dumps({"content": line, "add_special": True, "parse_special": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/tokenize", body)) as answer:
            theirs = json.load(answer)["tokens"]
        if tokenizer.encode(line).ids != theirs:
            differing.append(line)
        assert tokenizer.decode(theirs, skip_special_tokens=False) == line
    assert differing == []
