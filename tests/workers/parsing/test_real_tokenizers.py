"""The recorded cases, tokenized by real tokenizers: markers are tokens, and text arrives token by token."""

from __future__ import annotations

from functools import cache

import pytest

from tests.golden import tokens
from tests.workers.parsing.test_goldens import OFFERED, cases, meaning
from workers.parsing import ParseContext, bind, finish, load_format, parse, start, step
from workers.text.tokenizer import Tokenizer

RECORDED = [(name, kind, folder) for (name, kind), folders in tokens.TOKENIZERS.items() for folder in folders]

tokenizer_of = cache(tokens.tokenizer_of)


@pytest.mark.parametrize(("name", "kind", "folder"), RECORDED)
def test_recorded_cases_as_tokens(name: str, kind: str, folder: str) -> None:
    recorded = tokens.load(name, kind, folder)
    table = load_format(name, None) if kind == "tools" else load_format(None, name)
    parser = bind(table, {text: token.token_id for text, token in recorded.added.items()})
    tools = OFFERED if kind == "tools" else ()
    read = [case for case in cases(kind, name) if case["case"] in recorded.cases]
    assert len(read) >= 12
    for case in read:
        chunks, request = recorded.pieces(case), case.get("context", {})
        # If calls are not parsed, a marker is text, which is hidden if its token is special.
        given = {"tools": tools, "skip_special_tokens": request.get("tool_choice") != "none", **request}
        for mode in ("complete", "stream"):
            context = ParseContext.from_json({**given, "tool_arguments": mode})
            whole = [piece for chunk in chunks for piece in chunk]
            events, reason = parse(parser, context, [], whole, case["finish_reason"])
            assert (meaning(events), reason) == (case["events"], case["reason"]), (case["case"], mode)
            state, got = start(parser, context, []), []
            for chunk in chunks:
                state, more = step(parser, state, chunk)
                got += more
            more, reason = finish(parser, state, case["finish_reason"])
            assert (meaning([*got, *more]), reason) == (case["events"], case["reason"]), (case["case"], mode)


@pytest.mark.parametrize(("name", "kind", "folder"), RECORDED)
def test_the_recorded_ids_are_what_the_tokenizer_gives(name: str, kind: str, folder: str) -> None:
    tokenizer: Tokenizer | None = tokenizer_of(folder)
    if tokenizer is None:
        pytest.skip(f"the tokenizer {folder} is not installed")
    recorded = tokens.load(name, kind, folder)
    for case in cases(kind, name):
        assert tokens.encode(tokenizer, case["text"]) == recorded.cases.get(case["case"]), case["case"]
    for token in recorded.added.values():
        assert tokenizer.table[token.token_id] == token
