"""Calls without markers: the whole answer is a call, or begins like one.

    {"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "ping", "parameters": {}}     Llama 3 and 4
    [get_weather(city="Oslo"), ping()]                                                             pythonic
    <|python_start|>[get_weather(city="Oslo")]<|python_end|>                                       Llama 4
    <function_calls>
    get_weather(city="Oslo")
    ping()
    </function_calls>                                                                              OLMo 3
    [{"name": "get_weather", "arguments": {"city": "Oslo"}}]                                       xLAM

If it turns out not to be a call, it comes out as text.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

LLAMA_JSON = Format(
    name="llama3_json",
    markers={"TAG": "<|python_tag|>", "NAME": '{"name"', "TYPE": '{"type": "function"'},
    modes={"call": Mode(Sink.BODY, "json_bare")},
    rules={
        (CONTENT, "TAG"): Go("call", Emit.CALL),
        (CONTENT, "NAME"): Go("call", Emit.CALL, Emit.READ),
        (CONTENT, "TYPE"): Go("call", Emit.CALL, Emit.READ),
    },
    answer="call",
    start="call",
)

PYTHONIC = Format(
    name="pythonic",
    forced="json",
    modes={"calls": Mode(Sink.BODY, "python_calls")},
    answer="calls",
    start="calls",
)

LLAMA4_PYTHONIC = Format(
    name="llama4_pythonic",
    forced="json",
    markers={"CALLS": "<|python_start|>", "/CALLS": "<|python_end|>"},
    modes={
        "calls": Mode(Sink.BODY, "python_calls", "after"),
        "after": Mode(Sink.GAP),
    },
    rules={
        (CONTENT, "CALLS"): Go("calls", Emit.CALL),
        ("calls", "CALLS"): Go("calls"),
        ("after", "/CALLS"): Go(CONTENT),
        ("after", "CALLS"): Go("calls", Emit.CALL),
    },
    answer="calls",
    start="calls",
)

OLMO3 = Format(
    name="olmo3",
    forced="json",
    markers={"CALLS": "<function_calls>", "/CALLS": "</function_calls>"},
    modes={"calls": Mode(Sink.BODY, "python_lines", "after"), "after": Mode(Sink.GAP)},
    rules={
        (CONTENT, "CALLS"): Go("calls", Emit.CALL),
        ("after", "/CALLS"): Go(CONTENT),
        ("after", "CALLS"): Go("calls", Emit.CALL),
    },
)

LFM2 = Format(
    name="lfm2",
    forced="json",
    markers={"CALLS": "<|tool_call_start|>", "/CALLS": "<|tool_call_end|>"},
    modes={"calls": Mode(Sink.BODY, "python_calls", "after"), "after": Mode(Sink.GAP)},
    rules={
        (CONTENT, "CALLS"): Go("calls", Emit.CALL),
        ("after", "/CALLS"): Go(CONTENT),
        ("after", "CALLS"): Go("calls", Emit.CALL),
    },
)

XLAM = Format(
    name="xlam",
    forced="json",
    markers={
        "CALL": "<tool_call>",
        "/CALL": "</tool_call>",
        "CALLS": "[TOOL_CALLS]",
        "```json": "```json\n",
        "```\n": "```\n",
        "```": "```",
        "THOUGHT": "</think>",
    },
    modes={"calls": Mode(Sink.BODY, "json_list"), "fenced": Mode(Sink.BODY, "json_fenced", "after"),
           "after": Mode(Sink.GAP)},
    rules={
        (CONTENT, "CALL"): Go("fenced", Emit.CALL),
        (CONTENT, "CALLS"): Go("fenced", Emit.CALL),
        (CONTENT, "```json"): Go("fenced", Emit.CALL),
        (CONTENT, "```\n"): Go("fenced", Emit.CALL),
        # The end of reasoning is text here, and calls may follow it.
        (CONTENT, "THOUGHT"): Go("calls", Emit.KEEP),
        ("after", "/CALL"): Go(CONTENT),
        ("after", "```"): Go(CONTENT),
    },
    answer="calls",
    start="calls",
)  # fmt: skip
