"""Kimi K3 (XTML): elements whose brackets are three special tokens.

    <|open|>think<|sep|>The user wants the weather.<|close|>think<|sep|>
    <|open|>response<|sep|>Let me look.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|>

An argument of type string is written raw, any other as JSON.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Prompt, Sink

_MARKERS = {
    "RESPONSE": "<|open|>response<|sep|>",
    "/RESPONSE": "<|close|>response<|sep|>",
    "/MESSAGE": "<|close|>message<|sep|>",
}
_RULES = {(CONTENT, marker): Go(CONTENT) for marker in _MARKERS}

THINKING = Format(
    name="kimi_k3_think",
    markers={
        **_MARKERS,
        "THINK": "<|open|>think<|sep|>",
        "/THINK": "<|close|>think<|sep|>",
        "TOOLS": "<|open|>tools<|sep|>",
    },
    rules={
        **_RULES,
        (CONTENT, "THINK"): Go(REASONING),
        (REASONING, "THINK"): Go(REASONING),
        (REASONING, "/THINK"): Go(CONTENT),
        (REASONING, "RESPONSE"): Go(CONTENT),
        (REASONING, "TOOLS"): Go(CONTENT, Emit.KEEP),
    },
    start=REASONING,
    interrupts=("<|open|>tools<|sep|>",),
    prompt=Prompt(switches=("thinking", "enable_thinking")),
)

TOOLS = Format(
    name="kimi_k3",
    markers={
        **_MARKERS,
        "TOOLS": "<|open|>tools<|sep|>",
        "/TOOLS": "<|close|>tools<|sep|>",
        "CALL": '<|open|>call tool="',
        "/CALL": "<|close|>call<|sep|>",
        "ARGUMENT": '<|open|>argument key="',
        "/ARGUMENT": "<|close|>argument<|sep|>",
        '"': '"',
        "STRING": '" type="string"<|sep|>',
        "SEP": "<|sep|>",
    },
    modes={
        "calls": Mode(Sink.GAP),
        "name": Mode(Sink.NAME, "attribute"),
        "named": Mode(Sink.DROP),
        "arguments": Mode(Sink.SKIP),
        "key": Mode(Sink.KEY, "attribute"),
        "keyed": Mode(Sink.DROP),
        "value": Mode(Sink.VALUE),
        "end": Mode(Sink.DOUBT, "end", "value"),
    },
    rules={
        **_RULES,
        (CONTENT, "TOOLS"): Go("calls"),
        ("calls", "CALL"): Go("name", Emit.CALL),
        ("calls", "/TOOLS"): Go(CONTENT),
        ("name", '"'): Go("named", Emit.BEGIN),
        ("named", "SEP"): Go("arguments"),
        ("arguments", "ARGUMENT"): Go("key"),
        ("arguments", "/CALL"): Go("calls", Emit.END),
        ("key", "STRING"): Go("value", Emit.STRING),
        ("key", '"'): Go("keyed"),
        ("keyed", "SEP"): Go("value", Emit.JSON),
        ("value", "/ARGUMENT"): Go("arguments"),
        # An element may lack its end. What may end a value is data if the call goes on after it.
        ("value", "ARGUMENT"): Go("key"),
        ("value", "/CALL"): Go("end"),
        ("end", "CALL"): Go("name", Emit.END, Emit.CALL),
        ("end", "/TOOLS"): Go(CONTENT, Emit.END),
        ("arguments", "CALL"): Go("name", Emit.END, Emit.CALL),
        ("arguments", "/TOOLS"): Go(CONTENT, Emit.END),
    },
)
