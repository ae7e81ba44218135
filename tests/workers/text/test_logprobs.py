from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from tests.workers.text.conftest import byte_level, sentencepiece
from workers.text import decoding
from workers.text.logprobs import describe_token
from workers.text.tokenizer import Tokenizer


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


def test_what_a_shared_character_s_token_began_with_belongs_to_it_too():
    shown = {byte: character for character, byte in decoding.BYTE_OF_CHARACTER.items()}
    tokens = ["".join(shown[byte] for byte in data) for data in (b"\xff\xe4", b"\xbd\xa0")]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.decoder = decoders.ByteLevel()
    assert describe_token(Tokenizer(backend), 1, [0]) == ("\ufffd你", tuple("\ufffd你".encode()))


def test_a_sentencepiece_token_keeps_its_space():
    tokenizer = sentencepiece(strip=True)
    token_id = tokenizer.id_of("▁the")
    assert token_id is not None
    # The normalizer writes the marker, no pre-tokenizer does: such tokenizers show the token as it decodes alone.
    assert describe_token(tokenizer, token_id) == ("the", (116, 104, 101))


def test_an_unknown_id_has_no_bytes():
    assert describe_token(byte_level(), 10**6) == ("", None)
