"""OpenAI's Chat Completions: the request as clients send it, and the objects of its answer.

    POST /v1/chat/completions
    {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "stream": true}
    data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "smollm2", "choices":
           [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]}
    data: [DONE]

The request accepts every field of vLLM 0.33, with vLLM's bounds. A validation error names the wrong field in its `loc`,
or in `param` of its context.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NotRequired, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from tasks.protocol.base import (
    CONSTRAINTS,
    INT64,
    MAX_BAD_WORDS,
    MAX_SALT_CHARS,
    MAX_STOPS,
    JsonObject,
    ReasoningEffort,
    WholeNumber,
    WireModel,
    refuse,
)
from tasks.protocol.tokens import StreamOptions

MAX_CHOICES = 16_384


class FunctionDefinition(WireModel):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(WireModel):
    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None


class NamedFunction(WireModel):
    name: str = Field(min_length=1)


class NamedToolChoice(WireModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class ChatMessageParam(WireModel):
    """One message of the request. The chat template interprets roles and content parts."""

    role: str
    content: str | list[str | JsonObject] | None = None
    name: str | None = None
    tool_calls: list[JsonObject] | None = None
    tool_call_id: str | None = None
    reasoning: str | JsonObject | None = None

    @model_validator(mode="before")
    @classmethod
    def _reasoning_by_its_old_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and "reasoning_content" in data:
            data = dict(data)
            old = data.pop("reasoning_content")
            if old is not None and data.get("reasoning") is None:
                data["reasoning"] = old
        return data


class ChatCompletionRequest(WireModel):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessageParam] = Field(min_length=1)
    model: str | None = None
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: WholeNumber | None = Field(0, ge=-1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(1, ge=1, le=MAX_CHOICES)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    response_format: JsonObject | None = None
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: str | list[str] | None = Field(default_factory=list)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = "none"
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: WholeNumber | None = Field(None, ge=-1)
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    user: str | None = None

    use_beam_search: bool = False
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(None, ge=-1, lt=INT64)
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: WholeNumber | None = Field(None, ge=-1)
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list, max_length=MAX_BAD_WORDS)

    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None
    mm_processor_kwargs: JsonObject | None = None
    structured_outputs: JsonObject | None = None
    priority: int = Field(0, ge=-INT64, lt=INT64)
    request_id: str | None = None
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    routed_experts_prompt_start: int = Field(0, ge=0)
    return_token_offsets: bool | None = False
    return_prompt_text: bool | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_CHARS)
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    repetition_detection: JsonObject | None = None
    stream_interval: int | None = Field(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _tools_mean_auto(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("tools") and "tool_choice" not in data:
            data = {**data, "tool_choice": "auto"}
        return data

    @field_validator("stop")
    @classmethod
    def _few_real_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        stops = [stop] if isinstance(stop, str) else stop or []
        if len(stops) > MAX_STOPS:
            raise PydanticCustomError("too_long", "At most {count} stop strings are allowed", {"count": MAX_STOPS})
        if any(not text for text in stops):
            raise PydanticCustomError("empty", "A stop string must not be empty")
        return stop

    @field_validator("bad_words")
    @classmethod
    def _no_empty_word(cls, words: list[str]) -> list[str]:
        if any(not word for word in words):
            raise PydanticCustomError("empty", "A bad word must not be empty")
        return words

    @field_validator("tools")
    @classmethod
    def _some_tools(cls, tools: list[Tool] | None) -> list[Tool] | None:
        if tools == []:
            raise PydanticCustomError("empty", "Give at least one tool, or omit the field")
        return tools

    @field_validator("temperature", "top_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "min_p")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise PydanticCustomError("finite", "Input should be a finite number")
        return value

    @field_validator("cache_salt")
    @classmethod
    def _plain_salt(cls, salt: str | None) -> str | None:
        if salt is not None and any(char in "@/\\\0" for char in salt):
            raise PydanticCustomError("salt", "The salt must not contain @, a slash, a backslash or NUL")
        return salt

    @field_validator("response_format")
    @classmethod
    def _known_format(cls, value: JsonObject | None) -> JsonObject | None:
        if value is None:
            return None
        kind = value.get("type")
        if kind not in ("text", "json_object", "json_schema", "structural_tag"):
            raise refuse("response_format.type", f"{kind!r} is not text, json_object, json_schema or structural_tag")
        if kind == "json_schema":
            schema = value.get("json_schema")
            if not isinstance(schema, dict):
                raise refuse(
                    "response_format.json_schema", "A response format of type json_schema needs its json_schema"
                )
            if not isinstance(schema.get("name"), str):
                raise refuse("response_format.json_schema.name", "The JSON schema needs a name")
        if kind == "structural_tag" and "format" not in value and not {"structures", "triggers"} <= value.keys():
            raise refuse("response_format", "A structural tag needs a format, or structures and triggers")
        return value

    @field_validator("structured_outputs")
    @classmethod
    def _one_constraint(cls, value: JsonObject | None) -> JsonObject | None:
        if value is None:
            return None
        given = [name for name in CONSTRAINTS if value.get(name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "one_constraint", "Give one of {names}", {"names": ", ".join(CONSTRAINTS), "given": given}
            )
        return value

    @model_validator(mode="after")
    def _tool_choice_fits(self) -> Self:
        if self.tool_choice in (None, "none"):
            return self
        if self.tools is None:
            raise refuse("tool_choice", "tool_choice needs tools: send tools, or omit tool_choice")
        if isinstance(self.tool_choice, NamedToolChoice):
            name = self.tool_choice.function.name
            if all(tool.function.name != name for tool in self.tools):
                raise refuse("tool_choice", f"tool_choice names {name!r}, which is not in tools")
            if self.structured_outputs is not None:
                raise refuse(
                    "structured_outputs", "structured_outputs cannot be combined with a tool_choice that names a tool"
                )
        return self

    @model_validator(mode="after")
    def _logprobs_fit(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs", "top_logprobs needs logprobs to be true")
        if self.logprob_token_ids and not self.logprobs:
            raise refuse("logprob_token_ids", "logprob_token_ids needs logprobs to be true")
        if self.stream and self.prompt_logprobs:
            raise refuse("prompt_logprobs", "prompt_logprobs needs stream to be false")
        return self

    @model_validator(mode="after")
    def _the_rest_fits(self) -> Self:
        if self.stream_options is not None and self.stream_options.model_fields_set and not self.stream:
            raise refuse("stream_options", "stream_options needs stream to be true")
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        if limit is not None and self.min_tokens > limit:
            raise refuse("min_tokens", f"min_tokens must not exceed the request's limit of {limit} output tokens")
        if self.continue_final_message and self.add_generation_prompt:
            raise refuse("continue_final_message", "continue_final_message needs add_generation_prompt to be false")
        if self.use_beam_search:
            raise refuse("use_beam_search", "Beam search is not supported")
        return self

    @property
    def sent(self) -> set[str]:
        """The names of the fields that the client sent."""
        return self.model_fields_set

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whether one or a list was sent."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def max_output_tokens(self) -> int | None:
        """The client's limit on output tokens: `max_completion_tokens`, or else the older `max_tokens`."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class FunctionCall(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class FunctionCallDelta(TypedDict):
    name: NotRequired[str]
    arguments: NotRequired[str]


class ToolCallDelta(TypedDict):
    """The first delta of a call has `id`, `type` and the function's name; later ones have only arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionCallDelta


class ChatMessage(TypedDict):
    role: str
    content: str | None
    refusal: str | None
    annotations: None
    audio: None
    function_call: None
    tool_calls: NotRequired[list[ToolCall]]
    reasoning: str | None


class ChatDelta(TypedDict):
    """The next part of one choice's message; absent keys add nothing."""

    role: NotRequired[str]
    content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatPosition(ChatLogprob):
    top_logprobs: list[ChatLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatPosition] | None


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: NotRequired[int | str | None]
    token_ids: NotRequired[list[int] | None]
    weight_versions: NotRequired[None]


class ChatChunk(TypedDict):
    """One chunk of a streamed answer; the usage chunk at the end has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[JsonObject]
    system_fingerprint: NotRequired[str]
    prompt_token_ids: NotRequired[list[int] | None]
    prompt_text: NotRequired[str | None]
    kv_transfer_params: NotRequired[JsonObject | None]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    routed_experts: None
    weight_versions: None


class ChatCompletion(TypedDict):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None
    system_fingerprint: str | None
    usage: JsonObject
    prompt_logprobs: list[Any] | None
    prompt_token_ids: list[int] | None
    prompt_text: str | None
    kv_transfer_params: JsonObject | None
    ec_transfer_params: JsonObject | None
    metrics: JsonObject | None
