"""Inkling: typed blocks; each marker is one token.

<|message_model|><|content_thinking|>The user wants the weather.<|end_message|>
<|message_model|><|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Oslo"}}<|end_message|>
<|message_model|><|content_text|>It is sunny.<|end_message|>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Prompt, Sink

_MARKERS = {
    "MODEL": "<|message_model|>",
    "TEXT": "<|content_text|>",
    "THINK": "<|content_thinking|>",
    "TOOL": "<|content_invoke_tool_json|>",
    "TOOL TEXT": "<|content_invoke_tool_text|>",
    "TOOL ERROR": "<|content_tool_error|>",
    "END": "<|end_message|>",
    "STOP": "<|content_model_end_sampling|>",
}


def _rules(tool: Go) -> dict[tuple[str, str], Go]:
    rules: dict[tuple[str, str], Go] = {}
    for mode in (CONTENT, REASONING, "head"):
        rules[mode, "TOOL"] = tool
        rules[mode, "THINK"] = Go(REASONING)
        rules[mode, "END"] = Go(CONTENT)
        rules[mode, "STOP"] = Go(CONTENT)
    for mode in (CONTENT, "head"):
        rules[mode, "MODEL"] = Go("head")
        for kind in ("TEXT", "TOOL TEXT", "TOOL ERROR"):
            rules[mode, kind] = Go(CONTENT)
    return rules


_PROMPT = Prompt(
    opens=("<|content_thinking|>",),
    closes=("<|content_text|>",),
    turns=("<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"),
)
# A header may name a function, which is dropped; an unfinished header is text.
_MODES = {"head": Mode(Sink.NAME), REASONING: Mode(Sink.REASONING, "trimmed")}

_PLAIN = Format(
    name="inkling_plain", markers=_MARKERS, modes=_MODES, rules=_rules(Go(CONTENT)), start="head", prompt=_PROMPT
)

INKLING = Format(
    name="inkling",
    markers=_MARKERS,
    modes={**_MODES, "call": Mode(Sink.BODY, "json_args", "called"), "called": Mode(Sink.GAP)},
    rules={
        **_rules(Go("call", Emit.CALL)),
        ("called", "END"): Go(CONTENT),
        ("called", "STOP"): Go(CONTENT),
        ("called", "MODEL"): Go("head"),
        ("called", "TOOL"): Go("call", Emit.CALL),
    },
    start="head",
    prompt=_PROMPT,
    plain=_PLAIN,
)
