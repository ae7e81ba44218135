"""What one token id contributes to a text, derived from the tokenizer's decoder.

A byte-level decoder maps a token to bytes. A SentencePiece decoder maps it to text or, by byte fallback, to one byte.
Neither depends on context, with two exceptions: several tokens may share a character, and SentencePiece strips one
leading space from the whole text. So decoding is a table lookup. Decoders of other kinds are not `exact`: a token's
text depends on its neighbours.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer as Backend

from workers.text.pieces import AddedToken

Contribution = str | bytes | AddedToken
"""Whole text, a part of a character, or an added token."""


def _byte_of_character() -> dict[str, int]:
    """Maps GPT-2's printable stand-in for each byte back to the byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


BYTE_OF_CHARACTER = _byte_of_character()


def _bytes_of(token: str) -> bytes:
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:  # an added token that was never byte-encoded
        return token.encode()


class TokenTable:
    """The contribution of every token id; entries are computed on first use and cached.

    `exact` says whether the table may be used; `strips_leading_space` whether one space at the very beginning of a
    text is dropped; `lossy(data)` is the text of bytes that never became whole characters.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()
        self._entries: dict[int, Contribution | None] = {}
        self._replacements: list[tuple[str, str]] = []
        self._byte_level = False
        self._byte_fallback = False
        self.strips_leading_space = False
        decoder = backend.decoder
        self.exact = decoder is not None and self._understand(json.loads(decoder.__getstate__()))

    def _understand(self, decoder: dict[str, Any]) -> bool:
        chain = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        kinds = [link["type"] for link in chain]
        if kinds == ["ByteLevel"]:
            self._byte_level = True
            return True
        fused = False
        for link in chain:
            match link:
                case {"type": "Replace", "pattern": {"String": old}, "content": new} if not fused:
                    self._replacements.append((old, new))
                case {"type": "ByteFallback"} if not fused:
                    self._byte_fallback = True
                case {"type": "Fuse"}:
                    fused = True
                case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused:
                    self.strips_leading_space = True
                case _:
                    return False
        return fused

    def __getitem__(self, token_id: int) -> Contribution | None:
        """The token's contribution; None for an id outside the vocabulary."""
        try:
            return self._entries[token_id]
        except KeyError:
            entry = self._entries[token_id] = self._entry(token_id)
            return entry

    def _entry(self, token_id: int) -> Contribution | None:
        try:
            token = self._backend.id_to_token(token_id)
        except OverflowError:
            return None
        if token is None:
            return None
        added = self._added.get(token_id)
        if added is not None:
            return AddedToken(token_id, self._text_of(token), added.special)
        if self._byte_level:
            data = _bytes_of(token)
            try:
                return data.decode()
            except UnicodeDecodeError:
                return data
        text = self._replaced(token)
        if self._byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                pass
        return text

    def _replaced(self, token: str) -> str:
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token

    def _text_of(self, token: str) -> str:
        return _bytes_of(token).decode(errors="replace") if self._byte_level else self._replaced(token)

    def lossy(self, data: bytes) -> str:
        """Bytes as text, with U+FFFD for bytes that are not a character: one for each byte, with byte fallback."""
        if not self._byte_fallback:
            return data.decode(errors="replace")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(data)
