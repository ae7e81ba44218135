"""Formats from a tokenizer's own files: published templates, which keep every invariant, and rejected ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract import test_format as laws
from tests.golden import tokens
from tests.workers.parsing.templates import OUTPUTS, REFUSED, TEMPLATES
from tests.workers.parsing.test_goldens import OFFERED, meaning
from workers.parsing import ParseContext, bind, load_format, parse
from workers.parsing.patterns import Capture, Part, read_pattern

CASES = [(name, text, events) for name, outputs in OUTPUTS.items() for text, events in outputs]
LAWS = [
    laws.test_any_split_and_any_restore_gives_the_same_events,
    laws.test_text_without_markup_is_not_touched,
    laws.test_no_word_for_the_reader_is_lost,
    laws.test_the_state_does_not_grow_with_the_output,
    laws.test_malformed_and_unfinished_markup_never_ends_as_a_call,
]


@pytest.mark.parametrize(("name", "text", "events"), CASES)
def test_outputs_of_published_templates(name: str, text: str, events: list[Any]) -> None:
    parser = bind(load_format("hf", "hf", TEMPLATES[name]), {})
    calls = any(event[0] == "call" for event in events)
    for mode in ("complete", "stream"):
        context = ParseContext(tools=OFFERED, tool_arguments=mode)
        for pieces in ([text], list(text)):
            got, reason = parse(parser, context, (), pieces, "stop")
            assert (meaning(got), reason) == (events, "tool_calls" if calls else "stop")
            streamed = laws.streamed(parser, context, [[piece] for piece in pieces], "stop")
            assert (meaning(streamed[0]), streamed[1]) == (meaning(got), reason)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("test_"))
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_laws_hold(name: str, law: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "_format", lambda pair: load_format("hf", "hf", TEMPLATES[name]))
    law((name, name))


@pytest.mark.parametrize("name", TEMPLATES)
def test_without_a_parser_reasoning_and_calls_are_text(name: str) -> None:
    context = ParseContext(tools=OFFERED)
    for text, events in OUTPUTS[name]:
        got, _ = parse(bind(load_format("beam", None, TEMPLATES[name]), {}), context, (), [text], "stop")
        expected = ["text" if kind == "reasoning" else kind for kind, *_ in events]
        kinds = [kind for kind, *_ in meaning(got)]
        assert [kind for kind in kinds if kind == "call"] == [kind for kind in expected if kind == "call"]
        assert "reasoning" not in kinds
        got, reason = parse(bind(load_format(None, "beam", TEMPLATES[name]), {}), context, (), [text], "stop")
        assert "call" not in [kind for kind, *_ in meaning(got)]
        assert reason == "stop"


@pytest.mark.parametrize(
    ("name", "golden", "tokenizer"),
    [("qwen3", "hermes", "qwen3"), ("qwen3-coder", "qwen3_coder", "qwen3.5"), ("qwen3.5", "qwen3_coder", "qwen3.5"),
     ("gpt-oss", "openai", "gpt-oss")],
)  # fmt: skip
def test_a_template_reads_what_the_familys_own_format_reads(name: str, golden: str, tokenizer: str) -> None:
    recorded = tokens.load(golden, "tools", tokenizer)
    parser = bind(load_format("hf", "hf", TEMPLATES[name]), {text: t.token_id for text, t in recorded.added.items()})
    cases = json.loads((tokens.HERE / golden / "tools.json").read_text(encoding="utf-8"))["cases"]
    compared = 0
    for case in cases:
        if case["case"] not in recorded.cases or case["case"].startswith(("malformed", "truncated")):
            continue
        chunks = recorded.pieces(case)
        request = case.get("context", {})
        given = {"tools": OFFERED, "skip_special_tokens": request.get("tool_choice") != "none", **request}
        for pieces in (chunks, [[piece for chunk in chunks for piece in chunk]]):
            context = ParseContext.from_json({"tool_arguments": "complete", **given})
            events, reason = laws.streamed(parser, context, pieces, case["finish_reason"])
            calls = [event for event in meaning(events) if event[0] == "call"]
            assert calls == [event for event in case["events"] if event[0] == "call"], case["case"]
            assert reason == case["reason"], case["case"]
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize(("template", "says"), REFUSED)
def test_a_template_that_a_table_cannot_express_is_refused(template: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_format("hf", "hf", template)


def test_white_space_at_a_delimiters_end_is_framing() -> None:
    template = {**TEMPLATES["qwen3"], "fields": {**TEMPLATES["qwen3"]["fields"]}}
    template["fields"]["tool_calls"] = {"open_pattern": r"<c>\s*", "close_pattern": r"\s*</c>\s*", "content": "json"}
    text = 'Hi<c>\n{"name": "ping", "arguments": {}}\n</c>\n'
    for pieces in ([text], list(text)):
        events, _ = parse(bind(load_format("hf", "hf", template), {}), ParseContext(tools=OFFERED), (), pieces, "stop")
        assert meaning(events) == [["text", "Hi"], ["call", "ping", {}]]


def test_a_prompt_that_opened_thinking_leaves_the_output_in_it() -> None:
    parser = bind(load_format("hf", "hf", TEMPLATES["gemma4"]), {"<|channel>": 1, "<channel|>": 2, "<|turn>": 3})
    for prompt, kind in (((3, 9, 1, 9), "reasoning"), ((3, 9, 1, 9, 2), "text"), ((1, 2, 3, 9), "text")):
        events, _ = parse(parser, ParseContext(), prompt, ["hm"], "stop")
        assert meaning(events) == [[kind, "hm"]]


@pytest.mark.parametrize(
    ("pattern", "alternatives"),
    [
        ("a|bc", [("bc",), ("a",)]),
        (r"\n?</r>", [("\n</r>",), ("</r>",)]),
        (r"(?:^|<t>\s*)", [("<t>", Part.SPACE), (Part.START,)]),
        (r"<f=(?P<name>[^>\n]+)>", [("<f=", Capture("name"), ">")]),
        (r"(?:<a>)?[^<]*<b>", [("<a>", Part.ANY, "<b>"), (Part.ANY, "<b>")]),
        (r"\[x\]\|", [("[x]|",)]),
    ],
)
def test_patterns_are_alternatives_of_steps(pattern: str, alternatives: list[Any]) -> None:
    assert read_pattern(pattern) == alternatives


@pytest.mark.parametrize("pattern", ["a+", "(a)", "(?=a)b", r"\d", "a{2}", "(?:a", "(?P<n>ab)", "a)", "$"])
def test_an_unsupported_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        read_pattern(pattern)
