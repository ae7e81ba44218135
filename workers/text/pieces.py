"""What the detokenizer hands to the parser: text, and added tokens that must not be mistaken for text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One added-vocabulary token: its id, its literal text, and whether `skip_special_tokens` hides it."""

    token_id: int
    text: str
    special: bool


Piece = str | AddedToken
