"""Step 3: invokes in a section of special tokens.

<｜tool_calls_begin｜>
<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">
<steptml:parameter name="city">Oslo</steptml:parameter>
</steptml:invoke><｜tool_call_end｜>
<｜tool_calls_end｜>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

STEP3 = Format(
    name="step3",
    forced="json",
    markers={
        "CALLS": "<｜tool_calls_begin｜>",
        "/CALLS": "<｜tool_calls_end｜>",
        "CALL": "<｜tool_call_begin｜>",
        "SEP": "<｜tool_sep｜>",
        "/CALL": "<｜tool_call_end｜>",
        "INVOKE": '<steptml:invoke name="',
        "/INVOKE": "</steptml:invoke>",
        "PARAMETER": '<steptml:parameter name="',
        "/PARAMETER": "</steptml:parameter>",
        '">': '">',
        '"/>': '"/>',
        '" />': '" />',
    },
    modes={
        "calls": Mode(Sink.GAP),
        "type": Mode(Sink.DROP),
        "call": Mode(Sink.SKIP),
        "name": Mode(Sink.NAME),
        "arguments": Mode(Sink.SKIP),
        "key": Mode(Sink.KEY),
        "value": Mode(Sink.VALUE, "stripped"),
        **dict.fromkeys(("end", "last"), Mode(Sink.DOUBT, "end", "value")),
    },
    rules={
        (CONTENT, "CALLS"): Go("calls"),
        ("calls", "CALL"): Go("type", Emit.CALL),
        ("calls", "/CALL"): Go("calls"),
        ("calls", "/CALLS"): Go(CONTENT),
        ("type", "SEP"): Go("call"),
        ("call", "INVOKE"): Go("name"),
        ("name", '">'): Go("arguments", Emit.BEGIN),
        ("arguments", "PARAMETER"): Go("key"),
        ("key", '">'): Go("value"),
        ("value", "/PARAMETER"): Go("arguments"),
        ("arguments", "/INVOKE"): Go("calls", Emit.END),
        **{("name", end): Go("calls", Emit.BEGIN, Emit.END) for end in ('"/>', '" />')},
        **{("key", end): Go("arguments", Emit.EMPTY) for end in ('"/>', '" />')},
        # An element may lack its end. What may end a value is data if the call goes on after it.
        ("arguments", "/CALL"): Go("calls", Emit.END),
        ("arguments", "/CALLS"): Go(CONTENT, Emit.END),
        ("arguments", "CALL"): Go("type", Emit.END, Emit.CALL),
        ("value", "PARAMETER"): Go("key"),
        ("value", "/INVOKE"): Go("end"),
        ("value", "/CALL"): Go("last"),
        ("end", "/CALL"): Go("calls", Emit.END),
        **{(mode, "/CALLS"): Go(CONTENT, Emit.END) for mode in ("end", "last")},
        **{(mode, "CALL"): Go("type", Emit.END, Emit.CALL) for mode in ("end", "last")},
    },
)
