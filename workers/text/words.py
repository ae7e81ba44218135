"""Encodes text word by word, and caches words.

The pre-tokenizer of a byte-level tokenizer splits a text into words, and each word is encoded by itself, so a word has
the same ids everywhere. Splitting and looking up takes a quarter of the time of the `tokenizers` library, which spends
most of it on its regular expressions and on offsets that are not needed here.

The `regex` library splits the words here, not `tokenizers`. The two may know different versions of Unicode, so a text
with a character that they classify differently is left to `tokenizers` (`disputed_characters`).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from itertools import chain, groupby
from typing import Any

import regex
from tokenizers import Regex, normalizers
from tokenizers import Tokenizer as Backend

from workers.text.decoding import BYTE_OF_CHARACTER

MAX_CHARS = 2_000_000
"""The cache's size in characters; when it is full, it is emptied."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How a `ByteLevel` pre-tokenizer splits by default."""

_CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}

_CLASSES = [
    r"\p{L}",
    r"\p{Lu}",
    r"\p{Ll}",
    r"\p{Lt}",
    r"\p{Lm}",
    r"\p{Lo}",
    r"\p{M}",
    r"\p{N}",
    r"\p{P}",
    r"\p{S}",
    r"\s",
]
_FOLDED = "\u017f\u212a"
"""Characters that a library may take for ASCII letters if it ignores case."""


class WordEncoder:
    """Encodes with a cache; safe to share between threads.

    `disputed` is the result of `disputed_characters` for the installed libraries; without it, every text is left to
    `tokenizers`.
    """

    def __init__(self, backend: Backend, encode: Callable[[str], list[int]], disputed: str | None) -> None:
        self._encode = encode
        self._model = backend.model
        self._patterns = _patterns_of(backend) if disputed and _takes_text_as_it_is(backend) else None
        self._disputed = regex.compile(f"[{disputed}]") if self._patterns else None
        self._agreed: set[str] = set()
        self._known: dict[str, tuple[int, ...]] = {}
        self._chars = 0

    @property
    def usable(self) -> bool:
        """Whether this encoder can split this tokenizer's words itself."""
        return self._patterns is not None

    def encode(self, text: str) -> list[int]:
        """The token ids of a text that contains no added tokens."""
        if self._patterns is None or self._disputed is None:
            return self._encode(text)
        if not text.isascii():
            new = set(text) - self._agreed
            if self._disputed.search("".join(new)) or not unicodedata.is_normalized("NFC", text):
                return self._encode(text)
            self._agreed |= new
        words = [text]
        for pattern in self._patterns:
            words = [word for piece in words for word in pattern.split(piece) if word]
        known = self._known
        for word in set(words) - known.keys():
            known[word] = self._ids_of(word)
            self._chars += len(word)
        if self._chars > MAX_CHARS:
            self._known, self._chars = {}, 0
        return list(chain.from_iterable(map(known.__getitem__, words)))

    def _ids_of(self, word: str) -> tuple[int, ...]:
        written = word.encode().decode("latin-1").translate(_CHARACTER_OF_BYTE)
        return tuple(token.id for token in self._model.tokenize(written))


def disputed_characters() -> str:
    """The characters that the two libraries classify differently, as the inside of a regular expression's brackets.

    Takes two seconds, and depends only on the installed versions of `tokenizers`, `regex` and Python.
    """
    code_points = [*range(0xD800), *range(0xE000, 0x110000)]
    unassigned = {point for point in code_points if unicodedata.category(chr(point)) == "Cn"}
    assigned = "".join(chr(point) for point in code_points if point not in unassigned)
    disputed = set(_FOLDED)
    for name in _CLASSES:
        theirs = set(normalizers.Replace(Regex(name), "").normalize_str(assigned))
        disputed |= theirs ^ set(regex.sub(name, "", assigned))
    return _ranges(sorted({*map(ord, disputed), *unassigned}))


def _ranges(code_points: Iterable[int]) -> str:
    runs = groupby(enumerate(code_points), key=lambda pair: pair[1] - pair[0])
    ends = ((run[0][1], run[-1][1]) for run in (list(group) for _, group in runs))
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ends)


def _takes_text_as_it_is(backend: Backend) -> bool:
    """Whether a text is split as it is, or after no change but Unicode's composition (NFC)."""
    state = None if backend.normalizer is None else json.loads(backend.normalizer.__getstate__())
    return state is None or state["type"] == "NFC" or state.get("normalizers") == []


def _patterns_of(backend: Backend) -> list[regex.Pattern[str]] | None:
    """The patterns by which the pre-tokenizer splits, in order; None if it does anything else."""
    if backend.pre_tokenizer is None or type(backend.model).__name__ != "BPE":
        return None
    state: dict[str, Any] = json.loads(backend.pre_tokenizer.__getstate__())
    *cuts, last = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    sources = []
    for cut in cuts:
        if cut["type"] == "Digits" and cut["individual_digits"]:
            sources.append(r"\p{N}")
        elif (
            cut["type"] == "Split" and cut["behavior"] == "Isolated" and not cut["invert"] and "Regex" in cut["pattern"]
        ):
            sources.append(cut["pattern"]["Regex"])
        else:
            return None
    if last["use_regex"]:
        sources.append(_GPT2)
    try:
        patterns = [regex.compile(f"({source})") for source in sources]
    except regex.error:
        return None
    # Further groups would end up among the words, and the libraries disagree about empty matches.
    return None if any(p.groups > 1 or p.fullmatch("") for p in patterns) else patterns
