from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import InvalidState
from workers.text.pieces import AddedToken, Piece
from workers.text.stops import dump, finish, load, start, step

END = AddedToken(9, "<|end|>", True)


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


def run(stops, steps, **options) -> tuple[list[Piece], str | None, int]:
    """All pieces, the match, and the number of tokens up to it; the state goes through JSON between steps."""
    state, out, matched, tokens = start(stops, **options), [], None, 0
    for pieces in steps:
        state = load(json.loads(json.dumps(dump(state))))
        state, new, matched = step(state, pieces)
        out += new
        tokens += 1
        if matched:
            break
    state, rest = finish(state)
    return out + rest, matched, tokens


def expected(stops: list[str], steps: list[str], include: bool, min_tokens: int) -> tuple[str, str | None, int]:
    """The rule, applied to the whole text: after each token, the stop string that completes first."""
    text = ""
    for count, new in enumerate(steps, 1):
        old, text = len(text), text + new
        if count <= min_tokens:
            continue
        found = [
            (begin + len(stop), order, begin)
            for order, stop in enumerate(stops)
            for begin in range(len(text))
            if text.startswith(stop, begin) and begin + len(stop) > old
        ]
        if found:
            end, order, begin = min(found)
            return text[: end if include else begin], stops[order], count
    return text, None, len(steps)


@settings(max_examples=600)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.booleans(),
    st.integers(0, 4),
)
def test_matches_are_those_of_the_whole_text(stops, steps, include, min_tokens):
    pieces, matched, tokens = run(
        stops, [[s] for s in steps], include_stop_str_in_output=include, min_tokens=min_tokens
    )
    assert (text_of(pieces), matched, tokens) == expected(stops, steps, include, min_tokens)


@settings(max_examples=300)
@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("abc", max_size=30), st.data())
def test_any_cut_gives_the_same_text(stops, text, data):
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=5))})
    steps = [[text[a:b]] for a, b in pairwise(cuts)]
    whole, cut = run(stops, [[text]]), run(stops, steps)
    assert (text_of(cut[0]), cut[1]) == (text_of(whole[0]), whole[1])


def test_only_what_may_become_a_stop_string_is_held():
    state = start(["\n\n"])
    state, pieces, matched = step(state, ["one\n"])
    assert (pieces, matched) == (["one"], None)
    state, pieces, matched = step(state, ["two"])
    assert (text_of(pieces), matched) == ("\ntwo", None)


def test_an_added_token_s_text_counts_and_the_token_stays_one():
    assert run(["<|end|>"], [["a", END, "b"]]) == (["a"], "<|end|>", 1)
    assert run(["|>!"], [["a", END], ["?"]])[0] == ["a", END, "?"]
    assert run(["d|>"], [["a", END]])[0] == ["a", "<|en"]
    assert run(["zz"], [["a", END]])[0] == ["a", END]


def test_nothing_comes_after_a_match():
    state, pieces, matched = step(start(["b"]), ["abc"])
    assert (pieces, matched) == (["a"], "b")
    assert step(state, ["more"])[1:] == ([], "b")
    assert finish(state)[1] == []


def test_without_stop_strings_pieces_pass_through():
    assert step(start([]), ["a", END])[1:] == (["a", END], None)


def test_the_state_does_not_grow():
    state = start(["aaaab"])
    for _ in range(500):
        state, _, _ = step(state, ["a"])
        assert len(json.dumps(dump(state))) < 100


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"stops": [""]},
        {"stops": ["a"], "held": ["x", "long text"]},
        {"stops": ["a"], "matched": "b"},
        {"stops": ["a"], "unarmed": "1"},
        {"stops": ["a"], "held": [[1]]},
    ],
)
def test_a_state_that_does_not_add_up_is_refused(data):
    with pytest.raises(InvalidState):
        load(data)
