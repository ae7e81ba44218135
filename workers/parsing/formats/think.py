"""Reasoning in `<think>` and `</think>`.

    <think>The user wants the weather.</think>It is sunny.

Most families open reasoning in the prompt, so that the output begins inside it and often holds the closing marker only.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Prompt

# The opening marker may come once more in the output and says nothing then. Reasoning ends once.
DEEPSEEK_R1 = Format(
    name="deepseek_r1",
    markers={"THINK": "<think>", "/THINK": "</think>"},
    rules={(REASONING, "THINK"): Go(REASONING), (REASONING, "/THINK"): Go(CONTENT)},
    start=REASONING,
    prompt=Prompt(opens=("<think>",), closes=("</think>",)),
)

# Qwen3 may go from reasoning to a tool call without closing it, and may close it twice.
QWEN3 = Format(
    name="qwen3",
    markers={"THINK": "<think>", "/THINK": "</think>", "CALL": "<tool_call>"},
    rules={
        (REASONING, "THINK"): Go(REASONING),
        (REASONING, "/THINK"): Go(CONTENT),
        (CONTENT, "/THINK"): Go(CONTENT),
        (REASONING, "CALL"): Go(CONTENT, Emit.KEEP),
    },
    start=REASONING,
    interrupts=("<tool_call>",),
    prompt=Prompt(
        opens=("<think>",),
        closes=("</think>",),
        turns=("<|im_start|>", "<|im_end|>"),
        switches=("enable_thinking",),
    ),
)
