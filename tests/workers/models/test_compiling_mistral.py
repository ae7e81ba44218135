"""Mistral's own tokenizers read as mistral-common reads them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from tasks.errors import TokenyardError
from tests.workers.renderers.mistral_files import SPECIALS, write_tekken
from workers.models.loading import find_mistral_file, load
from workers.text import detokenizer
from workers.text.pieces import Piece

REAL = Path(os.environ.get("TOKENYARD_REAL_TOKENIZERS", "~/.cache/real-tokenizers")).expanduser() / "mistral-common"
FILES = (
    *("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3", "mistral_instruct_tokenizer_241114.model.v7"),
    *("tekken_240718.json", "tekken_240911.json"),
)
TEXTS = [
    "",
    "Hello",
    " two  spaces \t\n\n x ",
    "Zürich 你好 😀👩‍👩‍👧 e\u0301 עברית 日本語 𝔘𝔫𝔦",
    "def f(x):\n    return x**2  # ok\n\n\n",
    "[INST] <s> </s> [TOOL_CALLS] <unk> [/INST]<SPECIAL_30> ▁",
    "1234567 3.14 ﬁ①\u00a0\ufffd\u0000",
    *("a" * 57, " " * 37, "\n" * 13, "\t" * 9, "=-" * 33, "the thing is in the ab aba"),
]


def _varied(count: int) -> list[str]:
    pick = random.Random(3).choice
    pieces = [
        "a",
        "ab",
        "the ",
        "ing",
        " ",
        "  ",
        "\n",
        "\t",
        "é",
        "\u0301",
        "тест",
        "你",
        "😀",
        "1",
        "_",
        "-",
        ".",
        "Z",
    ]
    return ["".join(pick(pieces) for _ in range(i % 40)) for i in range(count)]


@pytest.fixture(scope="module", params=["small v3", "small v13", *FILES])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    if name.startswith("small"):
        return write_tekken(tmp_path_factory.mktemp("model"), name.split()[1])
    if not (REAL / name).exists():
        pytest.skip("the tokenizer is not there")
    return REAL / name


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


def test_texts_become_the_library_s_token_ids_and_texts_again(file, cache):
    ours = load(file, cache=cache).tokenizer
    theirs = MistralTokenizer.from_file(file).instruct_tokenizer.tokenizer
    for text in [*TEXTS, *_varied(400)]:
        token_ids = theirs.encode(text, bos=False, eos=False)
        assert ours.encode(text) == token_ids, text
        assert ours.encode_as_text(text) == token_ids, text
        assert ours.encode(text, add_special_tokens=True) == [theirs.bos_id, *token_ids], text
        assert ours.decode(token_ids) == theirs.decode(token_ids), text


def test_special_tokens_keep_their_ids(file, cache):
    ours = load(file, cache=cache).tokenizer
    theirs = MistralTokenizer.from_file(file).instruct_tokenizer.tokenizer
    special = {i: theirs.id_to_piece(i) for i in range(theirs.n_words) if theirs.is_special(i)}
    assert {name: i for i, name in special.items()}.items() <= ours.added_tokens.items()
    assert set(ours.added_tokens) - set(special.values()) <= {"<unk>"}
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_id, theirs.eos_id)
    assert ours.vocabulary_size == theirs.n_words


def test_a_token_at_a_time_is_the_same_text(file, cache):
    ours = load(file, cache=cache).tokenizer
    theirs = MistralTokenizer.from_file(file).instruct_tokenizer.tokenizer
    for text in TEXTS:
        state = detokenizer.start(ours)
        decoded: list[Piece] = []
        token_ids = theirs.encode(text, bos=False, eos=False)
        for token_id in token_ids:
            state, pieces = detokenizer.step(ours, state, [token_id])
            decoded += pieces
        assert "".join(map(str, decoded)) == theirs.decode(token_ids)


def test_the_file_of_a_folder(tmp_path):
    with pytest.raises(TokenyardError, match="no tokenizer of Mistral's own"):
        find_mistral_file(tmp_path)
    for name in ("tokenizer.model.v3", "tokenizer.model", "params.json", "tokenizer.model.v7m1"):
        (tmp_path / name).touch()
    assert find_mistral_file(tmp_path).name == "tokenizer.model.v7m1"
    assert find_mistral_file(tmp_path / "tokenizer.model").name == "tokenizer.model"
    (tmp_path / "tekken.json").touch()
    assert find_mistral_file(tmp_path).name == "tekken.json"
    with pytest.raises(TokenyardError, match="neither a folder"):
        find_mistral_file(tmp_path / "params.json")


def test_a_folder_with_nothing_but_tekken(tmp_path):
    write_tekken(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    loaded = load(tmp_path, cache=tmp_path / "cache")
    assert loaded.tokenizer.id_of("[THINK]") == SPECIALS.index("[THINK]")
    assert loaded.mistral_file is not None
