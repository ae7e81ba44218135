from __future__ import annotations

from tests.workers.text.conftest import byte_level, sentencepiece
from workers.text.logprobs import describe_token


def test_a_token_s_text_and_bytes():
    tokenizer = byte_level()
    (token_id,) = tokenizer.encode(" t")[:1]
    text = tokenizer.decode([token_id])
    assert describe_token(tokenizer, token_id) == (text, tuple(text.encode()))


def test_a_shared_character_belongs_to_the_token_that_completes_it():
    tokenizer = byte_level()
    ids = [*tokenizer.encode("a"), *tokenizer.encode("😀")]
    shown = [describe_token(tokenizer, token_id, ids[:i]) for i, token_id in enumerate(ids)]
    assert shown == [("a", (97,)), ("", ()), ("", ()), ("", ()), ("😀", tuple("😀".encode()))]


def test_a_sentencepiece_token_keeps_its_space():
    tokenizer = sentencepiece(strip=True)
    token_id = tokenizer.id_of("▁the")
    assert token_id is not None
    # The normalizer writes the marker, no pre-tokenizer does: such tokenizers show the token as it decodes alone.
    assert describe_token(tokenizer, token_id) == ("the", (116, 104, 101))


def test_an_unknown_id_has_no_bytes():
    assert describe_token(byte_level(), 10**6) == ("", None)
