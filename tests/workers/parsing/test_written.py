"""What models write besides what their templates show: elements without an end, tokens in values, noise, lists cut off.

Every output is read whole and in every chunking, with its markers as tokens and as text, with calls streamed and
complete, and with the state restored at every boundary.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tasks.protocol.events import CallEnd, CallStart, ParseEvent
from tests.workers.parsing.test_goldens import OFFERED, meaning
from workers.parsing import ParseContext, Parser, ParserState, bind, finish, load_format, merge, parse, start, step
from workers.parsing.registry import REASONING, TOOLS
from workers.text.pieces import AddedToken, Piece

_TOKEN = re.compile(
    r"<\|[^<>\s\"'=]+\|>|</?[^<>\s\"'=]+>|\[/?[A-Z_]+\]|｜DSML｜|\]<\]minimax\[>\[|<\|\"\|>|<\|\w+>|<\w+\|>"
)
_FOREIGN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<pad>", "[INST]", "<|fim_prefix|>", "<start_of_turn>")
"""Tokens that are no markers of the format that meets them."""


def tokens_of(tools: str | None, reasoning: str | None = None) -> dict[str, AddedToken]:
    """Tokens for all markers that look like tokens, and for parts of others that do; and foreign special tokens."""
    table = load_format(tools, reasoning)
    texts = {found for literal in table.markers.values() for found in _TOKEN.findall(literal)}
    texts |= {'<|"|>', "<escape>"} if tools in ("gemma4", "functiongemma") else set()
    # Names in tags are no tokens.
    texts = {
        text
        for text in texts
        if not text.startswith(("<parameter", "</parameter", "<function", "</function", "</param"))
    }
    every = [*sorted(texts), *(text for text in _FOREIGN if text not in texts)]
    return {text: AddedToken(100 + at, text, at % 2 == 0 or text in _FOREIGN) for at, text in enumerate(every)}


def pieces_of(text: str, tokens: dict[str, AddedToken]) -> list[Piece]:
    """The text with its tokens as such; ⟨…⟩ encloses text that is spelled with ordinary tokens."""
    out: list[Piece] = []
    for at, part in enumerate(re.split("[⟨⟩]", text)):
        if at % 2 or not tokens:
            found = [part]
        else:
            found = re.split("(" + "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) + ")", part)
        for one in found:
            if one in tokens and not at % 2:
                out.append(tokens[one])
            elif one and out and isinstance(out[-1], str):
                out[-1] += one
            elif one:
                out.append(one)
    return out


def splits(pieces: Sequence[Piece], rng: random.Random) -> Iterator[list[list[Piece]]]:
    """One character a chunk; one piece a chunk; and chunks of any size."""
    small = [part for piece in pieces for part in (piece if isinstance(piece, str) else [piece])]
    yield [[part] for part in small]
    yield [[piece] for piece in pieces]
    for _ in range(2):
        cuts = sorted({0, len(small), *(rng.randint(0, len(small)) for _ in range(rng.randint(1, 9)))})
        yield [joined(small[a:b]) for a, b in pairwise(cuts)]


def joined(parts: Sequence[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        else:
            out.append(part)
    return out


def read(parser: Parser, pieces: Sequence[Piece], reason: str = "stop", **given: Any) -> list[list[Any]]:
    """What an output means, after all chunkings and both ways of giving arguments have said the same."""
    rng = random.Random(f"{pieces}")
    meant: list[list[list[Any]]] = []
    for mode in ("complete", "stream"):
        context = ParseContext.from_json({"tools": OFFERED, "tool_arguments": mode, **given})
        want = parse(parser, context, [], pieces, reason)
        base = len(json.dumps(start(parser, context, []).dump()))
        length = sum(len(piece) if isinstance(piece, str) else len(piece.text) for piece in pieces)
        for chunks in splits(pieces, rng):
            saved = json.dumps(start(parser, context, []).dump())
            events: list[ParseEvent] = []
            for chunk in chunks:
                state, more = step(parser, ParserState.load(json.loads(saved)), chunk)
                saved = json.dumps(state.dump(), ensure_ascii=False)
                events += more
                assert len(saved) < base + 400 + 2 * min(length, 1024)
            rest, finished = finish(parser, ParserState.load(json.loads(saved)), reason)
            assert (merge([*events, *rest]), finished) == want, chunks
        if mode == "complete":
            assert sum(isinstance(e, CallStart) for e in want[0]) == sum(isinstance(e, CallEnd) for e in want[0])
        meant.append(meaning(want[0]))
    calls = [[event for event in events if event[0] == "call"] for events in meant]
    assert calls[0] == calls[1]
    return meant[0]


def check(name: str, text: str, expected: list[list[Any]], reasoning: str | None = None, **given: Any) -> None:
    """With the markers as text, where nothing says which text is no marker, and as tokens."""
    for tokens in ({}, tokens_of(name, reasoning)) if "⟨" not in text else (tokens_of(name, reasoning),):
        parser = bind(load_format(name, reasoning), {text: token.token_id for text, token in tokens.items()})
        got = read(parser, pieces_of(text, tokens), **given)
        assert [event[:3] for event in got] == expected, (bool(tokens), text)


@dataclass(frozen=True)
class Elements:
    """How a family writes calls as elements. name, key: what opens a call or an argument, and what ends that."""

    opens: str
    name: tuple[str, str]
    key: tuple[str, str]
    value: str
    call: str
    closes: str
    empty_name: tuple[str, ...] = ()
    """What ends the opening of a call that closes itself."""
    empty_key: tuple[str, ...] = ()
    line: str = "\n"

    def begin(self, name: str) -> str:
        return self.name[0] + name + self.name[1]

    def argument(self, key: str, value: object, *, closed: bool = True) -> str:
        return f"{self.key[0]}{key}{self.key[1]}{value}{self.value if closed else ''}"


_FUNCTION = ("<function=", ">"), ("<parameter=", ">"), "</parameter>", "</function>"
_SLASHES = ("/>", " />")
_QUOTED = ('"/>', '" />')


def _functions(opens: str, closes: str) -> Elements:
    return Elements(f"{opens}\n", *_FUNCTION, f"\n{closes}", _SLASHES, _SLASHES)


def _invokes(opens: str, closes: str, prefix: str = "", attribute: str = "") -> Elements:
    ends = tuple(f'"{attribute}{end[1:]}' for end in _QUOTED)
    return Elements(
        f"{opens}\n", (f'<{prefix}invoke name="', '">'), (f'<{prefix}parameter name="', f'"{attribute}>'),
        f"</{prefix}parameter>", f"</{prefix}invoke>", f"\n{closes}", _QUOTED, ends,
    )  # fmt: skip


def _arg_keys(tag: str = "{}", section: str = "", separator: str = "") -> Elements:
    def el(text: str) -> str:
        return f"<{tag.format(text)}>"

    wrap = (el(section), el(f"/{section}").replace("<ifm|/", "</ifm|")) if section else ("", "")
    shut = {text: el(text).replace("<", "</") for text in ("tool_call", "arg_key", "arg_value")}
    return Elements(
        wrap[0], (el("tool_call"), separator), (el("arg_key"), shut["arg_key"] + el("arg_value")), shut["arg_value"],
        shut["tool_call"], wrap[1], (), tuple(shut["arg_key"] + el("arg_value")[:-1] + end for end in _SLASHES),
    )  # fmt: skip


_NS = "]<]minimax[>["
ELEMENTS: dict[str, Elements] = {
    **dict.fromkeys(("qwen3_coder", "qwen3_xml", "step3p5", "step5", "mimo"), _functions("<tool_call>", "</tool_call>")),
    "seed_oss": _functions("<seed:tool_call>", "</seed:tool_call>"),
    "minimax_m2": _invokes("<minimax:tool_call>", "</minimax:tool_call>"),
    "dots": _invokes("<dots_function_call>", "</dots_function_call>"),
    "deepseek_v32": _invokes("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜"),
    "deepseek_v4": _invokes("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜"),
    "deepseek_v41": _invokes("<｜DSML｜ calls>", "</｜DSML｜ calls>", "｜DSML｜ "),
    "step3": Elements(
        "<｜tool_calls_begin｜>", ('<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="', '">'),
        ('<steptml:parameter name="', '">'), "</steptml:parameter>", "</steptml:invoke><｜tool_call_end｜>",
        "<｜tool_calls_end｜>", _QUOTED, _QUOTED,
    ),
    **dict.fromkeys(("muse", "muse_glimmer", "musespark1x"), Elements(
        " to=get_weather<|message|><atem:function_calls>\n", ('<atem:invoke name="', '">'),
        ('<atem:parameter name="', '">'), "</atem:parameter>", "</atem:invoke>", "\n</atem:function_calls><|eom|>",
        _QUOTED, _QUOTED,
    )),
    "minicpm5": Elements("", ('<function name="', '">'), ('<param name="', '">'), "</param>", "</function>", "", _QUOTED,
                         _QUOTED),
    "kimi_k3": Elements(
        "<|open|>tools<|sep|>", ('<|open|>call tool="', '" index="1"<|sep|>'),
        ('<|open|>argument key="', '" type="string"<|sep|>'), "<|close|>argument<|sep|>", "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    **dict.fromkeys(("glm45", "glm47", "ling3", "poolside_v1"), _arg_keys()),
    **dict.fromkeys(("hy_v3", "hy_v4"), _arg_keys(section="tool_calls", separator="<tool_sep>")),
    "k2_horizon": _arg_keys("ifm|{}", section="tool_calls"),
}  # fmt: skip


def city(name: str, value: str = "Oslo") -> dict[str, Any]:
    return {"city": value}


def call(name: str, **arguments: Any) -> list[Any]:
    return ["call", name, arguments]


def days(name: str, number: int) -> object:
    """An integer as the family writes it in these tests: Kimi K3's are declared to be strings."""
    return str(number) if name == "kimi_k3" else number


# ---- elements that close themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, family in ELEMENTS.items() if family.empty_key])
def test_an_argument_that_closes_itself_is_empty(name: str) -> None:
    family = ELEMENTS[name]
    for end in family.empty_key:
        empty = f"{family.key[0]}city{end}"
        for text, expected in (
            (empty, {"city": ""}),
            (empty + family.argument("days", 3), {"city": "", "days": 3}),
            (family.argument("days", 3) + "\n" + empty, {"days": 3, "city": ""}),
            (empty + f"\n{family.key[0]}zip{end}", {"city": "", "zip": ""}),
        ):
            output = family.opens + family.begin("get_weather") + text + family.call + family.closes
            check(name, output, [call("get_weather", **expected)])


@pytest.mark.parametrize("name", [name for name, family in ELEMENTS.items() if family.empty_name])
def test_a_call_that_closes_itself_has_no_arguments(name: str) -> None:
    family = ELEMENTS[name]
    after = "<｜tool_call_end｜>" if name == "step3" else ""
    for end in family.empty_name:
        empty = f"{family.name[0]}ping{end}{after}"
        full = family.begin("get_weather") + family.argument("city", "Oslo") + family.call
        check(name, family.opens + empty + family.closes, [call("ping")])
        check(
            name, family.opens + empty + "\n" + full + family.closes, [call("ping"), call("get_weather", city="Oslo")]
        )
        check(
            name, family.opens + full + "\n" + empty + family.closes, [call("get_weather", city="Oslo"), call("ping")]
        )


def test_nested_elements_close_themselves() -> None:
    def output(body: str) -> str:
        return f'N<tool_call>\nN<invoke name="get_weather">{body}N</invoke>\nN</tool_call>'.replace("N", _NS)

    for text, expected in (
        ("N<city/>", {"city": ""}), ("N<city />N<days>3N</days>", {"city": "", "days": 3}),
        ("N<tags/>", {"tags": []}), ("N<where/>", {"where": {}}), ("N<tags>N<item/>N<item>aN</item>N</tags>", {"tags": ["", "a"]}),
    ):  # fmt: skip
        check("minimax_m3", output(text), [call("get_weather", **expected)])
    for end in ('"/>', '" />', "'/>"):
        opened = end[0].join(("invoke name=", "ping"))
        check("minimax_m3", f"N<tool_call>N<{opened}{end}N</tool_call>".replace("N", _NS), [call("ping")])


# ---- elements that lack their end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ELEMENTS)
def test_an_argument_ends_where_the_next_one_begins(name: str) -> None:
    family = ELEMENTS[name]
    opening = family.opens + family.begin("get_weather")
    three = days(name, 3)
    for between in ("", family.line if name in ("qwen3_coder", "seed_oss", "step3") else ""):
        cut = family.argument("city", "Oslo", closed=False) + between
        output = opening + cut + family.argument("days", 3) + family.call + family.closes
        check(name, output, [call("get_weather", city="Oslo", days=three)])
        output = (
            opening
            + cut
            + family.argument("days", 3, closed=False)
            + between
            + family.argument("zip", "9")
            + family.call
        )
        check(name, output + family.closes, [call("get_weather", city="Oslo", days=three, zip="9")])


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_last_argument_ends_where_its_call_ends(name: str) -> None:
    family = ELEMENTS[name]
    for written, expected in (("Oslo", "Oslo"), ("3 < 4", "3 < 4"), ("a </b> c", "a </b> c")):
        cut = family.opens + family.begin("get_weather") + family.argument("city", written, closed=False)
        meant = [call("get_weather", city=expected)]
        check(name, cut + family.call + family.closes, meant)
        check(name, cut + family.call, meant)
        second = family.begin("ping") + family.call
        check(name, cut + family.call + second + family.closes, [*meant, call("ping")])
        if family.closes and not name.startswith("muse"):
            check(name, cut + family.call + family.closes + "\nDone.", [*meant, ["text", "\nDone."]])


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_call_ends_where_the_next_one_begins_and_with_its_section(name: str) -> None:
    family = ELEMENTS[name]
    cut = family.begin("get_weather") + family.argument("city", "Oslo")
    meant = [call("get_weather", city="Oslo"), call("ping")]
    for between in ("", "\n"):
        check(name, family.opens + cut + between + family.begin("ping") + family.call + family.closes, meant)
    if family.closes and name not in ("glm45", "glm47", "ling3", "poolside_v1"):
        check(name, family.opens + cut + family.closes, meant[:1])


@pytest.mark.parametrize("name", ["qwen3_coder", "mimo", "seed_oss", "minimax_m2", "dots", "deepseek_v32", "minicpm5"])
def test_a_call_on_a_line_of_its_own_ends_an_open_argument(name: str) -> None:
    family = ELEMENTS[name]
    cut = family.opens + family.begin("get_weather") + family.argument("city", "Oslo", closed=False)
    second = family.begin("ping") + family.call + family.closes
    check(name, f"{cut}\n{second}", [call("get_weather", city="Oslo"), call("ping")])


@pytest.mark.parametrize("name", ELEMENTS)
def test_what_may_end_an_argument_is_data_if_the_argument_goes_on(name: str) -> None:
    family = ELEMENTS[name]
    ends = (
        [family.call, family.closes.strip()] if name not in ("muse", "muse_glimmer", "musespark1x") else [family.call]
    )
    if name == "step3":
        ends = ["</steptml:invoke>", "<｜tool_call_end｜>"]
    if name == "kimi_k3" or name.startswith("deepseek"):
        ends = [family.call]
    for end in filter(None, ends):
        for value in (f"a {end} b", f"{end}\n b", f"a {end}{end} b", f"a\n{end} \n"):
            if value.endswith("\n"):
                value += "c"
            output = (
                family.opens
                + family.begin("get_weather")
                + family.argument("city", value)
                + family.call
                + family.closes
            )
            check(name, output, [call("get_weather", city=value)])


def test_a_key_ends_where_its_value_begins() -> None:
    for name in ("glm45", "hy_v4"):
        family = ELEMENTS[name]
        opening = family.opens + family.begin("get_weather")
        for pair in ("<arg_key>city<arg_value>Oslo</arg_value>", "<arg_key>zip</arg_key><arg_key>city<arg_value>Oslo"):
            check(name, opening + pair + family.call + family.closes, [call("get_weather", city="Oslo")])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("N<city>OsloN<days>3N</days>", {"city": "Oslo", "days": 3}),
        ("N<city>Oslo\n", {"city": "Oslo"}),
        ("N<days>3N</days>N<city>Oslo", {"days": 3, "city": "Oslo"}),
        ("N<where>N<lat>1.5N<names>N<item>aN<item>bN</names>N</where>", {"where": {"lat": 1.5, "names": ["a", "b"]}}),
        ("N<tags>N<item>aN<item>bN</tags>N<city>x", {"tags": ["a", "b"], "city": "x"}),
        ("N<where>N<lat>1.5N</lat>", {"where": {"lat": 1.5}}),
    ],
)
def test_nested_elements_end_where_their_parent_ends_or_the_next_one_begins(
    body: str, expected: dict[str, Any]
) -> None:
    text = f'N<tool_call>\nN<invoke name="get_weather">{body}N</invoke>\nN</tool_call>'.replace("N", _NS)
    check("minimax_m3", text, [call("get_weather", **expected)])


# ---- text spelled like a marker, and tokens in values -------------------------------------------------------------------

_Q = '<|"|>'
_PLAMO3 = (
    (
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>get_weather"
        '<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{"city": "'
    ),
    '"}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>',
)
VALUES: dict[str, tuple[str, str]] = {
    **{name: (family.opens + family.begin("get_weather") + family.key[0] + "city" + family.key[1],
              family.value + family.call + family.closes) for name, family in ELEMENTS.items()},
    "minimax_m3": (f'{_NS}<tool_call>{_NS}<invoke name="get_weather">{_NS}<city>',
                   f"{_NS}</city>{_NS}</invoke>{_NS}</tool_call>"),
    **dict.fromkeys(("hermes", "qwen3_json", "granite4", "ernie45"),
                    ('<tool_call>{"name": "get_weather", "arguments": {"city": "', '"}}</tool_call>')),
    "longcat": ('<longcat_tool_call>{"name": "get_weather", "arguments": {"city": "', '"}}</longcat_tool_call>'),
    "granite": ('<|tool_call|>[{"name": "get_weather", "arguments": {"city": "', '"}}]'),
    "granite-20b-fc": ('<function_call> {"name": "get_weather", "arguments": {"city": "', '"}}'),
    **dict.fromkeys(("jamba", "hunyuan_a13b"),
                    ('<tool_calls>[{"name": "get_weather", "arguments": {"city": "', '"}}]</tool_calls>')),
    "internlm": ('<|action_start|><|plugin|>{"name": "get_weather", "parameters": {"city": "', '"}}<|action_end|>'),
    "gigachat3": ('<|function_call|>{"name": "get_weather", "arguments": {"city": "', '"}}'),
    "phi4_mini_json": ('functools[{"name": "get_weather", "arguments": {"city": "', '"}}]'),
    **dict.fromkeys(("cohere_command3", "cohere_command4"),
                    ('<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "', '"}}]<|END_ACTION|>')),
    "apertus": ('<|tools_prefix|>[{"get_weather": {"city": "', '"}}]<|tools_suffix|>'),
    "inkling": ('<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "', '"}}<|end_message|>'),
    "mistral": ('[TOOL_CALLS]get_weather[ARGS]{"city": "', '"}'),
    "deepseek_v3": ('<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "',
                    '"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    "deepseek_v31": ('<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "',
                     '"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    "kimi_k2": ('<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "',
                '"}<|tool_call_end|><|tool_calls_section_end|>'),
    "plamo3": _PLAMO3,
    "openai": ('<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "', '"}<|call|>'),
    "llama3_json": ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "', '"}}'),
    "xlam": ('[{"name": "get_weather", "arguments": {"city": "', '"}}]'),
    "pythonic": ('[get_weather(city="', '")]'),
    "llama4_pythonic": ('<|python_start|>[get_weather(city="', '")]<|python_end|>'),
    "lfm2": ('<|tool_call_start|>[get_weather(city="', '")]<|tool_call_end|>'),
    "olmo3": ('<function_calls>get_weather(city="', '")</function_calls>'),
    "functiongemma": ("<start_function_call>call:get_weather{city:<escape>", "<escape>}<end_function_call>"),
    "gemma4": (f"<|tool_call>call:get_weather{{city:{_Q}", f"{_Q}}}<tool_call|>"),
}  # fmt: skip
"""A call up to its string argument, and the rest of it."""

assert {where for name, where in TOOLS.items() if name not in VALUES} <= {TOOLS[name] for name in VALUES}


@pytest.mark.parametrize("name", VALUES)
def test_text_spelled_like_a_marker_is_data_in_an_argument(name: str) -> None:
    """All markers that are tokens, or consist of them, spelled with ordinary tokens."""
    table, tokens = load_format(name, None), tokens_of(name)
    before, after = VALUES[name]
    spelled = [text for text in sorted(set(table.markers.values())) if any(token in text for token in tokens)]
    spelled += [text for text in (_Q, "<escape>", *_FOREIGN) if text in tokens]
    as_json = name in TOOLS and '"city": "' in before
    for literal in spelled:
        if '"' in literal and (as_json or "python" in name):
            continue
        for value in (literal, f"a {literal} b", f"{literal}{literal}\nx"):
            if name in ("step3", "minicpm5") or "\n" in literal:
                value = f"a{value}b"
            written = json.dumps(value, ensure_ascii=False)[1:-1] if as_json or "python" in name else value
            if name in ("pythonic", "lfm2", "olmo3", "llama4_pythonic"):
                written = value.replace("\\", "\\\\").replace("\n", "\\n")
            check(name, f"{before}⟨{written}⟩{after}", [call("get_weather", city=value)])


@pytest.mark.parametrize("name", VALUES)
def test_the_text_of_a_special_token_in_an_argument_belongs_to_it(name: str) -> None:
    before, after = VALUES[name]
    tokens = tokens_of(name)
    parser = bind(load_format(name, None), {text: token.token_id for text, token in tokens.items()})
    for foreign in [text for text in _FOREIGN if not any(text in part for part in VALUES[name])]:
        for value in (foreign, f"a{foreign}b", f"{foreign} {foreign}", f"a {foreign}"):
            for shown in (True, False):
                got = read(parser, pieces_of(before + value + after, tokens), skip_special_tokens=shown)
                assert [event[:3] for event in got] == [call("get_weather", city=value)], (value, shown)


_REOPENS = (
    "qwen3_coder", "qwen3_xml", "step3p5", "step5", "mimo", "seed_oss", "minicpm5", "hermes", "qwen3_json",
    "granite4", "ernie45", "longcat", "jamba", "hunyuan_a13b", "internlm", "gigachat3", "cohere_command3",
    "cohere_command4", "apertus", "mistral", "llama4_pythonic", "lfm2", "olmo3", "functiongemma", "gemma4",
)  # fmt: skip
"""Families whose next call may begin where the close of the one before it is expected."""


@pytest.mark.parametrize("name", _REOPENS)
@pytest.mark.parametrize("between", ["", "\n"])
def test_a_complete_call_needs_no_close_before_the_next_one(name: str, between: str) -> None:
    before, after = VALUES[name]
    closes = [text for text in load_format(name, None).markers.values() if after.endswith(text)]
    unclosed = after.removesuffix(max(closes, key=len)) if closes else after
    calls = [call("get_weather", city=city) for city in ("Oslo", "Rome", "Bern")]
    text = between.join((f"{before}Oslo{unclosed}", f"{before}Rome{unclosed}", f"{before}Bern{after}"))
    check(name, text, calls)


@pytest.mark.parametrize("name", [name for name in VALUES if "<tool_call>" not in VALUES[name][0]])
def test_a_special_token_after_a_call_stays_hidden(name: str) -> None:
    tokens = tokens_of(name)
    parser = bind(load_format(name, None), {text: token.token_id for text, token in tokens.items()})
    got = read(parser, pieces_of("".join(VALUES[name]) + "<|im_end|>", tokens))
    assert [event[:3] for event in got] == [call("get_weather", city=got[0][2]["city"])]


@pytest.mark.parametrize("name", [name for name in REASONING if load_format(None, name).markers and name != "granite"])
def test_text_spelled_like_a_marker_is_data_in_reasoning(name: str) -> None:
    table, tokens = load_format(None, name), tokens_of(None, name)
    where = {"muse": " to=self<|message|>", "openai": "<|channel|>analysis<|message|>", "gemma4": "<|channel>thought\n"}
    opening = next((text for key, text in where.items() if name.startswith(key)), "")
    if not opening:
        opening = table.markers["THINK" if "THINK" in table.markers else "THINK0"]
    parser = bind(table, {text: token.token_id for text, token in tokens.items()})
    context: dict[str, Any] = {
        "template_arguments": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
        "tools": (),
    }
    for literal in sorted(set(table.markers.values())):
        if not any(token in literal for token in tokens):
            continue
        for text in (f"a {literal} b", f"{literal}{literal}."):
            got = read(parser, pieces_of(f"{opening}⟨{text}⟩", tokens), **context)
            assert got == [["reasoning", text]], (literal, got)


# ---- noise after a section's opening ----------------------------------------------------------------------------------

SECTIONS: dict[str, tuple[str, str, str]] = {
    **{name: (family.opens.strip(), family.begin("get_weather") + family.argument("city", "Oslo") + family.call,
              family.closes) for name, family in ELEMENTS.items() if family.opens},
    **{name: (VALUES[name][0].split(start)[0], start + VALUES[name][0].split(start, 1)[1] + "Oslo" + VALUES[name][1].split(end)[0],
              end) for name, start, end in (
        ("deepseek_v3", "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"),
        ("kimi_k2", "<|tool_call_begin|>", "<|tool_calls_section_end|>"),
        ("plamo3", "<|plamo:begin_tool_request:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
        ("minimax_m3", f"{_NS}<invoke", f"{_NS}</tool_call>"),
    )},
}  # fmt: skip
"""A section's opening, a call in it, and its end."""
NOISE = (
    "\n\n",
    " ",
    ",",
    " assistant\n",
    "Let me call the tools:\n",
    "spurious text or tokens",
    "[",
    '{"x": 1}',
    "<",
    "\n- ",
)


@pytest.mark.parametrize("name", SECTIONS)
def test_noise_between_a_sections_opening_and_its_first_call_is_dropped(name: str) -> None:
    opens, one, closes = SECTIONS[name]
    for noise in NOISE:
        check(name, f"{opens}{noise}{one}{closes}", [call("get_weather", city="Oslo")])
    if name.startswith("muse"):
        return
    text = [["text", "Let me look. "], call("get_weather", city="Oslo"), ["text", " Done."]]
    check(name, f"Let me look. {opens} assistant {one}{closes} Done.", text)


@pytest.mark.parametrize("name", [name for name in SECTIONS if not name.startswith("muse")])
def test_noise_that_no_call_follows_is_text(name: str) -> None:
    opens, _, closes = SECTIONS[name]
    if closes:
        check(name, f"{opens}none{closes}Done.", [["text", f"{opens}none{closes}Done."]])
    for noise in (" and on.", " x" * 1000):
        check(name, f"{opens}{noise}", [["text", f"{opens}{noise}"]])


# ---- call lists that are cut ------------------------------------------------------------------------------------------

LISTS: dict[str, tuple[str, str, str, str]] = {
    **{name: (VALUES[name][0].split("[{")[0] + "[", "{" + VALUES[name][0].split("[{")[1] + "Oslo" + VALUES[name][1].split("]")[0],
              "{" + VALUES[name][0].split("[{")[1] + "Oslo", "]" + VALUES[name][1].split("]", 1)[1])
       for name in ("granite", "jamba", "hunyuan_a13b", "phi4_mini_json", "cohere_command3", "cohere_command4", "apertus", "xlam")},
    "mistral": ("[TOOL_CALLS][", '{"name": "get_weather", "arguments": {"city": "Oslo"}}', '{"name": "get_wea', "]"),
    **{name: (VALUES[name][0].split("get_")[0], 'get_weather(city="Oslo")', 'get_weather(city="Os', VALUES[name][1][2:])
       for name in ("pythonic", "llama4_pythonic", "lfm2")},
}  # fmt: skip
"""What opens a call list, a call in it, the same cut, and what closes the list."""


@pytest.mark.parametrize("name", LISTS)
def test_a_call_list_that_is_cut_is_no_call(name: str) -> None:
    opens, one, cut, closes = LISTS[name]
    meant = call("get_weather", city="Oslo")
    check(name, opens + one + closes, [meant])
    for text in (one, one + " ", one + "\n", cut):
        check(name, opens + text, [["text", opens + text]])
        check(name, opens + text, [], reason="length")
    check(name, f"{opens}{one}, {cut}", [meant, ["text", f" {cut}"]])
    check(name, f"{opens}{one}, {one}", [meant, ["text", f" {one}"]])
    check(name, f"{opens}{one}, {one}, {cut}", [meant, meant, ["text", f" {cut}"]])
    check(name, f"{opens}{one}, {one}", [meant], reason="length")


@pytest.mark.parametrize("name", ["jamba", "hunyuan_a13b", "cohere_command3", "apertus", "lfm2", "llama4_pythonic"])
def test_a_call_list_without_its_bracket_ends_with_its_section(name: str) -> None:
    opens, one, _, closes = LISTS[name]
    for section in (closes[1:], f"\n{closes[1:]}"):
        check(name, opens + one + section + " Done.", [call("get_weather", city="Oslo"), ["text", " Done."]])


# ---- Harmony's messages -----------------------------------------------------------------------------------------------

_ANALYSIS = "<|channel|>analysis<|message|>{}<|end|>"
_BUILT_IN = (
    "<|channel|>analysis to=python code<|message|>{}<|call|>",
    "<|channel|>analysis to=python <|constrain|>code<|message|>{}<|call|>",
    " to=python<|channel|>analysis code<|message|>{}<|call|>",
    "<|channel|>commentary to=browser.search <|constrain|>json<|message|>{}<|call|>",
    " to=browser.open<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
    "<|channel|>commentary to=container.exec<|message|>{}<|end|>",
)
_NEXT = "<|start|>assistant"
_FINAL = "<|channel|>final<|message|>Hi<|return|>"


@pytest.mark.parametrize("message", _BUILT_IN)
def test_messages_to_built_in_tools_are_lines_of_the_reasoning(message: str) -> None:
    one, two = _ANALYSIS.format("one"), _ANALYSIS.format("two")
    for said in ("print(1)", '{"query": "x"}'):
        for parts, expected in (
            ([one, message.format(said), two], f"one\n{said}\ntwo"),
            ([message.format(said), two], f"{said}\ntwo"),
            ([one, message.format(said)], f"one\n{said}"),
            ([message.format(said), message.format("pass")], f"{said}\npass"),
            ([one, message.format(""), two], "one\ntwo"),
        ):
            check("openai", _NEXT.join([*parts, _FINAL]), [["reasoning", expected], ["text", "Hi"]], "openai_gptoss")


def test_messages_of_reasoning_and_of_the_answer_do_not_run_together() -> None:
    one, two = _ANALYSIS.format("one"), _ANALYSIS.format("two")
    said = "<|channel|>commentary<|message|>Let me look.<|end|>"
    asked = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>"
    for parts, expected in (
        ([one, two, _FINAL], [["reasoning", "one\ntwo"], ["text", "Hi"]]),
        ([one, said, _FINAL], [["reasoning", "one"], ["text", "Let me look.\nHi"]]),
        ([one, asked, two, asked], [["reasoning", "one"], call("ping"), ["reasoning", "\ntwo"], call("ping")]),
        (
            [one, said, two, _FINAL],
            [["reasoning", "one"], ["text", "Let me look."], ["reasoning", "\ntwo"], ["text", "\nHi"]],
        ),
    ):
        check("openai", _NEXT.join(parts), expected, "openai_gptoss")
    hidden = [["text", "Let me look.\nHi"]]
    check("openai", _NEXT.join([one, said, two, _FINAL]), hidden, "openai_gptoss", include_reasoning=False)


def test_without_tools_analysis_stays_reasoning_whatever_its_recipient() -> None:
    for message in _BUILT_IN[:3]:
        text = _NEXT.join([_ANALYSIS.format("one"), message.format("print(1)"), _FINAL])
        check("openai", text, [["reasoning", "one\nprint(1)"], ["text", "Hi"]], "openai_gptoss", tools=())
