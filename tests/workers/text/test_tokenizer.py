from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tests.workers.text.conftest import LINES, byte_level, sentencepiece
from workers.text.tokenizer import Tokenizer, TokenizerInfo


def metaspace() -> Tokenizer:
    backend = Backend(models.BPE({"▁": 0, "a": 1, "▁a": 2, "▁▁a": 3}, [("▁", "a"), ("▁", "▁a")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return Tokenizer(backend)


@pytest.mark.parametrize("tokenizer", [byte_level(), sentencepiece(strip=True)])
def test_encoding_and_decoding_are_inverse(tokenizer):
    for line in LINES:
        assert tokenizer.decode(tokenizer.encode(line)) == line


def test_offsets_point_into_the_text():
    tokenizer = byte_level()
    ids, offsets = tokenizer.encode_with_offsets("the fox")
    assert ids == tokenizer.encode("the fox")
    assert "".join("the fox"[a:b] for a, b in offsets) == "the fox"


def test_a_token_alone_keeps_the_spaces_that_decoding_strips():
    tokenizer = metaspace()
    assert tokenizer.decode([2]) == "a"
    assert [tokenizer.token_text(i) for i in (1, 2, 3)] == ["a", " a", "  a"]


def test_named_special_tokens():
    backend = byte_level()._backend
    tokenizer = Tokenizer(backend, TokenizerInfo("f", {"eos_token": "<|end|>"}))
    assert tokenizer.eos_token_id == tokenizer.added_tokens["<|end|>"]
    assert tokenizer.bos_token_id is None
    assert tokenizer.fingerprint == "f"


def test_info_ignores_what_it_does_not_know():
    assert TokenizerInfo.from_json({"fingerprint": "f", "other": 1}) == TokenizerInfo("f")


def test_the_longest_token_bounds_the_text():
    assert metaspace().max_chars_per_token == 3


def test_hidden_tokens():
    tokenizer = byte_level()
    assert tokenizer.is_hidden(tokenizer.added_tokens["<|end|>"])
    assert not tokenizer.is_hidden(tokenizer.added_tokens["<tool_call>"])
    assert tokenizer.is_hidden(10**6)
