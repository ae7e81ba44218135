"""What parsing costs: microseconds a chunk and a token for each family, the state's size, and whole answers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from tasks.protocol.base import compact_json
from tasks.protocol.tokens import TokenChunk
from tasks.settings import ModelSettings
from tests.bench.table import Table
from tests.golden.families import REASONING, TOOLS
from tests.golden.families import Reasoning as ReasoningWriter
from tests.peer.reference import PEER, TOKENIZERS, started
from tests.workers.parsing.test_goldens import OFFERED
from workers.derender import fold
from workers.models.catalog import load_model
from workers.parsing import ParseContext, Parser, ParserState, bind, load_format, parse, start, step
from workers.surfaces.openai_chat import OPENAI_CHAT

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


ANSWER_TOKENS = 4_000
REPEATS = 15


def answer_rows() -> list[tuple[str, ...]]:
    """One-shot derendering, ids to message, of a long answer: here, and by the reference in the same run."""
    if not (TOKENIZERS / "qwen3").is_dir():
        return []
    model = ModelSettings(
        name="m",
        tokenizer=str(TOKENIZERS / "qwen3"),
        tool_parser="hermes",
        reasoning_parser="qwen3",
        max_model_len=2 * ANSWER_TOKENS,
    )
    profile = load_model(model)
    ids = profile.tokenizer.encode(output_of("hermes", "qwen3", 6 * ANSWER_TOKENS))[:ANSWER_TOKENS]
    prompt = profile.tokenizer.encode("<|im_start|>assistant\n")
    body = {"model": "m", "messages": [{"role": "user", "content": "Weather?"}], "tools": list(OFFERED)}
    request = OPENAI_CHAT.read(body)
    took, theirs = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        context = fold.describe(profile, "openai_chat", request, response_id="r", created=1, prompt_token_ids=prompt)
        compact_json(fold.respond(profile, context, prompt, [TokenChunk(0, tuple(ids), None, "length")]))
        took.append(time.perf_counter() - began)
    if (PEER / "bin" / "python").exists():
        server = {"model": model.tokenizer, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
        server["flags"] = ["--max-model-len", str(model.max_model_len)]  # type: ignore[assignment]
        choice = {"index": 0, "finish_reason": "length", "token_ids": ids}
        asked = {"model": "m", "prompt_token_ids": prompt, "prompt_tokens": len(prompt), "chat_request": body}
        asked["generate_response"] = {"request_id": "r", "model": "m", "created": 1, "choices": [choice]}
        with started() as frontend:
            for _ in range(REPEATS):
                began = time.perf_counter()
                answer = frontend.ask(dict(server), asked)
                theirs.append(time.perf_counter() - began)
                assert answer["status"] == 200, answer
    ours_s, theirs_s = sorted(took)[len(took) // 2], sorted(theirs)[len(theirs) // 2] if theirs else 0.0
    row = [f"{len(ids):,} tokens, hermes and qwen3", f"{1e3 * ours_s:.1f}", f"{len(ids) / ours_s:,.0f}"]
    row += [f"{1e3 * theirs_s:.1f}", f"{len(ids) / theirs_s:,.0f}", f"{theirs_s / ours_s:.1f}"] if theirs else ["-"] * 3
    return [tuple(row)]


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
        ),
        Table(
            "One-shot derendering",
            ("answer", "ours, ms", "tokens a second", "reference, ms", "tokens a second", "ratio"),
            answer_rows(),
            (
                "Token ids to the message as JSON: detokenizing, reasoning, tool calls; one core, medians.",
                "The reference's time includes its way through a pipe and its web framework, about 2 ms.",
            ),
        ),
    ]


if __name__ == "__main__":
    for table in run():
        print(table.markdown())
