"""Gemma: calls with unquoted keys and strings between markers; Gemma 4 reasons in a channel.

<start_function_call>call:get_weather{city:<escape>Oslo<escape>}<end_function_call>          FunctionGemma
<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>                         Gemma 4
<|channel>thought
The user wants the weather.<channel|>It is sunny.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Forced, Format, Go, Mode, Prompt, Sink


def _calls(name: str, opens: str, closes: str, style: str, forced: Forced) -> Format:
    return Format(
        name=name,
        markers={"CALL": opens, "/CALL": closes, "call:": "call:", "{": "{"},
        modes={
            "call": Mode(Sink.SKIP),
            "name": Mode(Sink.NAME),
            "arguments": Mode(Sink.BODY, style, "after"),
            "after": Mode(Sink.GAP),
        },
        rules={
            (CONTENT, "CALL"): Go("call", Emit.CALL),
            ("call", "call:"): Go("name"),
            ("name", "{"): Go("arguments", Emit.BEGIN, Emit.READ),
            ("after", "/CALL"): Go(CONTENT),
            ("after", "CALL"): Go("call", Emit.CALL),
        },
        forced=forced,
    )


FUNCTIONGEMMA = _calls("functiongemma", "<start_function_call>", "<end_function_call>", "functiongemma", "json")
GEMMA4 = _calls("gemma4", "<|tool_call>", "<tool_call|>", "gemma4", "native")

GEMMA4_THINKING = Format(
    name="gemma4_thinking",
    markers={
        "CHANNEL": "<|channel>",
        "/CHANNEL": "<channel|>",
        "thought": "thought\n",
        "thought|": "thought",
        "CALL": "<|tool_call>",
    },
    modes={REASONING: Mode(Sink.REASONING, "trimmed"), "channel": Mode(Sink.SKIP)},
    rules={
        (CONTENT, "CHANNEL"): Go("channel"),
        ("channel", "thought"): Go(REASONING),
        ("channel", "thought|"): Go(REASONING),
        ("channel", "/CHANNEL"): Go(CONTENT),
        (REASONING, "/CHANNEL"): Go(CONTENT),
        (CONTENT, "/CHANNEL"): Go(CONTENT),
        (REASONING, "CALL"): Go(CONTENT, Emit.KEEP),
    },
    interrupts=("<|tool_call>",),
    prompt=Prompt(closes=("<channel|>",), opens=("<|channel>",), turns=("<|turn>", "<turn|>")),
)
