"""Parsing against the reference's derender, over the recorded cases: whole, and one token a chunk.

Every family gets a tokenizer in which its markers are added tokens (Qwen's, if it is there, with the family's own
markers added), so that the reference's parsers find what they look for. A difference is either a bug of ours or a row of
`WANTED`, `DIFFERENCES` or `STREAMED`, with its reason. Every name is recorded and compared; `make peer` asks the
reference about the names of `FIRST`, with `TOKENYARD_PARITY=all` about every name (20 minutes).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken as NewToken
from tokenizers import Tokenizer

from tests.peer.recordings import Recording
from tests.peer.reference import TOKENIZERS, Frontend, derender_streamed, derender_whole, spaced
from tests.workers.parsing.test_goldens import OFFERED, cases, meaning
from workers.parsing import ParseContext, bind, finish, load_format, parse, start, step
from workers.parsing.registry import REASONING, TOOLS
from workers.text.pieces import AddedToken, Piece

MODEL = TOKENIZERS / "qwen3"

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="there is no tokenizer to ask it with")

MODELS = {"openai": TOKENIZERS / "gpt-oss", "openai_gptoss": TOKENIZERS / "gpt-oss"}
"""Names that the reference reads for their own models only."""

WANTED: dict[str, str] = {
    "marker text inside an argument": "a marker inside a string or a value is data; the reference ends the call there",
    "text around a call": "text after a call reaches the client; the reference drops it",
    "text after a call": "text after a call reaches the client; the reference drops it",
    "text before a call": "text before a call reaches the client; the reference drops it (Phi-4-mini, MiniCPM 5, OLMo 3)",
    "truncated in the answer": "an answer's opening marker is markup, whatever follows it (ERNIE)",
    "truncated inside a call": "a call that max_tokens cut is no call; the reference completes it",
    "malformed": "malformed markup comes out as text; the reference drops it",
    "truncated in reasoning": "what was cut inside reasoning is reasoning; the reference says text (Granite)",
    "nested arguments": "nested values keep their types; the reference reads strings or nothing (FunctionGemma, Step 3, Phi-4-mini)",
    "typed arguments": "values are typed as they are written; the reference reads strings only (FunctionGemma)",
}
"""Case → why we differ from the reference where we say what the recorded case says, which is the template's word."""

HIDDEN = "no call allowed"
"""Without calls, special tokens are hidden as the request says; the reference's derender shows or drops them with all else."""

_HEADER = "without a reasoning parser the reference leaves the message's header in the text"
_VERSION = "the reference reads one of Mistral's forms, by the tokenizer's version; we read each"
_OPENED = "the reference leaves the opening marker in the reasoning, where the model writes it itself"
_ONE_CALL = "the reference reads one call, and what follows it spoils that as well"
_CRASH = "the reference answers 400 from an exception of its parser; we read the calls, or give the text"

DIFFERENCES: dict[tuple[str, str], str] = {
    **{("reasoning step3", case["case"]): _OPENED for case in cases("reasoning", "step3")},
    **{(f"tools {name}", "plain"): _HEADER for name in ("muse", "muse_glimmer", "musespark1x")},
    ("tools mistral", "two calls as v11 writes them"): _VERSION,
    ("tools mistral", "two calls as v13 writes them"): _VERSION,
    **{
        ("tools internlm", case): _CRASH
        for case in (
            "parallel calls",
            "marker text inside an argument",
            "truncated inside a call",
            "malformed",
            "one call allowed",
        )
    },
    (
        "reasoning inkling",
        "reasoning and answer",
    ): "streamed, the reference leaves the block's closing marker in the text",
    **{("tools gigachat3", case): _ONE_CALL for case in ("parallel calls", "one call allowed")},
    ("reasoning minicpmv", "quotes and backslashes"): (
        "this tokenizer writes line feeds as \\\\n; the reference makes line feeds of every \\\\n outside of code"
    ),
}
"""(kind and name, case) → why we differ there from the reference and from the recorded case."""

STREAMED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("tools functiongemma", "tools granite-20b-fc", "tools jamba", "tools llama3_json", "tools llama4_json"),
            *("tools internlm", "tools step3"),
        ),
        "the reference sends no arguments for a call that has none",
    ),
    "tools gigachat3": _ONE_CALL,
    "tools hunyuan_a13b": "the reference leaves the list's marker in the text, and loses a later call's arguments",
    "tools minicpm5": "the reference sends each call's markup as text as well",
    "tools phi4_mini_json": "the reference sends nothing at all",
    "tools xlam": "the reference sends a call's arguments twice, or a later call's not at all",
    "reasoning ernie45": "the reference leaves the answer's markers in the text",
    "reasoning gemma4": "the reference finds no reasoning, and leaves its markers in the text",
    "reasoning granite": "the reference leaves the colon of the marker in the reasoning",
    "reasoning hunyuan_a13b": "the reference looks for the token ids that the family's own tokenizer has for its markers",
    "reasoning inkling": "the reference leaves the block's closing marker in the text",
    "reasoning olmo3": "the reference loses the end of an answer that could have begun a marker",
}
"""Kind and name → why the reference differs from its own one-shot answer, one token a chunk; we do not."""

UNASKED: dict[str, str] = {
    **dict.fromkeys(
        ("tools cohere_command3", "tools cohere_command4", "reasoning cohere_command3", "reasoning cohere_command4"),
        "the reference needs a library for it that is not installed",
    ),
    "reasoning identity": "the reference has it for its own use, and no flag takes the name",
}
"""Names that the reference cannot be asked about here, and why."""


def tokenizer_of(kind: str, name: str, folder: Path, *, written: bool) -> tuple[Tokenizer, dict[str, AddedToken]]:
    """A tokenizer with the family's markers, written with a model's configuration to a folder, if the reference asks."""
    source = MODELS.get(name, MODEL)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    if written:
        shutil.copytree(source, folder)
    if name in MODELS:
        return tokenizer, _added(tokenizer)
    table = load_format(name, None) if kind == "tools" else load_format(None, name)
    wanted = {*table.markers.values(), *EXTRA.get(name, ())}
    # Where the reference finds [ARGS] it reads only the newer form of Mistral's calls, and the recorded one is the older.
    wanted -= {"[ARGS]", "[CALL_ID]"}
    single = [text for text in sorted(wanted) if re.fullmatch(r"<[^<>\s\"'=]+>|\[/?[A-Z_]+\]|<\|\"\|>", text)]
    tokenizer.add_special_tokens(
        [NewToken(text, special=True, normalized=False) for text in single if tokenizer.token_to_id(text) is None]
    )
    if written:
        tokenizer.save(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config.pop("added_tokens_decoder", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer, _added(tokenizer)


def _added(tokenizer: Tokenizer) -> dict[str, AddedToken]:
    found = tokenizer.get_added_tokens_decoder()
    return {token.content: AddedToken(token_id, token.content, token.special) for token_id, token in found.items()}


EXTRA: dict[str, tuple[str, ...]] = {
    "internlm": ("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "llama3_json": ("<|python_tag|>",),
    "llama4_json": ("<|python_tag|>",),
    "poolside_v1": ("<assistant>",),
    "gemma4": ('<|"|>', "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>"),
    "ernie45": ("<think>", "</think>", "<response>", "</response>"),
    "hy_v3": ("<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "hy_v4": ("<think>", "</think>"),
    "kimi_k3": ("<|open|>", "<|close|>", "<|sep|>"),
}


def pieces_of(tokenizer: Tokenizer, added: dict[str, AddedToken], ids: list[int]) -> list[list[Piece]]:
    """One chunk for each token; text that is not whole yet waits for the next."""
    by_id = {token.token_id: token for token in added.values()}
    chunks: list[list[Piece]] = []
    held: list[int] = []
    for token_id in ids:
        if token_id in by_id:
            chunks.append([by_id[token_id]])
            continue
        held.append(token_id)
        text = tokenizer.decode(held, skip_special_tokens=False)
        if text.endswith("\ufffd"):
            chunks.append([])
            continue
        chunks.append([text])
        held = []
    return chunks


def our_meaning(events: list[list[Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"reasoning": "", "text": "", "calls": []}
    for event in events:
        if event[0] == "call":
            out["calls"].append((event[1], event[2]))
        else:
            out[event[0]] += event[1]
    return out


def differences(frontend: Frontend, kind: str, name: str, folder: Path) -> Iterator[tuple[Any, ...]]:
    """(case, "whole" or "streamed", ours, the reference's) where they differ."""
    tokenizer, added = tokenizer_of(kind, name, folder, written=frontend.asks)
    flag = "tool_call_parser" if kind == "tools" else "reasoning_parser"
    server = {"model": str(folder), flag: name, "flags": ["--max-model-len", "8192"]}
    table = load_format(name, None) if kind == "tools" else load_format(None, name)
    parser = bind(table, {text: token.token_id for text, token in added.items()})
    opening = "<|start|>assistant" if name in MODELS else "<|im_start|>assistant\n"
    prompt = tokenizer.encode(opening, add_special_tokens=False).ids
    for case in cases(kind, name):
        given = case.get("context", {})
        ids = tokenizer.encode(case["text"], add_special_tokens=False).ids
        chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        if kind == "tools":
            chat["tools"] = list(OFFERED)
        for key in ("tool_choice", "parallel_tool_calls", "include_reasoning"):
            if key in given:
                chat[key] = given[key]
        if "template_arguments" in given:
            chat["chat_template_kwargs"] = given["template_arguments"]
        body = {"model": "m", "prompt_token_ids": prompt, "prompt_tokens": len(prompt), "chat_request": chat}
        context = ParseContext.from_json({"tools": OFFERED if kind == "tools" else (), **given})
        chunks = pieces_of(tokenizer, added, ids)
        theirs = derender_whole(frontend, server, body, ids, case["finish_reason"])
        whole = ParseContext.from_json({**context.to_json(), "tool_arguments": "complete"})
        events, reason = parse(
            parser, whole, prompt, [piece for chunk in chunks for piece in chunk], case["finish_reason"]
        )
        ours = (our_meaning(meaning(events)), reason)
        if ours != theirs:
            yield case["case"], "whole", ours, theirs
        if isinstance(theirs, str) and theirs.startswith("0:"):
            return
        streamed = derender_streamed(frontend, server, body, ids, case["finish_reason"])
        state, got = start(parser, context, prompt), []
        for chunk in chunks:
            state, more = step(parser, state, chunk)
            got += more
        rest, reason = finish(parser, state, case["finish_reason"])
        ours = (our_meaning(meaning([*got, *rest])), reason)
        if ours != streamed:
            yield case["case"], "streamed", ours, streamed


FIRST = {
    *("tools hermes", "tools qwen3_coder", "tools llama3_json", "tools pythonic", "tools mistral", "tools openai"),
    *("tools deepseek_v31", "tools deepseek_v4", "tools kimi_k2", "tools glm45", "tools minimax_m2", "tools gemma4"),
    *("tools granite", "tools seed_oss"),
    *("reasoning deepseek_r1", "reasoning qwen3", "reasoning openai_gptoss", "reasoning olmo3"),
}
"""Asked by every `make peer`; the others, whose reference servers take a quarter of an hour to build, with
`TOKENYARD_PARITY=all`."""

NAMED = [("tools", name) for name in sorted(TOOLS)] + [("reasoning", name) for name in sorted(REASONING)]


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_the_reference_says_the_same_or_we_know_why_not(
    recording: Recording, frontend: Frontend, kind: str, name: str, tmp_path: Path
) -> None:
    called = f"{kind} {name}"
    if recording.mode == "live" and called not in FIRST and os.environ.get("TOKENYARD_PARITY") != "all":
        pytest.skip("asked with TOKENYARD_PARITY=all")
    if called in UNASKED:
        pytest.skip(UNASKED[called])
    if name in MODELS and not MODELS[name].exists():
        pytest.skip("the model's own tokenizer is not here")
    recorded = {case["case"]: (our_meaning(case["events"]), case["reason"]) for case in cases(kind, name)}
    unexplained = []
    for case, how, ours, theirs in differences(frontend, kind, name, tmp_path / "model"):
        if spaced(ours) == spaced(theirs) or (called, case) in DIFFERENCES or case == HIDDEN:
            continue
        explained = case in WANTED or (how == "streamed" and called in STREAMED)
        if spaced(ours) != spaced(recorded[case]) or not explained:
            unexplained.append(f"{case} ({how}):\n  ours   {ours}\n  theirs {theirs}")
    assert not unexplained, "\n".join(unexplained)
