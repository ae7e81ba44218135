"""OpenAI's Responses API: the request as clients send it, with its whole history inline.

POST /v1/responses
{"model": "qwen3-8b", "instructions": "Be kind.", "max_output_tokens": 256,
 "input": [{"role": "user", "content": "Weather?"},
           {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
           {"type": "function_call_output", "call_id": "c1", "output": "12 °C"}],
 "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]}
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.protocol.base import INT64, MAX_SALT_CHARS, JsonObject, ReasoningEffort, WholeNumber, WireModel, refuse


class Reasoning(WireModel):
    effort: ReasoningEffort | None = None
    summary: str | None = None


class TextConfig(WireModel):
    """`format` is `{"type": "text" | "json_object" | "json_schema", "name", "schema", "strict"}`."""

    format: JsonObject | None = None
    verbosity: str | None = None


class ResponsesRequest(WireModel):
    """The body of `POST /v1/responses`; the surface validates the items of `input` and `tools`."""

    input: str | list[JsonObject]
    model: str | None = None
    background: bool | None = False
    include: list[str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = None
    metadata: JsonObject | None = None
    logit_bias: dict[str, float] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: JsonObject | None = None
    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = Field(None, ge=0, le=2)
    text: TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | JsonObject = "auto"
    tools: list[JsonObject] = Field(default_factory=list)
    top_logprobs: WholeNumber | None = Field(0, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonObject | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: str | None = None

    watermarking: bool | None = None
    request_id: str | None = None
    priority: int = Field(0, ge=-INT64, lt=INT64)
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_CHARS)
    structured_outputs: JsonObject | None = None
    repetition_penalty: float | None = Field(None, gt=0)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: str | list[str] | None = Field(default_factory=list)
    stop_token_ids: list[int] | None = Field(default_factory=list)
    ignore_eos: bool = False
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.previous_response_id is not None:
            raise refuse("previous_response_id", "Earlier responses are not stored: send the whole history as input")
        if self.prompt is not None:
            raise refuse("prompt", "Stored prompts are not supported: send the prompt as input")
        if self.background and not self.store:
            raise refuse("background", "background needs store to be true")
        if self.structured_outputs is not None and self.text is not None and self.text.format is not None:
            raise refuse("structured_outputs", "structured_outputs cannot be combined with text.format")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whether one or a list was sent."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
