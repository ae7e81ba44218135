"""Encodes long prompts piece by piece, and caches pieces.

A tokenizer first splits a text at added tokens, so the piece between two of them has the same token ids in every
prompt: a system prompt, for example, or an earlier turn of a conversation. The cache keeps those ids, up to a number of
characters. They depend only on the text, so they cannot go stale.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer as Backend

MIN_CHARS = 200
"""Shorter pieces are faster to encode than to look up."""
MAX_CHARS = 4_000_000
"""The cache's size in characters; their ids take about as many bytes."""

_CONTEXT_FREE = frozenset({"Split", "Digits", "ByteLevel", "Punctuation"})


class SegmentEncoder:
    """Encodes with a cache; safe to share between threads."""

    def __init__(self, backend: Backend, encode: Callable[[str], list[int]]) -> None:
        added = backend.get_added_tokens_decoder()
        self._encode = encode
        self._ids = {token.content: token_id for token_id, token in added.items()}
        self.usable = bool(added) and _is_context_free(backend)
        """Whether this tokenizer encodes a piece the same way everywhere."""
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._added = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if self.usable else None
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without the special tokens that the tokenizer would add."""
        if self._added is None:
            return self._encode(text)
        out: list[int] = []
        # With a group in the pattern, added tokens are at odd positions.
        for place, piece in enumerate(self._added.split(text)):
            if place % 2:
                out.append(self._ids[piece])
            elif len(piece) >= MIN_CHARS:
                out.extend(self._remembered(piece))
            elif piece:
                out.extend(self._encode(piece))
        return out

    def _remembered(self, piece: str) -> array[int]:
        with self._lock:
            ids = self._kept.get(piece)
            if ids is not None:
                self._kept.move_to_end(piece)
                return ids
        ids = array("I", self._encode(piece))
        if len(piece) <= MAX_CHARS // 4:
            with self._lock:
                if piece not in self._kept:
                    self._kept[piece] = ids
                    self._chars += len(piece)
                while self._chars > MAX_CHARS:
                    forgotten, _ = self._kept.popitem(last=False)
                    self._chars -= len(forgotten)
        return ids


def _is_context_free(backend: Backend) -> bool:
    """Whether a piece's ids depend only on its text, and added tokens absorb no text next to them."""
    normalizer = None if backend.normalizer is None else json.loads(backend.normalizer.__getstate__())
    rewrites = normalizer is not None and normalizer.get("normalizers") != []
    for token in backend.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or token.single_word or (token.normalized and rewrites):
            return False
    if backend.pre_tokenizer is None:
        return False
    state: dict[str, Any] = json.loads(backend.pre_tokenizer.__getstate__())
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return all(part["type"] in _CONTEXT_FREE and not part.get("add_prefix_space") for part in parts) and any(
        part["type"] == "ByteLevel" for part in parts
    )
