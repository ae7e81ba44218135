"""Writes the recorded cases: `python -m tests.golden`.

A case is what a user would see go wrong: the output's text, the request's tools and choice, the engine's finish reason,
and the events it means. Events are `["text", TEXT]`, `["reasoning", TEXT]` and `["call", NAME, ARGUMENTS, ID]`. Beside
them, the token ids of those tokenizers that are installed (`tokens.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden import tokens
from tests.golden.families import REASONING, TOOLS, Call, Reasoning, Tools

HERE = Path(__file__).parent

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "zip": {"type": "string"},
    "exact": {"type": "boolean"},
    "ratio": {"type": "number"},
    "where": {
        "type": "object",
        "properties": {"lat": {"type": "number"}, "names": {"type": "array", "items": {"type": "string"}}},
    },
    "tags": {"type": "array", "items": {"type": "string"}},
}
OFFERED = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in (("get_weather", PROPERTIES), ("ping", {}))
]

OSLO: Call = ("get_weather", {"city": "Oslo"})
PING: Call = ("ping", {})
NESTED: Call = ("get_weather", {"where": {"lat": 59.9, "names": ["Oslo", "Kristiania"]}, "tags": ["a b", "c"]})
TYPED: Call = ("get_weather", {"city": "Oslo", "days": 3, "zip": "3", "exact": True, "ratio": -0.5})
UNICODE: Call = ("get_weather", {"city": "Zürich 東京 🙂👩‍🚀"})
QUOTED: Call = ("get_weather", {"city": "say \"hi\" \\ and 'bye'\n\tnew line"})


def tool_cases(name: str, family: Tools) -> Iterator[dict[str, Any]]:
    def case(what: str, text: str, events: list[Any], reason: str = "stop", **context: Any) -> dict[str, Any]:
        calls = any(event[0] == "call" for event in events)
        return {
            "case": what,
            "text": text,
            "finish_reason": reason,
            "events": events,
            "reason": "tool_calls" if calls and reason == "stop" else reason,
            **({"context": context} if context else {}),
        }

    def meant(*calls: Call) -> list[Any]:
        return [
            ["call", call[0], call[1], *([family.ids(at, call[0])] if family.ids else [])]
            for at, call in enumerate(calls)
        ]

    def good(what: str, *calls: Call) -> dict[str, Any]:
        return case(what, family.write(list(calls)), meant(*calls))

    whole_message = {"openai": ("<|channel|>final<|message|>", "<|return|>")}
    whole_message |= dict.fromkeys(("muse", "muse_glimmer", "musespark1x"), (" to=user<|message|>", "<|eot|>"))
    opens, closes = whole_message.get(name, ("", ""))
    answer = "It is 3 < 4 and sunny, [really] {yes}.\n"
    yield case("plain", opens + answer + closes, [["text", answer]])
    yield good("one call", OSLO)
    yield good("parallel calls", OSLO, PING, UNICODE)
    yield good("nested arguments", NESTED)
    yield good("typed arguments", TYPED)
    yield good("unicode and emoji", UNICODE)
    yield good("quotes, backslashes and line feeds", QUOTED)
    yield good("marker text inside an argument", ("get_weather", {"city": f"a {family.inner} b"}))
    yield good("empty arguments", PING)
    one = family.write([OSLO])
    if family.before:
        yield case("text before a call", "Let me look.\n" + one, [["text", "Let me look.\n"], *meant(OSLO)])
    if family.before and family.after:
        text = "Let me look. " + one + " Done."
        after = [["text", "Let me look. "], *meant(OSLO), ["text", " Done."]]
        yield case("text around a call", text, after)
    elif family.after:
        yield case("text after a call", one + "\nDone.", [*meant(OSLO), ["text", "\nDone."]])
    cut = one.index("Oslo") + 2
    yield case("truncated inside a call", one[:cut], [], "length")
    yield case("truncated after a call", one, meant(OSLO), "length")
    if family.malformed:
        broken = family.malformed + " and on."
        yield case("malformed", broken, [["text", broken]])
    if name == "mistral":
        newer = '[TOOL_CALLS]get_weather{"city": "Oslo"}[TOOL_CALLS]ping{}'
        yield case("two calls as v11 writes them", newer, meant(OSLO, PING))
        newest = '[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}[TOOL_CALLS]ping[ARGS]{}'
        events = meant(OSLO, PING)
        events[0].append("a1b2c3d4e")
        yield case("two calls as v13 writes them", newest, events)
    both = family.write([OSLO, PING])
    yield case("one call allowed", both, meant(OSLO), parallel_tool_calls=False)
    if not opens and name != "inkling":
        yield case("no call allowed", one, [["text", one]], tool_choice="none")


def reasoning_cases(name: str, family: Reasoning) -> Iterator[dict[str, Any]]:
    before, after = family.answer
    on = dict(family.arguments)

    def case(what: str, text: str, events: list[Any], reason: str = "stop", **context: Any) -> dict[str, Any]:
        arguments = {"template_arguments": on} if on else {}
        given = {**arguments, **context}
        out = {"case": what, "text": text, "finish_reason": reason, "events": events, "reason": reason}
        return {**out, "context": given} if given else out

    thought, answer = "The user wants the weather.", "It is 3 < 4 and sunny."
    if not family.opens:
        prologue = "<think>" if name.endswith("append_think") else ""
        texts = [
            thought, answer, f"{thought}</think>{answer}", "é🙂", "<think>", "a\n\nb\n", '{"a": 1}', "  x ", "1 < 2",
            '"quoted" \\', "<tool_call>{}</tool_call>", "x" * 300,
        ]  # fmt: skip
        for at, text in enumerate(texts):
            yield case(f"text {at}", text, [["text", prologue + text]])
        return
    full = family.opens + thought + family.closes + before + answer + after
    meant = [["reasoning", thought], ["text", answer]]
    yield case("reasoning and answer", full, meant)
    if family.prefilled:
        yield case("opened in the prompt", full.removeprefix(family.opens), meant)
    for what, text in (
        ("unicode and emoji", "Zürich 東京 🙂👩‍🚀"),
        ("line feeds", "one\n\n* two\n* three"),
        ("markup in reasoning", '<b>bold</b> {"name": "f"} <tool> [x]'),
        ("quotes and backslashes", 'say "hi" \\ \\n'),
        ("a piece of the marker", f"a {family.closes[:-1]} b"),
    ):
        output = family.opens + text + family.closes + before + answer + after
        yield case(what, output, [["reasoning", text], ["text", answer]])
    output = family.opens + thought + family.closes + before + "Zürich\n\n🙂 <x>" + after
    yield case("unicode in the answer", output, [["reasoning", thought], ["text", "Zürich\n\n🙂 <x>"]])
    yield case("truncated in reasoning", family.opens + thought, [["reasoning", thought]], "length")
    cut = family.opens + thought + family.closes + before + answer[:5]
    yield case("truncated in the answer", cut, [["reasoning", thought], ["text", answer[:5]]], "length")
    yield case("no answer", family.opens + thought + family.closes, [["reasoning", thought]])
    yield case("empty reasoning", family.opens + family.closes + before + answer + after, [["text", answer]])
    yield case("reasoning hidden", full, [["text", answer]], include_reasoning=False)
    spaced = family.opens + thought + " \n" + family.closes + before + answer + after
    kept = thought if family.trims else thought + " \n"
    yield case("white space before the marker", spaced, [["reasoning", kept], ["text", answer]])
    if name == "granite_thinking_parser":
        framed = f"{family.opens}{thought}\n{family.closes}\n\n{answer}\n"
        yield case("line feeds around the marker", framed, [["reasoning", thought], ["text", answer + "\n"]])
    if family.off is not None:
        yield case("reasoning switched off", answer, [["text", answer]], template_arguments=dict(family.off))


def write(name: str, kind: str, origin: str, cases: Iterator[dict[str, Any]]) -> None:
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in cases)
    text = f'{{"origin": {json.dumps(origin)}, "cases": [\n  {lines}\n]}}\n'
    (folder / f"{kind}.json").write_text(text, encoding="utf-8")


def main() -> None:
    for name, tools in TOOLS.items():
        write(name, "tools", tools.origin, tool_cases(name, tools))
    for name, reasoning in REASONING.items():
        write(name, "reasoning", reasoning.origin, reasoning_cases(name, reasoning))
    for name in sorted({name for name, _ in tokens.TOKENIZERS}):
        tokens.write(name)
    (HERE / "offered.json").write_text(json.dumps(OFFERED, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
