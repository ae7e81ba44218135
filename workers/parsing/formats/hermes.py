"""Hermes 2 Pro, Qwen2.5, Qwen3: one JSON object in each `<tool_call>`.

Let me look.
<tool_call>
{"name": "get_weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

HERMES = Format(
    name="hermes",
    markers={"CALL": "<tool_call>", "/CALL": "</tool_call>"},
    modes={"call": Mode(Sink.BODY, style="json_call", then="after"), "after": Mode(Sink.GAP)},
    rules={
        (CONTENT, "CALL"): Go("call", Emit.CALL),
        ("after", "/CALL"): Go(CONTENT),
        ("after", "CALL"): Go("call", Emit.CALL),
    },
)
