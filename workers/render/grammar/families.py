"""What a model's parsers, by their names in the settings, ask of the engine."""

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
"""Tool parsers whose families have tags."""

ALWAYS_CONSTRAINED = frozenset({"glm45", "glm47"})
"""Tool parsers whose calls are held to their form in every request with tools, strict or not."""

FREE_UNLESS_FORCED = frozenset({"hy_v4"})
"""Tool parsers whose calls are held to their form only where one must be made."""


def speaks_harmony(*, tool_parser: str | None = None, reasoning_parser: str | None = None) -> bool:
    """Whether the model's answers are messages in channels, as gpt-oss writes them."""
    return tool_parser == "openai" or reasoning_parser == "openai_gptoss"


_KEEPING_REASONING = frozenset(
    ("deepseek_v4", "deepseek_v41", "gemma4", "glm45", "glm47", "granite_thinking_parser", "inkling", "kimi_k2")
    + ("kimi_k3", "ling3", "mimo", "minicpmv", "minimax_m2", "mistral", "muse", "muse_glimmer", "musespark1x")
    + ("nemotron_v3", "plamo3", "qwen3", "seed_oss", "step3p5", "beam", "hf")
)
"""Reasoning parsers that read special tokens' text."""

_KEEPING_TOOLS = frozenset(
    ("cohere_command3", "cohere_command4", "deepseek_v32", "deepseek_v4", "deepseek_v41", "gemma4", "glm45", "glm47")
    + ("granite", "inkling", "kimi_k3", "ling3", "mimo", "minimax_m2", "mistral", "muse")
    + ("muse_glimmer", "musespark1x", "plamo3", "qwen3_coder", "qwen3_xml", "seed_oss", "step3p5", "step5")
    + ("beam", "hf")
)
"""Tool parsers that read special tokens' text whether there are tools or not."""

_KEEPING_WITH_TOOLS = frozenset(
    ("apertus", "functiongemma", "gigachat3", "granite4", "hermes", "internlm", "jamba", "kimi_k2", "lfm2", "longcat")
    + ("minicpm5", "poolside_v1", "qwen3_json", "step3")
)
"""Tool parsers that read special tokens' text where a tool may be called."""


def keeps_special_tokens(
    conversation: Conversation, *, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> bool:
    """Whether an engine that decodes must leave special tokens in the text, whatever the request says."""
    may_call = conversation.tool_choice != "none"
    if reasoning_parser is None and not (tool_parser is not None and may_call):
        return False
    return (
        reasoning_parser in _KEEPING_REASONING
        or tool_parser in _KEEPING_TOOLS
        or (tool_parser in _KEEPING_WITH_TOOLS and bool(conversation.tools) and may_call)
    )
