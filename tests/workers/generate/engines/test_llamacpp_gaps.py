"""Finding the ids that the server did not send."""

from __future__ import annotations

import pytest

from workers.generate.engines.llamacpp_gaps import BrokenPieces, is_whole_text

SMILE = "\U0001f600".encode()
VOCABULARY = {
    1: b"a",
    2: SMILE,
    10: SMILE[:1],
    11: SMILE[1:2],
    12: SMILE[2:3],
    13: SMILE[3:],
    20: SMILE[:2],
    30: b"\xc3",
}
PIECES = BrokenPieces.from_candidates([{"id": i, "bytes": list(piece)} for i, piece in VOCABULARY.items()])


def test_only_pieces_of_characters_are_kept() -> None:
    assert set(PIECES.bytes_of) == {10, 11, 12, 13, 20, 30}


@pytest.mark.parametrize(
    ("last_id", "missing", "expected"),
    [(13, 2, [(20, 12)]), (13, 3, [(10, 11, 12)]), (13, 1, []), (12, 2, []), (1, 2, [])],
)
def test_the_missing_ids_spell_the_missing_bytes(last_id: int, missing: int, expected: list[tuple[int, ...]]) -> None:
    assert PIECES.fill("\U0001f600", last_id, missing) == expected


def test_two_ways_are_both_found_and_no_more_than_asked() -> None:
    twice = BrokenPieces.from_candidates(
        [{"id": i, "bytes": list(piece)} for i, piece in {**VOCABULARY, 40: SMILE[:1], 41: SMILE[:1]}.items()]
    )
    assert twice.fill("\U0001f600", 13, 3) == [(10, 11, 12), (40, 11, 12)]
    assert len(twice.fill("\U0001f600", 13, 3, limit=5)) == 3


def test_text_before_the_character_is_spelled_too() -> None:
    spaced = BrokenPieces.from_candidates(
        [{"id": 1, "bytes": list(b" " + SMILE[:3])}, {"id": 2, "bytes": list(SMILE[3:])}]
    )
    assert spaced.fill(" \U0001f600", 2, 1) == [(1,)]


def test_text_that_lost_its_bytes_is_not_spelled() -> None:
    assert is_whole_text("é")
    assert not is_whole_text("\ufffd")
    assert not is_whole_text("")
