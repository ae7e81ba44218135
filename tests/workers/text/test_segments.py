from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.workers.text.conftest import LINES, byte_level, sentencepiece, word_piece
from workers.text import segments
from workers.text.segments import SegmentEncoder
from workers.text.tokenizer import Tokenizer


def plainly(backend: Backend, text: str) -> list[int]:
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def prompts(tokenizer: Tokenizer, count: int) -> list[str]:
    rng = random.Random(3)
    added = sorted(tokenizer.added_tokens)
    pieces = [*LINES, *(line * 5 for line in LINES), " ", "\n", "<|", "|>", ""]
    return [
        "".join(rng.choice(added) if rng.random() < 0.3 else rng.choice(pieces) for _ in range(rng.randrange(1, 30)))
        for _ in range(count)
    ]


def test_pieces_together_are_the_whole():
    tokenizer = byte_level()
    for _ in range(2):
        for prompt in prompts(tokenizer, 200):
            assert tokenizer.encode(prompt) == plainly(tokenizer._backend, prompt)


def test_real_tokenizers_encode_the_same(real):
    for _ in range(2):
        for prompt in prompts(real, 30):
            assert real.encode(prompt) == plainly(real._backend, prompt)


def test_a_piece_that_was_seen_is_not_encoded_again():
    backend = byte_level()._backend
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return plainly(backend, text)

    encoder = SegmentEncoder(backend, encode)
    first, second = LINES[0] * 10, LINES[1] * 10
    encoder.encode(f"<|im_start|>{first}<|end|>")
    grown = encoder.encode(f"<|im_start|>{first}<|end|><|im_start|>{second}<|end|>")
    assert encoded == [first, second]
    assert grown == plainly(backend, f"<|im_start|>{first}<|end|><|im_start|>{second}<|end|>")


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(segments, "MAX_CHARS", 4000)
    backend = byte_level()._backend
    encoder = SegmentEncoder(backend, lambda text: plainly(backend, text))
    for i in range(100):
        encoder.encode(f"<|end|>{i} {LINES[0] * 5}")
        assert sum(map(len, encoder._kept)) == encoder._chars <= 4000
    encoder.encode("a" * 5000)
    assert not any(len(piece) > 1000 for piece in encoder._kept)


def test_tokenizers_whose_pieces_depend_on_their_place_are_left_alone():
    for tokenizer in (sentencepiece(strip=True), word_piece()):
        backend = tokenizer._backend
        assert not SegmentEncoder(backend, tokenizer.encode).usable
    backend = byte_level()._backend
    assert SegmentEncoder(backend, tokenizer.encode).usable
    backend.add_tokens([AddedToken("<greedy>", lstrip=True)])
    assert not SegmentEncoder(backend, tokenizer.encode).usable


def test_the_longest_added_token_wins():
    backend = byte_level()._backend
    backend.add_tokens(["<end>", "<end>!"])
    encoder = SegmentEncoder(backend, lambda text: plainly(backend, text))
    assert encoder.encode("a<end>!b") == plainly(backend, "a<end>!b")
    assert backend.token_to_id("<end>!") in encoder.encode("a<end>!b")


def test_threads_share_it():
    tokenizer = byte_level()
    texts = prompts(tokenizer, 40)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts * 5)) == [plainly(tokenizer._backend, text) for text in texts] * 5
