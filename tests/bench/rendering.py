"""How fast requests become token ids, in the library alone: for one process, at one and at sixteen threads.

Every request is a new one: "new" in all its text, "grown" in its last message alone, after a history that was rendered
before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tasks.protocol.conversation import Conversation
from tests.bench.table import Table
from workers.models.loading import load
from workers.render.requests import EngineFacts, resolve_request
from workers.renderers.base import Renderer, make_renderer

FOLDER = Path(os.environ.get("TOKENYARD_REAL_TOKENIZERS", "~/.cache/real-tokenizers")).expanduser() / "qwen3"
SECONDS = 2.0
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
SENTENCE = "The quick brown fox jumps over the lazy dog, and Zürich is sunny today. "


@dataclass(frozen=True)
class Row:
    """One kind of request: renders a second, and the milliseconds that half and all but one in a hundred stay under."""

    name: str
    tokens: int
    threads: int
    per_second: float
    median_ms: float
    p99_ms: float


def conversations() -> dict[str, Callable[[int], Conversation]]:
    """Makers of the n-th conversation: a short chat with a tool, and chats of about 4,000 and 50,000 tokens."""

    def short(n: int) -> Conversation:
        return Conversation(({"role": "user", "content": f"{n}. {SENTENCE}"},), tools=(TOOL,), tool_choice="auto")

    def new(repeats: int) -> Callable[[int], Conversation]:
        return lambda n: Conversation(({"role": "user", "content": f"{n}. {SENTENCE * repeats}"},))

    def grown(repeats: int) -> Callable[[int], Conversation]:
        turns = tuple({"role": ("user", "assistant")[i % 2], "content": SENTENCE * (repeats // 10)} for i in range(10))
        return lambda n: Conversation((*turns, {"role": "user", "content": f"{n}. {SENTENCE}"}))

    return {"short, one tool": short, "4k, new": new(240), "4k, grown": grown(240), "50k, grown": grown(3000)}


def measure(folder: Path = FOLDER) -> list[Row]:
    """The table for one tokenizer folder."""
    renderer = make_renderer("jinja", load(folder), max_model_len=200_000)
    facts = EngineFacts(200_000, tool_parser="hermes", reasoning_parser="qwen3")
    return [
        _measure(name, make, renderer, facts, threads) for name, make in conversations().items() for threads in (1, 16)
    ]


def _measure(
    name: str, make: Callable[[int], Conversation], renderer: Renderer, facts: EngineFacts, threads: int
) -> Row:
    def once(n: int) -> float:
        conversation = make(n)
        started = time.perf_counter()
        resolve_request(conversation, renderer.render(conversation), facts, reasoning_ended=False)
        return time.perf_counter() - started

    tokens = len(renderer.render(make(-1)).token_ids)
    count = max(threads, int(SECONDS / max(once(-2), 1e-4)))
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        taken = sorted(pool.map(once, range(count)))
        elapsed = time.perf_counter() - started
    p99 = taken[min(len(taken) - 1, int(len(taken) * 0.99))]
    return Row(name, tokens, threads, count / elapsed, 1e3 * taken[len(taken) // 2], 1e3 * p99)


def run() -> list[Table]:
    """The table of this benchmark; none where the tokenizer is not there."""
    if not FOLDER.is_dir():
        return []
    headings = ("chat", "tokens", "threads", "renders per second", "median, ms", "p99, ms")
    rows = [
        (
            row.name,
            str(row.tokens),
            str(row.threads),
            f"{row.per_second:.0f}",
            f"{row.median_ms:.2f}",
            f"{row.p99_ms:.2f}",
        )
        for row in measure()
    ]
    return [Table("Rendering in one process, without HTTP and queue (Qwen3's tokenizer)", headings, rows)]
