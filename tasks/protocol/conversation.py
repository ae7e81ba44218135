"""The narrow waist in: what a request asks of a model, whichever surface it came through.

Surfaces map their request to a `Conversation` (or, for plain completions, to `Prompt`s); renderers map it to token
ids. Standard library only, and every value is JSON-able.

    Conversation(
        messages=({"role": "user", "content": "Weather in Zürich?"},),
        tools=({"type": "function", "function": {"name": "get_weather", "parameters": {...}}},),
        tool_choice="auto",
        template_arguments={"enable_thinking": False},
        sampling={"temperature": 0.2, "stop": ["\\n\\n"]},
        max_output_tokens=256,
        options={"stream": True},
    )
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

JsonObject = dict[str, Any]
ToolChoice = Literal["none", "auto", "required"] | JsonObject
"""The named form is `{"type": "function", "function": {"name": ...}}`."""


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How a prompt becomes token ids, and how many of them may there be."""

    add_special_tokens: bool = False
    """Let the tokenizer add its own beginning-of-text; chat templates write it themselves."""
    truncate_to: int | None = None
    """Keep at most so many prompt tokens; -1 means as many as the model takes. None refuses a longer prompt."""
    truncation_side: Literal["left", "right"] | None = None
    """The side that is cut away. None cuts on the left, and what the tokenizer adds itself stays."""
    return_offsets: bool = False
    """Give each token's (start, end) place in the prompt's text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Chat-template-shaped messages and everything that decides on the prompt and the output's form.

    `messages` are what chat templates read: `role`, `content` (text or parts), and per role `tool_calls`,
    `tool_call_id`, `name`, `reasoning`. Arguments of tool calls in the history are still as the client sent them.
    """

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] | None = None
    """`{"type": "function", "function": {"name", "description", "parameters", "strict"?}}`; None if not sent."""
    tool_choice: ToolChoice | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    template: str | None = None
    """The request's own chat template; only where the model's settings trust it."""
    template_arguments: JsonObject = field(default_factory=dict)
    """The request's `chat_template_kwargs`; the model's defaults are laid under them when rendering."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: tuple[JsonObject, ...] | None = None
    reasoning_effort: str | None = None
    response_format: JsonObject | None = None
    """`{"type": "text" | "json_object" | "json_schema" | "structural_tag", ...}`."""
    structured_outputs: JsonObject | None = None
    """The engine's own form: one of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`."""
    sampling: JsonObject = field(default_factory=dict)
    """Sampling parameters by the engine's names, just those that were sent (`max_tokens` is `max_output_tokens`)."""
    max_output_tokens: int | None = None
    max_output_tokens_param: str = "max_tokens"
    """What the client calls `max_output_tokens`; errors name it."""
    tokenization: Tokenization = Tokenization()
    options: JsonObject = field(default_factory=dict)
    """Fields of the engine's request that pass through as sent: `stream`, `stream_options`, `return_token_ids`,
    `cache_salt`, `priority`, `kv_transfer_params`, `ec_transfer_params`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a plain completion: text, or token ids that are taken as they are."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    tokenization: Tokenization = Tokenization(add_special_tokens=True)
    response_format: JsonObject | None = None
    structured_outputs: JsonObject | None = None
    sampling: JsonObject = field(default_factory=dict)
    max_output_tokens: int | None = None
    max_output_tokens_param: str = "max_tokens"
    options: JsonObject = field(default_factory=dict)


def conversation_to_json(conversation: Conversation) -> JsonObject:
    """The conversation's smallest JSON form: absent keys are defaults, values are shared and not copied."""
    out: JsonObject = {}
    for f in fields(conversation):
        value = getattr(conversation, f.name)
        if f.name == "tokenization":
            value = {t.name: getattr(value, t.name) for t in fields(value) if getattr(value, t.name) != t.default}
            if value:
                out[f.name] = value
        elif value != f.default and not (f.default_factory is dict and not value):
            out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def conversation_from_json(data: JsonObject) -> Conversation:
    """Restores what `conversation_to_json` gave."""
    values = dict(data)
    for name in ("messages", "tools", "documents"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    if "tokenization" in values:
        values["tokenization"] = Tokenization(**values["tokenization"])
    return Conversation(**values)


def count_tool_calls(conversation: Conversation) -> int:
    """How many tool calls the history holds; formats that number their calls go on from here."""
    return sum(len(message.get("tool_calls") or ()) for message in conversation.messages)
