from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream

from tasks.errors import InvalidState
from tests.workers.text.conftest import LINES, SMALL, sentencepiece
from workers.text.detokenizer import dump, finish, load, start, step
from workers.text.pieces import AddedToken, Piece
from workers.text.tokenizer import Tokenizer


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


def run(tokenizer: Tokenizer, chunks: list[list[int]], *, prompt: tuple[int, ...] = (), skip: bool) -> list[Piece]:
    """All pieces, with the state saved and loaded between any two steps."""
    state, pieces = start(tokenizer, prompt, skip_special_tokens=skip), []
    for chunk in chunks:
        state = load(json.loads(json.dumps(dump(state))))
        assert len(json.dumps(dump(state))) < 400
        state, new = step(tokenizer, state, chunk)
        pieces += new
    state = finish(state)
    return pieces


def merged(pieces: list[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and out and isinstance(out[-1], str):
            out[-1] += piece
        else:
            out.append(piece)
    return out


def reference(tokenizer: Tokenizer, ids: list[int], *, prompt: tuple[int, ...], skip: bool) -> str | None:
    """The text from the `tokenizers` library's own stream; None if it fails on invalid bytes."""
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=skip)
    out = ""
    try:
        for token_id in ids:
            out += stream.step(tokenizer._backend, token_id) or ""
    except Exception as error:  # noqa: BLE001  # the library raises no narrower class
        assert "Invalid prefix" in str(error)
        return None
    return out


NAMES = st.sampled_from(sorted(SMALL))
BUILT = {name: build() for name, build in SMALL.items()}


@st.composite
def cut_ids(draw: st.DrawFn) -> tuple[str, list[int], list[list[int]]]:
    name = draw(NAMES)
    size = BUILT[name].vocabulary_size
    ids = draw(st.lists(st.integers(0, size + 2), max_size=40))
    cuts = sorted({0, len(ids), *draw(st.lists(st.integers(0, len(ids)), max_size=6))})
    return name, ids, [ids[a:b] for a, b in pairwise(cuts)]


@settings(max_examples=400, deadline=None)
@given(cut_ids(), st.booleans())
def test_any_cut_of_the_same_tokens_gives_the_same_pieces(case, skip):
    name, ids, chunks = case
    tokenizer = BUILT[name]
    singly = merged(run(tokenizer, [[token_id] for token_id in ids], skip=skip))
    assert merged(run(tokenizer, chunks, skip=skip)) == singly


def lines_ids(tokenizer: Tokenizer) -> list[int]:
    return [token_id for line in LINES for token_id in tokenizer.encode(line)]


@pytest.mark.parametrize("skip", [True, False])
def test_text_is_the_whole_decode(small, skip):
    ids = lines_ids(small)
    pieces = run(small, [[token_id] for token_id in ids], skip=skip)
    assert text_of(pieces) == small.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("skip", [True, False])
def test_random_tokens_are_the_reference_s_text(small, skip):
    rng = random.Random(5)
    compared = 0
    for _ in range(300):
        ids = [rng.randrange(small.vocabulary_size) for _ in range(rng.randrange(1, 30))]
        prompt = tuple(rng.randrange(small.vocabulary_size) for _ in range(8))
        if small.decode(prompt).endswith("\ufffd"):
            continue
        expected = reference(small, ids, prompt=prompt, skip=skip)
        if expected is None or "\ufffd" in expected:
            continue
        got = text_of(run(small, [[token_id] for token_id in ids], prompt=prompt, skip=skip))
        assert got.startswith(expected)
        assert got == expected or "\ufffd" in small.decode(ids)
        compared += 1
    assert compared > 20


def test_the_prompt_decides_on_the_first_space():
    tokenizer = sentencepiece(strip=True)
    the = tokenizer.encode("the")
    assert run(tokenizer, [the], skip=True) == ["the"]
    assert run(tokenizer, [the], prompt=tuple(tokenizer.encode("a")), skip=True) == [" the"]
    bos = tokenizer.added_tokens["<s>"]
    assert run(tokenizer, [the], prompt=(bos,), skip=True) == ["the"]
    assert run(tokenizer, [the], prompt=(bos,), skip=False) == [" the"]


def test_added_tokens_come_by_id_and_text_that_looks_like_one_does_not():
    tokenizer = BUILT["byte-level"]
    call, end = tokenizer.added_tokens["<tool_call>"], tokenizer.added_tokens["<|end|>"]
    typed = [i for c in "<tool_call>" for i in tokenizer.encode(c)]
    assert run(tokenizer, [[*typed, call, end]], skip=False) == [
        "<tool_call>",
        AddedToken(call, "<tool_call>", False),
        AddedToken(end, "<|end|>", True),
    ]
    assert run(tokenizer, [[call, end]], skip=True) == [AddedToken(call, "<tool_call>", False)]


def test_a_split_character_waits_for_its_last_byte():
    tokenizer = BUILT["byte-level"]
    ids = tokenizer.encode("😀")
    assert len(ids) == 4
    state = start(tokenizer)
    for token_id in ids[:3]:
        state, pieces = step(tokenizer, state, [token_id])
        assert pieces == []
    assert step(tokenizer, state, ids[3:])[1] == ["😀"]


def test_an_unfinished_character_at_the_end_is_dropped():
    tokenizer = BUILT["byte-level"]
    assert run(tokenizer, [tokenizer.encode("a😀")[:-1]], skip=True) == ["a"]


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece-strip"])
def test_endless_invalid_bytes_come_out_and_the_state_stays_small(name):
    tokenizer = BUILT[name]
    token = next(i for i in range(tokenizer.vocabulary_size) if tokenizer.table[i] == b"\xff")
    pieces = run(tokenizer, [[token]] * 1000, skip=True)
    assert set(text_of(pieces)) == {"\ufffd"}
    assert len(text_of(pieces)) > 900


def test_ids_outside_of_the_vocabulary_give_nothing(small):
    assert run(small, [[small.vocabulary_size + 7, 2**40]], skip=False) == []


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"skip": 1},
        {"skip": True, "held": "zz"},
        {"skip": True, "held": "ff" * 100},
        {"skip": True, "pending": ["a"]},
        {"skip": True, "context": list(range(100))},
        [],
    ],
)
def test_a_state_that_does_not_add_up_is_refused(data):
    with pytest.raises(InvalidState):
        load(data)


@pytest.mark.parametrize("skip", [True, False])
def test_real_tokenizers(real, skip):
    ids = lines_ids(real)
    pieces = run(real, [[token_id] for token_id in ids], skip=skip)
    assert real.table.exact
    assert text_of(pieces) == real.decode(ids, skip_special_tokens=skip)
    rng = random.Random(7)
    added = sorted(real.added_tokens.values())
    compared = 0
    for _ in range(200):
        ids = [
            rng.choice(added) if rng.random() < 0.1 else rng.randrange(real.vocabulary_size)
            for _ in range(rng.randrange(1, 40))
        ]
        prompt = tuple(real.encode("Tell me"))
        expected = reference(real, ids, prompt=prompt, skip=skip)
        if expected is None or "\ufffd" in real.decode(ids, skip_special_tokens=skip):
            continue
        got = text_of(run(real, [[token_id] for token_id in ids], prompt=prompt, skip=skip))
        assert got == expected
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("together", [True, False])
def test_an_unfinished_character_comes_out_before_the_added_token_that_ends_it(together: bool) -> None:
    tokenizer = BUILT["byte-level"]
    call = tokenizer.added_tokens["<tool_call>"]
    ids = [*tokenizer.encode("a😀")[:-1], call, *tokenizer.encode("b")]
    chunks = [ids] if together else [[token_id] for token_id in ids]
    token = AddedToken(call, "<tool_call>", False)
    assert merged(run(tokenizer, chunks, skip=False)) == ["a\ufffd", token, "b"]
    assert merged(run(tokenizer, [ids[:-1]], skip=False)) == ["a\ufffd", token]
