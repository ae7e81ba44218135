"""What parsing costs: microseconds a chunk and a token for each family, the state's size, and whole answers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from tests.bench.table import Table
from tests.golden.families import REASONING, TOOLS
from tests.golden.families import Reasoning as ReasoningWriter
from tests.workers.parsing.test_goldens import OFFERED
from workers.parsing import ParseContext, Parser, ParserState, bind, load_format, parse, start, step

CHUNK = 4
"""Characters in a chunk, about a token."""
WORDS = "The weather in Oslo is fine today, 3 < 4, and tomorrow it may rain. "


def output_of(tools: str, reasoning: str, size: int) -> str:
    """A long answer: reasoning, a call with a long argument, where the family has them."""
    thought = ReasoningWriter("", "", "", False) if reasoning == "identity" else REASONING[reasoning]
    text = WORDS * (size // len(WORDS) // 3)
    call = TOOLS[tools].write([("get_weather", {"city": text, "days": 3, "tags": ["a", "b"]})])
    before = f"{thought.opens}{text}{thought.closes}" if thought.opens else ""
    return before + (text if TOOLS[tools].before else "") + call


def chunks_of(text: str) -> list[str]:
    return [text[at : at + CHUNK] for at in range(0, len(text), CHUNK)]


def microseconds(
    parser: Parser, context: ParseContext, chunks: Sequence[str], *, save: bool
) -> tuple[float, float, int]:
    """Median of the first and of the last tenth of the chunks, in µs, and the largest state in bytes."""
    state = start(parser, context, ())
    took: list[float] = []
    largest = 0
    for chunk in chunks:
        began = time.perf_counter()
        if save:
            saved = json.dumps(state.dump())
            largest = max(largest, len(saved))
            state = ParserState.load(json.loads(saved))
        state, _ = step(parser, state, [chunk])
        took.append(time.perf_counter() - began)
    tenth = max(1, len(took) // 10)
    first, last = sorted(took[:tenth]), sorted(took[-tenth:])
    return 1e6 * first[len(first) // 2], 1e6 * last[len(last) // 2], largest


def family_rows(size: int = 12_000) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    context = ParseContext(tools=OFFERED)
    for name in sorted(TOOLS):
        reasoning = name if name in REASONING else "openai_gptoss" if name == "openai" else "deepseek_r1"
        if name in ("llama3_json", "llama4_json", "pythonic", "llama4_pythonic", "xlam"):
            reasoning = "identity"
        parser = bind(load_format(name, reasoning), {})
        chunks = chunks_of(output_of(name, reasoning, size))
        first, last, _ = microseconds(parser, context, chunks, save=False)
        saved_first, saved_last, largest = microseconds(parser, context, chunks, save=True)
        whole = ParseContext(tools=OFFERED, tool_arguments="complete")
        began = time.perf_counter()
        parse(parser, whole, (), ["".join(chunks)], "stop")
        each = 1e6 * (time.perf_counter() - began) / len(chunks)
        rows.append(
            (name, f"{first:.0f} / {last:.0f}", f"{saved_first:.0f} / {saved_last:.0f}", f"{largest:,}", f"{each:.2f}")
        )
    return rows


def flat_row(count: int = 10_000) -> tuple[str, ...]:
    parser = bind(load_format("hermes", "qwen3"), {})
    chunks = chunks_of(output_of("hermes", "qwen3", CHUNK * count))
    first, last, _ = microseconds(parser, ParseContext(tools=OFFERED), chunks, save=False)
    saved_first, saved_last, largest = microseconds(parser, ParseContext(tools=OFFERED), chunks, save=True)
    return (
        f"hermes, {len(chunks):,} chunks",
        f"{first:.0f} / {last:.0f}",
        f"{saved_first:.0f} / {saved_last:.0f}",
        f"{largest:,}",
        "",
    )


def run() -> list[Table]:
    """The tables of this benchmark."""
    return [
        Table(
            "Parsing",
            (
                "tool parser",
                "µs a chunk, first / last tenth",
                "with save and restore",
                "largest state, bytes",
                "µs a token, whole answer",
            ),
            [*family_rows(), flat_row()],
            (
                f"A chunk is {CHUNK} characters, about a token; medians; reasoning, text, and a call with a long argument.",
                "The state carries what the tools say of their arguments.",
                "A whole answer with calls given only when complete, as the one-shot derender reads it.",
            ),
        )
    ]


if __name__ == "__main__":
    for table in run():
        print(table.markdown())
