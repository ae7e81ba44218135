"""Finds the tokens that `llama-server` does not send.

A server sends no event for a token whose text ends inside a UTF-8 character. The event that completes the character
has only the last token, and only `tokens_predicted` shows that there were more:

    {"content": "a", "tokens": [81], "tokens_predicted": 1}
    {"content": "\U0001f600", "tokens": [218], "tokens_predicted": 4}         two ids are missing

A missing token is never valid UTF-8 by itself, and few tokens are like that (313 of 49,152 for SmolLM2). The missing
ids are the sequence of such tokens that has the missing length and spells the missing bytes. If there is not exactly
one (a broken character, or an output cut inside one), the engine asks the model which is the likeliest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokenPieces:
    """A vocabulary's tokens that are not valid UTF-8 by themselves, by id and by bytes."""

    bytes_of: Mapping[int, bytes]
    ids_of: Mapping[bytes, tuple[int, ...]]

    @classmethod
    def from_candidates(cls, candidates: Sequence[Mapping[str, object]]) -> BrokenPieces:
        """Reads `top_logprobs` that list the whole vocabulary: `{"id": 218, "bytes": [128], ...}`."""
        bytes_of: dict[int, bytes] = {}
        ids_of: dict[bytes, tuple[int, ...]] = {}
        for candidate in candidates:
            token_id, values = candidate["id"], candidate["bytes"]
            assert isinstance(token_id, int) and isinstance(values, list)
            piece = bytes(values)
            if _is_broken(piece):
                bytes_of[token_id] = piece
                ids_of[piece] = (*ids_of.get(piece, ()), token_id)
        return cls(bytes_of, ids_of)

    def fill(self, text: str, last_id: int, missing: int, limit: int = 2) -> list[tuple[int, ...]]:
        """The sequences of `missing` ids that, before `last_id`, spell `text`; at most `limit` of them."""
        last = self.bytes_of.get(last_id)
        spelled = text.encode()
        if last is None or not spelled.endswith(last):
            return []
        return self._spell(spelled[: -len(last)], missing, limit)

    def _spell(self, spelled: bytes, missing: int, limit: int) -> list[tuple[int, ...]]:
        if not missing:
            return [] if spelled else [()]
        found: list[tuple[int, ...]] = []
        for length in range(len(spelled) - missing + 1, 0, -1):
            for token_id in self.ids_of.get(spelled[:length], ()):
                for rest in self._spell(spelled[length:], missing - 1, limit - len(found)):
                    found.append((token_id, *rest))
                    if len(found) >= limit:
                        return found
        return found


def _is_broken(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return True
    return False


def is_whole_text(text: str) -> bool:
    """Whether the server sent all bytes of the text, and no U+FFFD in place of some."""
    return bool(text) and "\ufffd" not in text
