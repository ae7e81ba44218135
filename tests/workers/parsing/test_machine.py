"""What the parser guarantees beyond the invariants: prompts, token ids, tool choices, types and finish reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.errors import InvalidState
from tasks.protocol.events import CallArguments, CallEnd, CallStart, Reasoning, Text
from workers.parsing import ParseContext, Parser, ParserState, bind, finish, load_format, parse, start, step
from workers.text.pieces import AddedToken, Piece

QWEN = {
    "<|im_start|>": 1, "<|im_end|>": 2, "<think>": 3, "</think>": 4, "<tool_call>": 5, "</tool_call>": 6,
}  # fmt: skip
TOKENS = {text: AddedToken(token_id, text, text.startswith("<|")) for text, token_id in QWEN.items()}
PROPERTIES = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "n": {"type": "number"},
    "b": {"type": "boolean"},
    "o": {"type": "object"},
    "a": {"type": "array", "items": {"type": "integer"}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "open": {},
}
TOOLS = ({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}}},)


def hermes(added: dict[str, int] | None = None) -> Parser:
    return bind(load_format("hermes", "qwen3"), added or {})


def read(parser: Parser, *pieces: Piece, prompt: tuple[int, ...] = (), reason: str = "stop", **given: Any) -> Any:
    return parse(parser, ParseContext(**{"tools": TOOLS, **given}), prompt, pieces, reason)


@pytest.mark.parametrize(
    ("prompt", "arguments", "reasons"),
    [
        ((1, 2), {}, True),
        ((1, 3), {}, True),
        ((1, 3, 99, 4), {}, False),
        # Markers of an earlier turn do not count.
        ((1, 3, 99, 4, 2, 1, 99), {}, True),
        ((1, 99), {"enable_thinking": False}, False),
        ((1, 99), {"enable_thinking": True}, True),
    ],
)
def test_the_prompt_settles_once_whether_reasoning_is_open(
    prompt: tuple[int, ...], arguments: dict[str, Any], reasons: bool
) -> None:
    context = ParseContext(template_arguments=arguments)
    events, _ = parse(hermes(QWEN), context, prompt, ["It is sunny."], "stop")
    assert events == [Reasoning("It is sunny.") if reasons else Text("It is sunny.")]


def test_where_a_marker_is_a_token_its_text_is_data() -> None:
    parser = hermes(QWEN)
    events, _ = read(parser, "a</think>b", TOKENS["</think>"], "<tool_call>{}</think>")
    assert events[0] == Reasoning("a</think>b")
    assert events[1] == Text("<tool_call>{}</think>")


def test_a_markers_token_inside_a_json_string_is_data_and_elsewhere_ends_the_body() -> None:
    parser, opened = hermes(QWEN), (TOKENS["</think>"], TOKENS["<tool_call>"])
    body = ('{"name": "f", "arguments": {"s": "', TOKENS["</tool_call>"], '"}}', TOKENS["</tool_call>"])
    events, reason = read(parser, *opened, *body)
    assert [e.fragment for e in events if isinstance(e, CallArguments)] == ['{"s": "</tool_call>"}']
    assert reason == "tool_calls"
    events, reason = read(parser, *opened, '{"name": "f", "arguments": {', TOKENS["</tool_call>"], "bye")
    assert not any(isinstance(e, CallEnd) for e in events)
    assert "".join(e.text for e in events if isinstance(e, Text)).endswith("</tool_call>bye")
    assert reason == "stop"


def test_special_tokens_are_hidden_unless_requested() -> None:
    pieces = (TOKENS["</think>"], "Hi", TOKENS["<|im_end|>"])
    assert read(hermes(QWEN), *pieces)[0] == [Text("Hi")]
    assert read(hermes(QWEN), *pieces, skip_special_tokens=False)[0] == [Text("Hi<|im_end|>")]


def test_markers_that_mean_nothing_where_they_stand_are_text() -> None:
    parser = bind(load_format("apertus", None), {"<|tools_prefix|>": 1, "<|tools_suffix|>": 2})
    opens, closes = AddedToken(1, "<|tools_prefix|>", True), AddedToken(2, "<|tools_suffix|>", True)
    assert read(parser, opens, "none", closes, "bye")[0] == [Text("<|tools_prefix|>none<|tools_suffix|>bye")]
    body = ('[{"f": {"s": "', closes, '"}}]')
    events, _ = read(parser, opens, *body, closes)
    assert events == [CallStart(0, "f"), CallArguments(0, '{"s": "<|tools_suffix|>"}'), CallEnd(0)]


CALLS = '</think><tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>'


@pytest.mark.parametrize("given", [{"tool_choice": "none"}, {"tools": ()}])
def test_without_tools_or_with_none_chosen_no_call_is_read(given: dict[str, Any]) -> None:
    assert read(hermes(), CALLS, **given) == ([Text(CALLS.removeprefix("</think>"))], "stop")


def test_the_first_call_only_where_calls_may_not_be_parallel() -> None:
    events, _ = read(hermes(), CALLS, parallel_tool_calls=False)
    assert events == [CallStart(0, "f"), CallArguments(0, "{}"), CallEnd(0)]


def test_reasoning_is_hidden_on_request() -> None:
    assert read(hermes(), "hm</think>Hi", include_reasoning=False)[0] == [Text("Hi")]


@pytest.mark.parametrize(
    ("reason", "given", "expected"),
    [
        ("stop", {}, "tool_calls"),
        ("length", {}, "length"),
        ("abort", {}, "abort"),
        ("stop", {"tool_choice": "required"}, "tool_calls"),
        ("stop", {"tool_choice": {"name": "f"}}, "stop"),
        ("stop", {"tool_choice": "none"}, "stop"),
    ],
)
def test_the_finish_reason_is_the_coupled_servers(reason: str, given: dict[str, Any], expected: str) -> None:
    assert read(hermes(), CALLS, reason=reason, **given)[1] == expected


FORCED = bind(load_format("jamba", "deepseek_r1"), {})


def test_a_required_call_is_read_as_the_list_that_the_engine_is_held_to() -> None:
    text = 'hm</think>[{"name": "f", "parameters": {"i": 1}}, {"name": "g", "parameters": {}}]'
    events, reason = read(FORCED, text, tool_choice="required")
    assert [e.name for e in events if isinstance(e, CallStart)] == ["f", "g"]
    assert [e.fragment for e in events if isinstance(e, CallArguments)] == ['{"i": 1}', "{}"]
    assert (events[0], reason) == (Reasoning("hm"), "tool_calls")


def test_a_named_call_is_read_as_its_arguments() -> None:
    events, reason = read(FORCED, 'hm</think>{"i": 1}', tool_choice={"name": "f"})
    assert events == [Reasoning("hm"), CallStart(0, "f"), CallArguments(0, '{"i": 1}'), CallEnd(0)]
    assert reason == "stop"


def test_an_unconstrained_engine_may_answer_a_forced_call_in_the_familys_own_language() -> None:
    text = 'hm</think><tool_calls>[{"name": "f", "arguments": {"i": 1}}]</tool_calls>'
    for choice in ("required", {"name": "f"}):
        events, _ = read(FORCED, text, tool_choice=choice)
        assert events[1:] == [CallStart(0, "f"), CallArguments(0, '{"i": 1}'), CallEnd(0)]


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("s", "3", "3"), ("s", "\n3\n", "3"), ("s", "\n\n3\n\n", "\n3\n"), ("s", "null", "null"), ("i", "3", 3),
        ("i", "3.5", "3.5"), ("i", "three", "three"), ("n", "3", 3), ("n", "-2.5e3", -2500.0), ("b", "true", True),
        ("b", "False", False), ("o", '{"a": [1, null]}', {"a": [1, None]}), ("o", "{'a': True}", {"a": True}),
        ("a", "[1, 2]", [1, 2]), ("a", "[1, 2", "[1, 2"), ("either", "null", None), ("either", "4", 4),
        ("either", "x", "x"), ("open", "3", "3"), ("unheard", "3", "3"), ("n", "NaN", "NaN"), ("s", '"\\\n é🙂', '"\\\n é🙂'),
    ],
)  # fmt: skip
def test_values_are_typed_by_the_schema(key: str, written: str, value: object) -> None:
    parser = bind(load_format("qwen3_coder", None), {})
    text = f"<tool_call>\n<function=f>\n<parameter={key}>{written}</parameter>\n</function>\n</tool_call>"
    for pieces in ([text], list(text)):
        events, _ = read(parser, *pieces)
        fragments = "".join(e.fragment for e in events if isinstance(e, CallArguments))
        assert json.loads(fragments) == {key: value}


def test_string_arguments_come_as_they_are_written_and_typed_ones_when_they_close() -> None:
    parser = bind(load_format("qwen3_coder", None), {})
    state = start(parser, ParseContext(tools=TOOLS), ())
    state, _ = step(parser, state, ["<tool_call><function=f><parameter=s>"])
    state, events = step(parser, state, ["Os"])
    assert events == [CallArguments(0, "Os")]
    state, _ = step(parser, state, ["lo</parameter><parameter=i>"])
    state, events = step(parser, state, ["12"])
    assert events == []
    state, events = step(parser, state, ["3</parameter>"])
    assert events == [CallArguments(0, "123")]


def test_kimi_counts_its_ids_over_the_conversation_where_it_gives_none() -> None:
    parser = bind(load_format("kimi_k2", None), {})
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )
    assert read(parser, text)[0][0] == CallStart(0, "f", "functions.f:7")


def test_a_call_cut_by_the_length_is_dropped_when_complete_and_open_when_streamed() -> None:
    text = '</think>a<tool_call>{"name": "f", "arguments": {"s": "x'
    assert read(hermes(), text, reason="length", tool_arguments="complete") == ([Text("a")], "length")
    events, reason = read(hermes(), text, reason="length")
    assert events == [Text("a"), CallStart(0, "f"), CallArguments(0, '{"s": "x')]
    assert reason == "length"


def test_raw_control_characters_in_json_become_escapes() -> None:
    events, _ = read(hermes(), '</think><tool_call>{"name": "f", "arguments": {"s": "a\nb"}}</tool_call>')
    assert events[1] == CallArguments(0, '{"s": "a\\nb"}')


CALLED = [CallStart(0, "f"), CallArguments(0, '{"s": "x"}'), CallEnd(0)]


@pytest.mark.parametrize(
    ("tools", "reasoning", "text"),
    [
        (
            "openai",
            "openai_gptoss",
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Hi<|end|>"
                "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
                '{"s": "x"}<|call|>'
            ),
        ),
        (
            "muse",
            "muse",
            (
                " to=self<|message|>hm<|eom|><|start|>assistant to=commentary<|message|>Hi<|eom|><|start|>assistant to=f"
                '<|message|><atem:function_calls><atem:invoke name="f"><atem:parameter name="s">x</atem:parameter>'
                "</atem:invoke></atem:function_calls><|eom|>"
            ),
        ),
        (
            "inkling",
            "inkling",
            (
                "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>Hi<|end_message|><|message_model|>"
                '<|content_invoke_tool_json|>{"name": "f", "args": {"s": "x"}}<|end_message|>'
            ),
        ),
        (
            "kimi_k3",
            "kimi_k3",
            (
                "hm<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|><|open|>tools<|sep|>"
                '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="s" type="string"<|sep|>x'
                "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
            ),
        ),
        (
            "gemma4",
            "gemma4",
            '<|channel>thought\nhm\n<channel|>Hi<|tool_call>call:f{s:<|"|>x<|"|>}<tool_call|>',
        ),
        (
            "deepseek_v4",
            "deepseek_v4",
            (
                'hm</think>Hi<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">x'
                "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
            ),
        ),
        ("mistral", "mistral", '[THINK]hm[/THINK]Hi[TOOL_CALLS]f[ARGS]{"s": "x"}'),
        ("pythonic", "deepseek_r1", 'hm</think>Hi [f(s="x")]'),
        ("pythonic", "deepseek_r1", 'hm</think>[f(s="x")]'),
    ],
)
def test_reasoning_text_and_calls_of_one_answer(tools: str, reasoning: str, text: str) -> None:
    parser = bind(load_format(tools, reasoning), {})
    for pieces in ([text], list(text)):
        events, _ = read(parser, *pieces)
        if "Hi [" in text:
            # An answer that does not begin as a call is text to its end.
            assert events == [Reasoning("hm"), Text('Hi [f(s="x")]')]
        elif "Hi" in text:
            assert events == [Reasoning("hm"), Text("Hi"), *CALLED]
        else:
            assert events == [Reasoning("hm"), *CALLED]


def test_a_markers_token_ends_a_body_that_may_end_there() -> None:
    added = {"<function_calls>": 1, "</function_calls>": 2}
    opens, closes = (AddedToken(at, text, False) for text, at in added.items())
    events, reason = read(bind(load_format("olmo3", None), added), opens, 'f(s="x")', closes, "Hi")
    assert (events, reason) == ([*CALLED, Text("Hi")], "tool_calls")


@pytest.mark.parametrize(("name", "quote"), [("gemma4", '<|"|>'), ("functiongemma", "<escape>")])
def test_a_bodys_own_punctuation_is_not_hidden(name: str, quote: str) -> None:
    table = load_format(name, None)
    opens, closes = (table.markers[key] for key in ("CALL", "/CALL"))
    added = {opens: 1, closes: 2, quote: 3}
    token = {text: AddedToken(token_id, text, True) for text, token_id in added.items()}
    body = ("call:f{s:", token[quote], "3 ", token[closes], token[quote], ",i:3}")
    events, _ = read(bind(table, added), token[opens], *body, token[closes])
    assert events == [CallStart(0, "f"), CallArguments(0, f'{{"s": "3 {closes}", "i": 3}}'), CallEnd(0)]


def test_suffixed_markers_are_the_tokenizers() -> None:
    tags = ("think", "/think", "tool_calls", "/tool_calls", "tool_call", "/tool_call", "arg_key", "/arg_key",
            "arg_value", "/arg_value")  # fmt: skip
    added = {f"<{tag}:1a2b>": at for at, tag in enumerate(tags)}
    parser = bind(load_format("hy_v4", "hy_v4"), {"<image:7>": 99, **added})
    assert parser.suffix == ":1a2b"
    token = {tag: AddedToken(at, f"<{tag}:1a2b>", True) for at, tag in enumerate(tags)}
    pieces: list[Piece] = [
        "hm", token["/think"], token["tool_calls"], token["tool_call"], "f", token["arg_key"], "i", token["/arg_key"],
        token["arg_value"], "3", token["/arg_value"], token["/tool_call"], token["/tool_calls"],
    ]  # fmt: skip
    events, _ = read(parser, *pieces)
    assert events == [Reasoning("hm"), CallStart(0, "f"), CallArguments(0, '{"i": 3}'), CallEnd(0)]


def test_a_state_survives_json_and_one_that_does_not_add_up_is_refused() -> None:
    parser = hermes(QWEN)
    state, _ = step(parser, start(parser, ParseContext(tools=TOOLS), ()), ['</think><tool_call>{"name": "f", "arg'])
    assert ParserState.load(json.loads(json.dumps(state.dump()))) == state
    wrong: list[Any] = [None, [], {}, {"v": 0}, {"v": 1, "mode": 3}, {"v": 1, "colour": "red"}, {"v": 1, "call": "1"}]
    for bad in wrong:
        with pytest.raises(InvalidState):
            ParserState.load(bad)


def test_a_context_survives_json() -> None:
    context = ParseContext(
        tools=TOOLS, tool_choice={"name": "f"}, parallel_tool_calls=False, template_arguments={"enable_thinking": False}
    )
    assert ParseContext.from_json(json.loads(json.dumps(context.to_json()))) == context
    for bad in ({"tool_choice": "perhaps"}, {"tool_arguments": "sometimes"}):
        with pytest.raises(ValueError, match="must be"):
            ParseContext.from_json(bad)


def test_finish_without_any_output() -> None:
    parser = hermes()
    assert finish(parser, start(parser, ParseContext(), ()), "abort") == ([], "abort")


def test_line_feeds_that_frame_the_first_answer_are_markup() -> None:
    parser = bind(load_format("hermes", "granite_thinking_parser"), {})
    text = "hm\n</think>\n\nHi\n\n<tool_call>{}"
    requests: list[dict[str, Any]] = [{}, {"tools": ()}]
    for given in requests:
        for pieces in ([text[:-13]], list(text[:-13])):
            events, _ = read(parser, *pieces, **given)
            assert events == [Reasoning("hm"), Text("Hi\n\n")]
    events, _ = read(parser, "\n\nHi", template_arguments={"enable_thinking": False})
    assert events == [Text("Hi")]
    called = '</think><tool_call>{"name": "f", "arguments": {}}</tool_call>\n\nDone.'
    assert read(parser, called)[0][-1] == Text("\n\nDone.")
