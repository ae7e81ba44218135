"""The neutral form of a request: what it asks of a model, whichever surface it came through.

A surface turns its request into a `Conversation` (or, for plain completions, into `Prompt`s); a renderer turns that
into token ids. Standard library only, and every value can be written as JSON.

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

from tasks.errors import InvalidRequest

JsonObject = dict[str, Any]
ToolChoice = Literal["none", "auto", "required"] | JsonObject
"""The named form is `{"type": "function", "function": {"name": ...}}`."""


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How to tokenize a prompt, and how to truncate it."""

    add_special_tokens: bool = False
    """Let the tokenizer add its special tokens, such as beginning-of-text; chat templates write them themselves."""
    truncate_to: int | None = None
    """Maximum number of prompt tokens to keep; -1 for as many as the model takes. None refuses a longer prompt."""
    truncation_side: Literal["left", "right"] | None = None
    """The side to cut. None cuts on the left, but keeps the special tokens that the tokenizer added."""
    return_offsets: bool = False
    """Return each token's (start, end) offsets in the prompt's text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in the shape of chat templates, and everything else that determines the prompt and the output's form.

    `messages` have the keys that chat templates read: `role`, `content` (text or parts), and, depending on the role,
    `tool_calls`, `tool_call_id`, `name`, `reasoning`. Tool call arguments in the history stay as the client sent them.

    Renderers and templates rely on this shape, so a conversation without it cannot be made, whatever its surface let
    pass.

    Raises:
        InvalidRequest: `param` names the message's or the tool's field.
    """

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] | None = None
    """`{"type": "function", "function": {"name", "description", "parameters", "strict"?}}`; None if not sent."""
    tool_choice: ToolChoice | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    template: str | None = None
    """The request's own chat template; used only if the model's settings trust it."""
    template_arguments: JsonObject = field(default_factory=dict)
    """The request's `chat_template_kwargs`; they override the model's defaults when rendering."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: tuple[JsonObject, ...] | None = None
    reasoning_effort: str | None = None
    response_format: JsonObject | None = None
    """`{"type": "text" | "json_object" | "json_schema" | "structural_tag", ...}`."""
    structured_outputs: JsonObject | None = None
    """The engine's own constraint: one of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`."""
    sampling: JsonObject = field(default_factory=dict)
    """The sampling parameters that were sent, by the engine's names; `max_tokens` is `max_output_tokens` instead."""
    max_output_tokens: int | None = None
    max_output_tokens_param: str = "max_tokens"
    """The client's name for `max_output_tokens`, for error messages."""
    tokenization: Tokenization = Tokenization()
    options: JsonObject = field(default_factory=dict)
    """Fields that go to the engine unchanged: `stream`, `stream_options`, `return_token_ids`, `cache_salt`, `priority`,
    `kv_transfer_params`, `ec_transfer_params`."""

    def __post_init__(self) -> None:
        for place, message in enumerate(self.messages):
            _check_message(message, f"messages.{place}")
        for place, tool in enumerate(self.tools or ()):
            _check_function(tool, f"tools.{place}")
            parameters = tool["function"].get("parameters")
            _require(
                parameters is None or isinstance(parameters, dict), f"tools.{place}.function.parameters", "an object"
            )


def _check_message(message: Any, where: str) -> None:
    _require(isinstance(message, dict), where, "an object")
    _require(isinstance(message.get("role"), str), f"{where}.role", "a string")
    content = message.get("content")
    if not isinstance(content, str | None):
        _require(isinstance(content, list), f"{where}.content", "a string or a list of parts")
        for place, part in enumerate(content):
            _require(isinstance(part, str | dict), f"{where}.content.{place}", "a string or an object")
    calls = message.get("tool_calls")
    _require(isinstance(calls, list | tuple | None), f"{where}.tool_calls", "a list")
    for place, call in enumerate(calls or ()):
        _check_function(call, f"{where}.tool_calls.{place}")


def _check_function(value: Any, where: str) -> None:
    """A tool's definition, or a call: `{"function": {"name": ...}}`."""
    _require(isinstance(value, dict), where, "an object")
    function = value.get("function")
    _require(isinstance(function, dict), f"{where}.function", "an object")
    _require(isinstance(function.get("name"), str), f"{where}.function.name", "a string")


def _require(right: bool, where: str, what: str) -> None:
    if not right:
        raise InvalidRequest(f"{where} must be {what}", param=where)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a plain completion: text, or token ids to use as they are."""

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
    """Return the conversation as JSON without the keys that have default values. Values are shared, not copied."""
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
    """Restore a conversation from `conversation_to_json`."""
    values = dict(data)
    for name in ("messages", "tools", "documents"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    if "tokenization" in values:
        values["tokenization"] = Tokenization(**values["tokenization"])
    return Conversation(**values)


def count_tool_calls(conversation: Conversation) -> int:
    """Return the number of tool calls in the history; formats that number their calls continue from it."""
    return sum(len(message.get("tool_calls") or ()) for message in conversation.messages)
