"""Mistral: `[TOOL_CALLS]` before calls, `[THINK]` around reasoning.

[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]                      up to v7
[TOOL_CALLS]get_weather{"city": "Oslo"}[TOOL_CALLS]ping{}                                 v11
[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}                            v13
[THINK]The user wants the weather.[/THINK]It is sunny.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Prompt, Sink

TOOLS = Format(
    name="mistral",
    markers={"CALL": "[TOOL_CALLS]", "ID": "[CALL_ID]", "ARGS": "[ARGS]", "{": "{", "[": "["},
    modes={
        "name": Mode(Sink.NAME),
        "id": Mode(Sink.ID),
        "arguments": Mode(Sink.BODY, "json_object", "after"),
        "list": Mode(Sink.BODY, "mistral", "after"),
        "after": Mode(Sink.GAP),
    },
    rules={
        (CONTENT, "CALL"): Go("name", Emit.CALL),
        ("name", "ID"): Go("id"),
        ("id", "ARGS"): Go("arguments", Emit.BEGIN),
        ("name", "ARGS"): Go("arguments", Emit.BEGIN),
        ("name", "{"): Go("arguments", Emit.BEGIN, Emit.READ),
        ("name", "["): Go("list", Emit.READ),
        ("arguments", "CALL"): Go("name", Emit.END, Emit.CALL),
        ("after", "CALL"): Go("name", Emit.CALL),
    },
    call_ids="mistral",
)

THINKING = Format(
    name="mistral_think",
    markers={
        "THINK": "[THINK]",
        "/THINK": "[/THINK]",
        "<THINK": "<think>",
        "</THINK": "</think>",
        "CALL": "[TOOL_CALLS]",
    },
    modes={REASONING: Mode(Sink.REASONING, "trimmed")},
    rules={
        (CONTENT, "THINK"): Go(REASONING),
        (CONTENT, "<THINK"): Go(REASONING),
        (CONTENT, "/THINK"): Go(CONTENT),
        (CONTENT, "</THINK"): Go(CONTENT),
        (REASONING, "THINK"): Go(REASONING),
        (REASONING, "/THINK"): Go(CONTENT),
        (REASONING, "</THINK"): Go(CONTENT),
        (REASONING, "CALL"): Go(CONTENT, Emit.KEEP),
    },
    interrupts=("[TOOL_CALLS]",),
    prompt=Prompt(opens=("[THINK]",), closes=("[/THINK]",), turns=("[INST]", "[/INST]")),
)
