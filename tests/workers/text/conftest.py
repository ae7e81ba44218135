"""Small tokenizers of each decoder family, trained or written here, and the real ones that are installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from workers.text.tokenizer import Tokenizer

REAL = Path(os.environ.get("TOKENYARD_REAL_TOKENIZERS", "~/.cache/real-tokenizers")).expanduser()
LINES = [
    "The quick brown fox jumps over the lazy dog. It's 12,345 o'clock!",
    "Zürich – schöne Grüße; naïve café, façade, Ångström",
    "你好，世界。今日は良い天気ですね。안녕하세요",
    "emoji 😀👩‍👩‍👧🇨🇭 and math ∀x∈ℝ: ⌈x⌉ ≥ x",
    "def f(x):\n    return {'a': [1, 2]}\n\n\tx = f(3)  # done",
]


def byte_level() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        LINES[:1],
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|end|>", "<|im_start|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.add_tokens([AddedToken("<tool_call>", normalized=False, special=False)])
    return Tokenizer(backend)


def sentencepiece(*, strip: bool) -> Tokenizer:
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    characters = sorted({c for line in LINES[:2] for c in line.replace(" ", "▁")})
    vocabulary += [c for c in characters if c not in vocabulary] + ["▁▁", "▁t", "▁th", "▁the"]
    merges = [("▁", "▁"), ("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    backend = Backend(
        models.BPE({token: i for i, token in enumerate(vocabulary)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    links = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*links, decoders.Strip(" ", 1, 0)] if strip else links)
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<tool_call>", normalized=False, special=False)])
    return Tokenizer(backend)


def word_piece() -> Tokenizer:
    vocabulary = ["[UNK]", "[SEP]", "the", "fox", "##es", "jump", "##ed", ",", ".", "a", "##b", "##c"]
    backend = Backend(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(["[SEP]"])
    return Tokenizer(backend)


SMALL = {
    "byte-level": byte_level,
    "sentencepiece": lambda: sentencepiece(strip=False),
    "sentencepiece-strip": lambda: sentencepiece(strip=True),
    "wordpiece": word_piece,
}


@pytest.fixture(scope="session", params=SMALL)
def small(request: pytest.FixtureRequest) -> Tokenizer:
    return SMALL[request.param]()


@pytest.fixture(scope="session", params=sorted(p.parent.name for p in REAL.glob("*/tokenizer.json")) or ["none"])
def real(request: pytest.FixtureRequest) -> Tokenizer:
    path = REAL / request.param / "tokenizer.json"
    if not path.exists():
        pytest.skip("no real tokenizers are installed")
    return Tokenizer(Backend.from_file(str(path)))
