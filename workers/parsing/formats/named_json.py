"""Calls as a name between markers and the arguments as one JSON object: DeepSeek V3 and V3.1, Kimi K2, PLaMo 3.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

DeepSeek V3 writes `function<｜tool▁sep｜>get_weather`, and the arguments in a code fence. Kimi's name is also the call's
id: `functions.get_weather:0`, numbered across the conversation.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

_DEEPSEEK = {
    "CALLS": "<｜tool▁calls▁begin｜>",
    "/CALLS": "<｜tool▁calls▁end｜>",
    "CALL": "<｜tool▁call▁begin｜>",
    "SEP": "<｜tool▁sep｜>",
    "/CALL": "<｜tool▁call▁end｜>",
}

DEEPSEEK_V3 = Format(
    name="deepseek_v3",
    markers={**_DEEPSEEK, "```json": "\n```json", "```": "```"},
    modes={
        "calls": Mode(Sink.GAP),
        "type": Mode(Sink.DROP),
        "name": Mode(Sink.NAME),
        "arguments": Mode(Sink.BODY, "json_object", "fence"),
        "fence": Mode(Sink.SKIP),
    },
    rules={
        (CONTENT, "CALLS"): Go("calls"),
        ("calls", "CALL"): Go("type", Emit.CALL),
        ("calls", "/CALLS"): Go(CONTENT),
        ("type", "SEP"): Go("name"),
        ("name", "```json"): Go("arguments", Emit.BEGIN),
        ("arguments", "```"): Go("fence", Emit.END),
        ("arguments", "/CALL"): Go("calls", Emit.END),
        ("fence", "```"): Go("fence"),
        ("fence", "/CALL"): Go("calls"),
        ("fence", "CALL"): Go("type", Emit.CALL),
        ("fence", "/CALLS"): Go(CONTENT),
    },
)

DEEPSEEK_V31 = Format(
    name="deepseek_v31",
    markers=_DEEPSEEK,
    modes={
        "calls": Mode(Sink.GAP),
        "name": Mode(Sink.NAME),
        "arguments": Mode(Sink.BODY, "json_object", "calls"),
    },
    rules={
        (CONTENT, "CALLS"): Go("calls"),
        ("calls", "CALL"): Go("name", Emit.CALL),
        ("calls", "/CALL"): Go("calls"),
        ("calls", "/CALLS"): Go(CONTENT),
        ("name", "SEP"): Go("arguments", Emit.BEGIN),
        ("arguments", "/CALL"): Go("calls", Emit.END),
    },
)

KIMI_K2 = Format(
    name="kimi_k2",
    markers={
        "CALLS": "<|tool_calls_section_begin|>",
        "/CALLS": "<|tool_calls_section_end|>",
        "CALL": "<|tool_call_begin|>",
        "ARGUMENTS": "<|tool_call_argument_begin|>",
        "/CALL": "<|tool_call_end|>",
    },
    modes={
        "calls": Mode(Sink.GAP),
        "name": Mode(Sink.NAME, "kimi"),
        "arguments": Mode(Sink.BODY, "json_object", "calls"),
    },
    rules={
        (CONTENT, "CALLS"): Go("calls"),
        ("calls", "CALL"): Go("name", Emit.CALL),
        ("calls", "/CALL"): Go("calls"),
        ("calls", "/CALLS"): Go(CONTENT),
        ("name", "ARGUMENTS"): Go("arguments", Emit.BEGIN),
        ("arguments", "/CALL"): Go("calls", Emit.END),
    },
    call_ids="kimi",
)

PLAMO3 = Format(
    name="plamo3",
    markers={
        "CALLS": "<|plamo:begin_tool_requests:plamo|>",
        "/CALLS": "<|plamo:end_tool_requests:plamo|>",
        "CALL": "<|plamo:begin_tool_request:plamo|>",
        "/CALL": "<|plamo:end_tool_request:plamo|>",
        "NAME": "<|plamo:begin_tool_name:plamo|>",
        "/NAME": "<|plamo:end_tool_name:plamo|>",
        "ARGUMENTS": "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
        "/ARGUMENTS": "<|plamo:end_tool_arguments:plamo|>",
    },
    modes={
        "calls": Mode(Sink.GAP),
        "call": Mode(Sink.SKIP),
        "name": Mode(Sink.NAME),
        "named": Mode(Sink.SKIP),
        "arguments": Mode(Sink.BODY, "json_object", "calls"),
    },
    rules={
        (CONTENT, "CALLS"): Go("calls"),
        ("calls", "CALL"): Go("call", Emit.CALL),
        ("call", "NAME"): Go("name"),
        ("name", "/NAME"): Go("named", Emit.BEGIN),
        ("named", "ARGUMENTS"): Go("arguments"),
        ("arguments", "/ARGUMENTS"): Go("calls", Emit.END),
        ("calls", "/ARGUMENTS"): Go("calls"),
        ("calls", "/CALL"): Go("calls"),
        ("calls", "/CALLS"): Go(CONTENT),
    },
)
