"""A model's tokenizer: text to token ids and back, with the `tokenizers` library only."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from workers.text.decoding import TokenTable
from workers.text.pieces import AddedToken
from workers.text.segments import MIN_CHARS, SegmentEncoder
from workers.text.words import WordEncoder

_MAX_TOKEN_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What is known about a tokenizer besides its vocabulary.

    `fingerprint` changes with any file that the tokenizer was made from. `special_tokens` are the named ones that
    chat templates read, such as `bos_token`. `special_tokens_in_text` says whether encoding turns a special token's
    literal text into its id; otherwise that is plain text.
    """

    fingerprint: str = ""
    special_tokens: Mapping[str, Any] = field(default_factory=dict)
    max_chars_per_token: int | None = None
    special_tokens_in_text: bool = True
    disputed_characters: str | None = None
    """From `workers.text.words.disputed_characters`; without it, the `tokenizers` library encodes every text."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TokenizerInfo:
        return cls(**{name: data[name] for name in cls.__slots__ if name in data})


class Tokenizer:
    """Encodes and decodes; safe to share between threads."""

    def __init__(self, backend: Backend, info: TokenizerInfo | None = None) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self.info = info or TokenizerInfo()
        words = WordEncoder(backend, self._encode, self.info.disputed_characters)
        self._segments = SegmentEncoder(backend, words.encode)
        backend.encode_special_tokens = not self.info.special_tokens_in_text
        self.table = TokenTable(backend)
        """What each token id contributes to a text."""
        self.added_tokens: Mapping[str, int] = {
            token.content: token_id for token_id, token in backend.get_added_tokens_decoder().items()
        }
        """Added tokens by their literal text, special or not."""
        self.vocabulary_size: int = backend.get_vocab_size(with_added_tokens=True)

    @property
    def fingerprint(self) -> str:
        """Identifies the files that this tokenizer was made from."""
        return self.info.fingerprint

    @cached_property
    def bos_token_id(self) -> int | None:
        return self._named("bos_token")

    @cached_property
    def eos_token_id(self) -> int | None:
        return self._named("eos_token")

    @cached_property
    def max_chars_per_token(self) -> int:
        """The length of the longest token; the text of n tokens is at most n times as long."""
        if self.info.max_chars_per_token is not None:
            return self.info.max_chars_per_token
        return max(map(len, self._backend.get_vocab()), default=1)

    @cached_property
    def space_marker(self) -> str | None:
        """The character that represents a space, if decoding a single token would strip the space."""
        return _metaspace(self._backend)

    def _named(self, name: str) -> int | None:
        token = self.info.special_tokens.get(name)
        return None if token is None else self.id_of(token)

    def id_of(self, token: str) -> int | None:
        """The id of a token by its literal text."""
        return self._backend.token_to_id(token)

    def token_of(self, token_id: int) -> str | None:
        """A token as the vocabulary writes it; None for an id outside the vocabulary."""
        return self._backend.id_to_token(token_id) if 0 <= token_id <= _MAX_TOKEN_ID else None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The token ids of a text."""
        if add_special_tokens or len(text) < MIN_CHARS or not self.info.special_tokens_in_text:
            return self._encode(text, add_special_tokens)
        return self._segments.encode(text)

    def _encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def encode_as_text(self, text: str) -> list[int]:
        """The token ids of a text; literals of special tokens are encoded as plain text."""
        with self._lock:
            self._backend.encode_special_tokens = True
            try:
                return self._encode(text)
            finally:
                self._backend.encode_special_tokens = not self.info.special_tokens_in_text

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = False, keep_last: int | None = None
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The token ids of a text, and each one's (start, end) in characters.

        `keep_last` limits the number of ids, cutting on the left; special tokens that the tokenizer adds are kept, and
        count.
        """
        if keep_last is None:
            encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
        else:
            added = self._backend.num_special_tokens_to_add(False) if add_special_tokens else 0
            encoding = self._backend.encode(text, add_special_tokens=False)
            encoding.truncate(max(0, keep_last - added), direction="left")
            if added:
                encoding = self._backend.post_process(encoding, None, True)
        return encoding.ids, encoding.offsets

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of all the token ids together; ids outside the vocabulary are left out."""
        known = [token_id for token_id in token_ids if 0 <= token_id <= _MAX_TOKEN_ID]
        text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """One token's text, its leading spaces included; a part of a character is U+FFFD."""
        text = self.decode([token_id])
        if (marker := self.space_marker) and (token := self.token_of(token_id)):
            spaces = len(token) - len(token.lstrip(marker))
            text = " " * (spaces - (len(text) - len(text.lstrip(" ")))) + text
        return text

    def is_hidden(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` hides the token."""
        contribution = self.table[token_id]
        return contribution is None or (isinstance(contribution, AddedToken) and contribution.special)


def _metaspace(backend: Backend) -> str | None:
    if backend.pre_tokenizer is None:
        return None
    state = json.loads(backend.pre_tokenizer.__getstate__())
    for part in state["pretokenizers"] if state["type"] == "Sequence" else [state]:
        if part["type"] == "Metaspace":
            return str(part["replacement"])
    return None


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """`templates` are the folder's chat templates by name; one without a name is `default`.

    `mistral_file` is the file that mistral-common reads; the vocabulary in a `tekken.json` is bytes, not text.
    """

    tokenizer: Tokenizer
    templates: Mapping[str, str]
    mistral_file: Path | None = None
