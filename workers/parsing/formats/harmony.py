"""gpt-oss (harmony): messages with a channel and, for calls, a recipient.

    <|channel|>analysis<|message|>The user wants the weather.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>

The prompt ends with `<|start|>assistant`, so the output begins in a message's header. The analysis channel is
reasoning, and so is a message to a built-in tool. The final channel is the answer, and so is commentary without a
recipient. Several messages of reasoning, or of the answer, are lines of one text.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Sink

_MARKERS = {
    "START": "<|start|>",
    "CHANNEL": "<|channel|>",
    "MESSAGE": "<|message|>",
    "CONSTRAIN": "<|constrain|>",
    "END": "<|end|>",
    "CALL": "<|call|>",
    "RETURN": "<|return|>",
    "assistant": "assistant",
    "analysis": "analysis",
    "commentary": "commentary",
    "final": "final",
}
_ENDS = ("END", "CALL", "RETURN")
_HEADS = ("head", "thinking", "speaking")


def _rules() -> dict[tuple[str, str], Go]:
    rules: dict[tuple[str, str], Go] = {}
    for head in _HEADS:
        rules[head, "START"] = Go("head")
        rules[head, "CHANNEL"] = Go(head)
        rules[head, "assistant"] = Go(head)
        rules[head, "analysis"] = Go("thinking")
        rules[head, "commentary"] = Go("speaking")
        rules[head, "final"] = Go("speaking")
    rules["thinking", "MESSAGE"] = Go(REASONING, Emit.PART)
    rules["speaking", "MESSAGE"] = Go(CONTENT, Emit.PART)
    rules["head", "MESSAGE"] = Go(CONTENT, Emit.PART)
    for body in (REASONING, CONTENT):
        for end in _ENDS:
            rules[body, end] = Go("between")
        # A new header ends a message as well.
        rules[body, "START"] = Go("head")
        rules[body, "CHANNEL"] = Go("head")
    rules["between", "START"] = Go("head")
    rules["between", "CHANNEL"] = Go("head")
    return rules


def _modes() -> dict[str, Mode]:
    return {**{head: Mode(Sink.SKIP) for head in _HEADS}, "between": Mode(Sink.GAP)}


def _plain() -> Format:
    """Without tools, a message to a recipient is commentary, unless its channel is that of reasoning."""
    rules = _rules()
    for head in ("head", "speaking"):
        rules[head, "TO"] = Go("recipient")
    rules["thinking", "TO"] = Go("tool")
    rules["recipient", "CHANNEL"] = Go("channel")
    rules["recipient", "CONSTRAIN"] = Go("recipient")
    rules["recipient", "MESSAGE"] = Go(CONTENT, Emit.PART)
    rules["channel", "analysis"] = Go("tool")
    rules["channel", "CONSTRAIN"] = Go("recipient")
    rules["channel", "MESSAGE"] = Go(CONTENT, Emit.PART)
    rules["tool", "CHANNEL"] = Go("tool")
    rules["tool", "CONSTRAIN"] = Go("tool")
    rules["tool", "MESSAGE"] = Go(REASONING, Emit.PART)
    return Format(
        name="harmony_plain",
        markers={**_MARKERS, "TO": "to="},
        modes={**_modes(), **dict.fromkeys(("recipient", "channel", "tool"), Mode(Sink.DROP))},
        rules=rules,
        start="head",
    )


def _whole() -> Format:
    rules = _rules()
    for head in _HEADS:
        rules[head, "TO FUNCTION"] = Go("name", Emit.CALL)
        rules[head, "TO"] = Go("tool")
    for end in (" ", "CHANNEL", "CONSTRAIN"):
        rules["name", end] = Go("called", Emit.BEGIN)
    rules["name", "MESSAGE"] = Go("arguments", Emit.BEGIN)
    rules["called", "CHANNEL"] = Go("called")
    rules["called", "CONSTRAIN"] = Go("called")
    rules["called", "MESSAGE"] = Go("arguments")
    for end in _ENDS:
        rules["arguments", end] = Go("between", Emit.END)
    # Built-in tools are not called here: a message to one is reasoning.
    rules["tool", "CHANNEL"] = Go("tool")
    rules["tool", "CONSTRAIN"] = Go("tool")
    rules["tool", "MESSAGE"] = Go(REASONING, Emit.PART)
    rules["between", "CALL"] = Go("between")
    rules["between", "END"] = Go("between")
    rules["between", "RETURN"] = Go("between")
    return Format(
        name="harmony",
        markers={**_MARKERS, "TO FUNCTION": "to=functions.", "TO": "to=", " ": " "},
        modes={
            **_modes(),
            "name": Mode(Sink.NAME),
            "called": Mode(Sink.DROP),
            "arguments": Mode(Sink.BODY, "json_object", "between"),
            "tool": Mode(Sink.DROP),
        },
        rules=rules,
        start="head",
        plain=_plain(),
    )


HARMONY = _whole()
