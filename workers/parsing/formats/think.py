"""Reasoning between an opening and a closing marker, usually `<think>` and `</think>`.

    <think>The user wants the weather.</think>It is sunny.

Most families open reasoning in the prompt, so the output begins inside it, and often contains only the closing marker.
They differ in which template arguments switch it, what may end it, and whether white space around it is markup.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Prompt, Sink

_CHATML = ("<|im_start|>", "<|im_end|>")
_EITHER = ("thinking", "enable_thinking")


def think(
    name: str,
    opens: str = "<think>",
    closes: str = "</think>",
    *,
    start: str = REASONING,
    style: str = "",
    text: str = "",
    stray: bool = True,
    interrupts: tuple[str, ...] = (),
    turns: tuple[str, ...] = (),
    switches: tuple[str, ...] = (),
    thinking: bool = True,
    off: tuple[tuple[str, str], ...] = (),
    suffix: str = "",
) -> Format:
    """The table for one family.

    stray: whether to drop a closing marker in the answer; otherwise it is text.
    style, text: how reasoning and the answer are framed (`arguments.STYLES`).
    interrupts: markers of calls that end reasoning without its closing marker.
    """
    markers = {"THINK": opens, "/THINK": closes}
    rules = {(REASONING, "THINK"): Go(REASONING), (REASONING, "/THINK"): Go(CONTENT)}
    if start == CONTENT:
        rules[CONTENT, "THINK"] = Go(REASONING)
    if stray:
        rules[CONTENT, "/THINK"] = Go(CONTENT)
    for number, literal in enumerate(interrupts):
        markers[f"CALL{number}"] = literal
        rules[REASONING, f"CALL{number}"] = Go(CONTENT, Emit.KEEP)
    modes = {REASONING: Mode(Sink.REASONING, style), CONTENT: Mode(Sink.TEXT, text)}
    return Format(
        name=name,
        markers=markers,
        modes={name: mode for name, mode in modes.items() if mode.style},
        rules=rules,
        start=start,
        interrupts=interrupts,
        prompt=Prompt((opens,), (closes,), turns, switches, thinking, off),
        suffix=suffix,
    )


DEEPSEEK_R1 = think("deepseek_r1", stray=False)
STEP3 = think("step3", stray=False)
DEEPSEEK_V3 = think("deepseek_v3", stray=False, switches=_EITHER, thinking=False)
HOLO2 = think("holo2", stray=False, switches=_EITHER)
POOLSIDE_V1 = think("poolside_v1", stray=False, switches=_EITHER, thinking=False, turns=("<assistant>",))
DEEPSEEK_V4 = think(
    "deepseek_v4",
    style="trimmed",
    switches=_EITHER,
    off=(("reasoning_effort", "none"),),
    interrupts=("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>"),
    turns=("<｜User｜>", "<｜Assistant｜>"),
)
DEEPSEEK_V41 = think(
    "deepseek_v41",
    style="trimmed",
    switches=_EITHER,
    off=(("reasoning_effort", "none"),),
    interrupts=("<｜DSML｜ calls>",),
    turns=("<｜User｜>", "<｜Assistant｜>"),
)

# Qwen3 may begin a tool call without closing reasoning, and may close reasoning twice.
_QWEN = ("<tool_call>",)
QWEN3 = think("qwen3", interrupts=_QWEN, turns=_CHATML, switches=("enable_thinking",))
MIMO = think("mimo", interrupts=_QWEN, turns=_CHATML, switches=("enable_thinking",))
MINICPMV = think("minicpmv", interrupts=_QWEN, turns=_CHATML, switches=("enable_thinking",))
STEP3P5 = think("step3p5", style="trimmed", interrupts=_QWEN, turns=_CHATML)
NEMOTRON_V3 = think("nemotron_v3", style="trimmed", interrupts=_QWEN, turns=_CHATML, switches=("enable_thinking",))
GRANITE_THINKING = think(
    "granite_thinking_parser",
    style="trimmed",
    text="trimmed",
    interrupts=_QWEN,
    turns=_CHATML,
    switches=("enable_thinking",),
)
SEED_OSS = think(
    "seed_oss",
    "<seed:think>",
    "</seed:think>",
    interrupts=("<seed:tool_call>",),
    turns=("<seed:bos>", "<seed:eos>"),
    switches=("enable_thinking",),
)
_GLM_TURNS = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
GLM45 = think("glm45", style="trimmed", interrupts=_QWEN, turns=_GLM_TURNS, switches=_EITHER)
LING3 = think("ling3", style="trimmed", interrupts=_QWEN, turns=_GLM_TURNS, switches=_EITHER)
KIMI_K2 = think(
    "kimi_k2",
    style="trimmed",
    interrupts=("<|tool_calls_section_begin|>",),
    turns=("<|im_assistant|>", "<|im_user|>", "<|im_system|>"),
    switches=_EITHER,
)
MINIMAX_M2 = think("minimax_m2", style="trimmed", interrupts=("<minimax:tool_call>",))
MINIMAX_M3 = think("minimax_m3", "<mm:think>", "</mm:think>", start=CONTENT)
PLAMO3 = think(
    "plamo3",
    "<|plamo:begin_think:plamo|>",
    "<|plamo:end_think:plamo|>",
    style="trimmed",
    interrupts=("<|plamo:begin_tool_requests:plamo|>",),
    switches=("enable_thinking",),
)
_SUFFIX = r":[^\s>]+"
HY_V3 = think(
    "hy_v3", stray=False, switches=("reasoning_effort",), thinking=False, off=(("reasoning_effort", "no_think"),),
    suffix=_SUFFIX,
)  # fmt: skip
HY_V4 = think(
    "hy_v4", stray=False, switches=("reasoning_effort",), off=(("reasoning_effort", "no_think"),), suffix=_SUFFIX
)
OLMO3 = think("olmo3", stray=False)

# K2 Horizon has a pair of markers for each effort.
K2_HORIZON = Format(
    name="k2_horizon",
    markers={
        **{f"THINK{at}": f"<ifm|{word}>" for at, word in enumerate(("think", "think_fast", "think_faster"))},
        **{f"/THINK{at}": f"</ifm|{word}>" for at, word in enumerate(("think", "think_fast", "think_faster"))},
        "CALLS": "<ifm|tool_calls>",
    },
    rules={
        **{(REASONING, f"THINK{at}"): Go(REASONING) for at in range(3)},
        **{(REASONING, f"/THINK{at}"): Go(CONTENT) for at in range(3)},
        **{(CONTENT, f"THINK{at}"): Go(REASONING) for at in range(3)},
        (REASONING, "CALLS"): Go(CONTENT, Emit.KEEP),
    },
    start=CONTENT,
    interrupts=("<ifm|tool_calls>",),
    prompt=Prompt(
        opens=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        closes=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>", "<ifm|tool_calls>"),
    ),
)

# ERNIE may put the answer between its own markers.
ERNIE45 = Format(
    name="ernie45",
    markers={
        "THINK": "<think>",
        "/THINK": "</think>",
        "RESPONSE": "<response>",
        "RESPONSE\n": "<response>\n",
        "\nRESPONSE\n": "\n\n<response>\n",
        "/RESPONSE": "</response>",
        "\n/RESPONSE": "\n</response>",
        "\n/RESPONSE\n": "\n</response>\n",
    },
    rules={
        (REASONING, "THINK"): Go(REASONING),
        (REASONING, "/THINK"): Go(CONTENT),
        (CONTENT, "RESPONSE"): Go(CONTENT),
        (CONTENT, "RESPONSE\n"): Go(CONTENT),
        (CONTENT, "\nRESPONSE\n"): Go(CONTENT),
        (CONTENT, "/RESPONSE"): Go(CONTENT),
        (CONTENT, "\n/RESPONSE"): Go(CONTENT),
        (CONTENT, "\n/RESPONSE\n"): Go(CONTENT),
    },
    start=REASONING,
    prompt=Prompt(opens=("<think>",), closes=("</think>",)),
)

# Hunyuan A13B spells its markers with ordinary tokens, line feeds included.
HUNYUAN_A13B = Format(
    name="hunyuan_a13b",
    markers={
        "THINK": "<think>\n",
        "ANSWER": "\n</think>\n<answer>\n",
        "QUICK": "</think>\n<answer>\n",
        "BARE": "<answer>\n",
        "/ANSWER": "\n</answer>",
    },
    rules={
        (CONTENT, "THINK"): Go(REASONING),
        (REASONING, "ANSWER"): Go(CONTENT),
        (REASONING, "QUICK"): Go(CONTENT),
        (CONTENT, "BARE"): Go(CONTENT),
        (CONTENT, "/ANSWER"): Go(CONTENT),
    },
)

# Granite 3.2 begins and ends reasoning with plain sentences.
GRANITE = Format(
    name="granite",
    markers={
        "THINK": "Here is my thought process:",
        "THINK'": "Here's my thought process:",
        "ANSWER": "Here is my response:",
        "ANSWER'": "Here's my response:",
    },
    rules={
        (CONTENT, "THINK"): Go(REASONING),
        (CONTENT, "THINK'"): Go(REASONING),
        (REASONING, "ANSWER"): Go(CONTENT),
        (REASONING, "ANSWER'"): Go(CONTENT),
    },
)

# Reasoning stays in the text, with the opening marker that the prompt ended with.
MINIMAX_M2_APPEND_THINK = Format(name="minimax_m2_append_think", prologue="<think>")
