"""Cohere Command: thinking, answer and action, each between its own markers.

<|START_THINKING|>The user wants the weather.<|END_THINKING|>
<|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo"}}
]<|END_ACTION|>
<|START_RESPONSE|>It is sunny.<|END_RESPONSE|>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Prompt, Sink

TOOLS = Format(
    name="cohere_command",
    markers={"ACTION": "<|START_ACTION|>", "/ACTION": "<|END_ACTION|>"},
    modes={"calls": Mode(Sink.BODY, "cohere", "after"), "after": Mode(Sink.GAP)},
    rules={
        (CONTENT, "ACTION"): Go("calls", Emit.CALL),
        ("after", "/ACTION"): Go(CONTENT),
        ("after", "ACTION"): Go("calls", Emit.CALL),
    },
)

THINKING = Format(
    name="cohere_thinking",
    markers={
        "THINK": "<|START_THINKING|>",
        "/THINK": "<|END_THINKING|>",
        "RESPONSE": "<|START_RESPONSE|>",
        "/RESPONSE": "<|END_RESPONSE|>",
        "TEXT": "<|START_TEXT|>",
        "/TEXT": "<|END_TEXT|>",
        "ACTION": "<|START_ACTION|>",
    },
    rules={
        (CONTENT, "THINK"): Go(REASONING),
        (REASONING, "THINK"): Go(REASONING),
        (REASONING, "/THINK"): Go(CONTENT),
        (REASONING, "RESPONSE"): Go(CONTENT),
        (REASONING, "TEXT"): Go(CONTENT),
        (REASONING, "ACTION"): Go(CONTENT, Emit.KEEP),
        (CONTENT, "RESPONSE"): Go(CONTENT),
        (CONTENT, "/RESPONSE"): Go(CONTENT),
        (CONTENT, "TEXT"): Go(CONTENT),
        (CONTENT, "/TEXT"): Go(CONTENT),
    },
    interrupts=("<|START_ACTION|>",),
    prompt=Prompt(opens=("<|START_THINKING|>",), closes=("<|END_THINKING|>", "<|START_RESPONSE|>")),
)
