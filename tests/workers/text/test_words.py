from __future__ import annotations

import random
from functools import cache

import pytest
import regex
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers

from tests.workers.text.conftest import LINES, byte_level, sentencepiece, word_piece
from workers.text import words
from workers.text.words import WordEncoder, disputed_characters

TYPED = [
    " ",
    "  ",
    "\n",
    "\r\n",
    " \n ",
    "\t",
    "\u00a0",
    "\u2028",
    "\u3000",
    "'s",
    "'S",
    "'LL",
    "1234",
    "é",
    "_",
    "…",
    "½",
]
SCRIPTS = [
    *((0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x2000, 0x2BFF)),
    *((0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFE0F), (0x10300, 0x1034A), (0x1F300, 0x1F64F)),
]

disputed = cache(disputed_characters)


def library(backend: Backend, text: str) -> list[int]:
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def alone(backend: Backend) -> WordEncoder:
    """An encoder that fails the test if it leaves a text to the library."""
    return WordEncoder(backend, lambda text: pytest.fail(f"left to the library: {text!a}"), disputed())


def texts(count: int, seed: int = 5) -> list[str]:
    """Texts of all scripts, without disputed characters."""
    rng = random.Random(seed)
    out_of_bounds = regex.compile(f"[{disputed()}]")

    def run() -> str:
        first, last = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(first, last)) for _ in range(rng.randrange(1, 6)))

    made = (
        "".join(run() + (rng.choice(TYPED) if rng.random() < 0.5 else "") for _ in range(rng.randrange(1, 20)))
        for _ in range(count)
    )
    return [normalizers.NFC().normalize_str(out_of_bounds.sub("", text)) for text in made]


def test_words_together_are_the_text(real):
    backend = real._backend
    encoder = WordEncoder(backend, lambda text: library(backend, text), disputed())
    added = sorted(real.added_tokens)
    if encoder.usable:
        encoder = alone(backend)
    for text in [*LINES, *texts(300), "\n".join(LINES) * 20]:
        if not any(token in text for token in added):
            assert encoder.encode(text) == library(backend, text), ascii(text)


def test_the_usual_pre_tokenizers_are_supported():
    backend = byte_level()._backend
    for pre_tokenizer in (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    ):
        backend.pre_tokenizer = pre_tokenizer
        encoder = alone(backend)
        assert encoder.usable
        for text in texts(300):
            assert encoder.encode(text) == library(backend, text), ascii(text)


def test_other_tokenizers_are_left_to_the_library():
    assert not alone(sentencepiece(strip=True)._backend).usable
    assert not alone(word_piece()._backend).usable
    backend = byte_level()._backend
    assert not WordEncoder(backend, lambda text: [], None).usable
    backend.normalizer = normalizers.Lowercase()
    assert not alone(backend).usable
    backend.normalizer = normalizers.NFC()
    assert alone(backend).usable
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not alone(backend).usable


def test_disputed_and_composed_texts_are_left_to_the_library():
    backend = byte_level()._backend
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return library(backend, text)

    encoder = WordEncoder(backend, encode, disputed())
    left = ["a\u0378b", "e\u0301", "it'\u017f", "\U000323b0"]
    for text in left:
        assert encoder.encode(text) == library(backend, text)
        encoder.encode("é 🙂 日本")
    assert encoded == left


def test_what_the_libraries_classify_differently_is_disputed():
    """The two installed libraries agree on every other character."""
    pattern = regex.compile(f"[{disputed()}]")
    agreed = pattern.sub("", "".join(map(chr, [*range(0xD800), *range(0xE000, 0x20000)])))
    backend = byte_level()._backend
    encoder = alone(backend)
    composed = [c for c in agreed if normalizers.NFC().normalize_str(c) == c]
    for at in range(0, len(composed), 512):
        text = "".join(f"a{c}1{c} {c}{c}\n" for c in composed[at : at + 512 : 7])
        if normalizers.NFC().normalize_str(text) == text:
            assert encoder.encode(text) == library(backend, text)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(words, "MAX_CHARS", 500)
    backend = byte_level()._backend
    encoder = alone(backend)
    for number in range(300):
        text = f"word{number} and its {number} friends"
        assert encoder.encode(text) == library(backend, text)
        assert sum(map(len, encoder._known)) <= 500
