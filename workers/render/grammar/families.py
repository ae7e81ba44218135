"""What each parser, by its name in the settings, needs from the engine."""

from __future__ import annotations

from tasks.protocol.conversation import Conversation

FAMILY_OF_PARSER: dict[str, str] = {
    "deepseek_v3": "deepseek_r1",
    "deepseek_v31": "deepseek_v3_1",
    "deepseek_v32": "deepseek_v3_2",
    "deepseek_v4": "deepseek_v4",
    "deepseek_v41": "deepseek_v4_1",
    "glm45": "glm_4_7",
    "glm47": "glm_4_7",
    "hermes": "hermes",
    "hy_v4": "hy_v4",
    "kimi_k2": "kimi",
    "kimi_k3": "kimi_k3",
    "ling3": "glm_4_7",
    "llama3_json": "llama",
    "llama4_json": "llama",
    "longcat": "longcat",
    "mimo": "mimo",
    "minimax_m2": "minimax",
    "openai": "harmony",
    "plamo3": "plamo3",
    "qwen3_coder": "qwen_3_coder",
    "qwen3_json": "hermes",
    "qwen3_xml": "qwen_3_coder",
    "step3p5": "qwen_3_coder",
}
"""The structural tags of each tool parser, by the name of their family; other tool parsers have none."""

ALWAYS_CONSTRAINED = frozenset({"glm45", "glm47"})
"""Tool parsers whose calls must follow their format in every request with tools, strict or not."""

FREE_UNLESS_FORCED = frozenset({"hy_v4"})
"""Tool parsers whose calls must follow their format only if a call is forced."""


def speaks_harmony(*, tool_parser: str | None = None, reasoning_parser: str | None = None) -> bool:
    """Whether the model writes gpt-oss's harmony format: messages in channels."""
    return tool_parser == "openai" or reasoning_parser == "openai_gptoss"


_KEEPING_REASONING = frozenset(
    ("deepseek_v4", "deepseek_v41", "gemma4", "glm45", "glm47", "granite_thinking_parser", "inkling", "kimi_k2")
    + ("kimi_k3", "ling3", "mimo", "minicpmv", "minimax_m2", "mistral", "muse", "muse_glimmer", "musespark1x")
    + ("nemotron_v3", "plamo3", "qwen3", "seed_oss", "step3p5", "beam", "hf")
)
"""Reasoning parsers that need the text of special tokens."""

_KEEPING_TOOLS = frozenset(
    ("cohere_command3", "cohere_command4", "deepseek_v32", "deepseek_v4", "deepseek_v41", "gemma4", "glm45", "glm47")
    + ("granite", "inkling", "kimi_k3", "ling3", "mimo", "minimax_m2", "mistral", "muse")
    + ("muse_glimmer", "musespark1x", "plamo3", "qwen3_coder", "qwen3_xml", "seed_oss", "step3p5", "step5")
    + ("beam", "hf")
)
"""Tool parsers that need the text of special tokens, whether the request has tools or not."""

_KEEPING_WITH_TOOLS = frozenset(
    ("apertus", "functiongemma", "gigachat3", "granite4", "hermes", "internlm", "jamba", "kimi_k2", "lfm2", "longcat")
    + ("minicpm5", "poolside_v1", "qwen3_json", "step3")
)
"""Tool parsers that need the text of special tokens if a tool may be called."""


def keeps_special_tokens(
    conversation: Conversation, *, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> bool:
    """Whether an engine that detokenizes must keep special tokens in the text, whatever the request says."""
    may_call = conversation.tool_choice != "none"
    if reasoning_parser is None and not (tool_parser is not None and may_call):
        return False
    return (
        reasoning_parser in _KEEPING_REASONING
        or tool_parser in _KEEPING_TOOLS
        or (tool_parser in _KEEPING_WITH_TOOLS and bool(conversation.tools) and may_call)
    )
