"""Outputs drawn at random from a format's own table, to test the format with.

A walk starts in the format's first mode and follows its rules. It fills each mode with text that is easily misread
there: parts of markers, quotes, escapes, white space, other modes' markers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise

from tests.workers.parsing.bodies import BODY_SAMPLES
from workers.parsing.spec import Format, Sink, live
from workers.text.pieces import AddedToken, Piece

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "where": {"type": "object"},
                    "tags": {"type": "array"},
                    "exact": {"type": ["boolean", "null"]},
                    "ratio": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
)

WORDS = ["x", "Oslo ", "<", "</", "é🙂", "\n", " ", "\n\n", '"', "\\", "{", "}", "[", "]", "<|", "|>", ">", "a: b"]
NAMES = ["get_weather", "ping", " get_weather\n", "functions.ping:0", "", "no such"]
KEYS = ["city", "days", "where", "tags", "exact", "ratio", "other", ""]
VALUES = [
    "Oslo",
    "3",
    "\n3\n",
    '{"a": [1, "b"]}',
    "[1, 2",
    "true",
    "null",
    'say "hi"\\',
    "é🙂",
    "",
    " \n",
    "\n\n",
    "2.50",
]


def draw(table: Format, rng: random.Random, length: int = 10, words: list[str] | None = None) -> list[str]:
    """One output as alternating plain texts and markers; markers are whole items.

    words: if given, collects the words that were written as text or reasoning; each word is then unique.
    """
    modes = table.all_modes
    every = sorted(set(table.markers.values()))
    mode = table.start if words is not None else rng.choice([table.start, table.answer])
    parts: list[str] = []
    for _ in range(rng.randint(0, length)):
        sink = modes[mode].sink
        here = list(live(table, mode))
        if sink is Sink.BODY:
            roll = rng.random()
            if here and roll < 0.1:
                literal, go = rng.choice(here)
                parts.append(literal)
                mode = go.to
                continue
            samples = BODY_SAMPLES[modes[mode].style]
            text = rng.choice(samples)
            if roll < 0.25:
                text = text[: rng.randint(0, len(text))]
            elif roll < 0.3 and every:
                text = text.replace("Oslo", rng.choice(every))
            parts.append(text)
            mode = modes[mode].then
            continue
        if here and rng.random() < 0.7:
            literal, go = rng.choice(here)
            parts.append(literal)
            mode = go.to
            continue
        pool = {Sink.NAME: NAMES, Sink.KEY: KEYS, Sink.VALUE: VALUES}.get(sink, WORDS)
        word = rng.choice(pool)
        if words is not None and sink in (Sink.TEXT, Sink.REASONING):
            word = f" word{len(words)}. "
            words.append(word.strip())
            parts.append(word)
            continue
        if rng.random() < 0.1 and every:
            literal = rng.choice(every)
            word = literal[: rng.randint(1, len(literal))]
        if sink in (Sink.SKIP, Sink.GAP) and rng.random() < 0.7:
            word = rng.choice(["", "\n", " "])
        parts.append(word)
    if parts and rng.random() < 0.2 and words is None:
        parts[-1] = parts[-1][: rng.randint(0, len(parts[-1]))]
    return [part for part in parts if part]


def split_text(parts: list[str], rng: random.Random) -> list[list[Piece]]:
    """The same text, cut into chunks anywhere."""
    text = "".join(parts)
    cuts = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(rng.randint(0, 12)))})
    return [[text[a:b]] for a, b in pairwise(cuts)]


def pieces_of(parts: list[str], added: Mapping[str, int], special: frozenset[str]) -> list[Piece]:
    """The parts as a detokenizer returns them, with added tokens as `AddedToken`."""
    return [AddedToken(added[part], part, part in special) if part in added else part for part in parts]


def cut_pieces(pieces: list[Piece], rng: random.Random) -> list[list[Piece]]:
    """The same pieces, texts cut anywhere, grouped into chunks of any size."""
    small: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str):
            small += list(piece)
        else:
            small.append(piece)
    chunks: list[list[Piece]] = []
    at = 0
    while at < len(small):
        size = rng.choice([1, 1, 2, 3, 7])
        chunk: list[Piece] = []
        for piece in small[at : at + size]:
            if isinstance(piece, str) and chunk and isinstance(chunk[-1], str):
                chunk[-1] += piece
            else:
                chunk.append(piece)
        chunks.append(chunk)
        at += size
    return chunks
