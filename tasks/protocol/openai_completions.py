"""OpenAI's older Completions: prompts as text or token ids, without roles.

POST /v1/completions
{"model": "smollm2", "prompt": ["Once upon", [1, 2, 3]], "max_tokens": 16}
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tasks.protocol.base import (
    CONSTRAINTS,
    INT64,
    MAX_BAD_WORDS,
    MAX_SALT_CHARS,
    MAX_STOPS,
    JsonObject,
    WholeNumber,
    WireModel,
    refuse,
)
from tasks.protocol.tokens import StreamOptions

DEFAULT_MAX_TOKENS = 16


def _one_kind(value: Any) -> Any:
    """Refuse a list that is empty or mixes texts, token ids and lists of token ids."""
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        if not value or len(kinds) > 1 or kinds - {str, int, list}:
            raise PydanticCustomError(
                "prompt", "Input should be a text, a list of token ids, or a list of one of these"
            )
    return value


class CompletionRequest(WireModel):
    """The body of `POST /v1/completions`, with every field of vLLM 0.33 except embeddings."""

    model: str | None = None
    prompt: Annotated[
        str | list[Annotated[int, Field(ge=0)]] | list[str] | list[list[Annotated[int, Field(ge=0)]]] | None,
        BeforeValidator(_one_kind),
    ] = None
    echo: bool | None = False
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    logprobs: WholeNumber | None = Field(None, ge=-1)
    max_tokens: int | None = Field(DEFAULT_MAX_TOKENS, ge=0)
    n: int = Field(1, ge=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: str | list[str] | None = Field(default_factory=list)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
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
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: WholeNumber | None = Field(None, ge=-1)
    logprob_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list, max_length=MAX_BAD_WORDS)

    add_special_tokens: bool = True
    response_format: JsonObject | None = None
    structured_outputs: JsonObject | None = None
    priority: int = Field(0, ge=-INT64, lt=INT64)
    request_id: str | None = None
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    routed_experts_prompt_start: int = Field(0, ge=0)
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_CHARS)
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    repetition_detection: JsonObject | None = None
    thinking_token_budget: WholeNumber | None = Field(None, ge=-1)
    stream_interval: int | None = Field(None, ge=1)

    @field_validator("max_tokens")
    @classmethod
    def _some_limit(cls, value: int | None) -> int:
        return DEFAULT_MAX_TOKENS if value is None else value

    @field_validator("stop")
    @classmethod
    def _few_real_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        stops = [stop] if isinstance(stop, str) else stop or []
        if len(stops) > MAX_STOPS:
            raise PydanticCustomError("too_long", "At most {count} stop strings are allowed", {"count": MAX_STOPS})
        if any(not text for text in stops):
            raise PydanticCustomError("empty", "A stop string must not be empty")
        return stop

    @field_validator("structured_outputs")
    @classmethod
    def _one_constraint(cls, value: JsonObject | None) -> JsonObject | None:
        if value is not None and sum(value.get(name) is not None for name in CONSTRAINTS) != 1:
            raise PydanticCustomError("one_constraint", "Give one of {names}", {"names": ", ".join(CONSTRAINTS)})
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.prompt is None or self.prompt == "" or self.prompt == []:
            raise refuse("prompt", "The prompt is missing or empty")
        if self.stream_options is not None and self.stream_options.model_fields_set and not self.stream:
            raise refuse("stream_options", "stream_options needs stream to be true")
        if self.logprob_token_ids and self.logprobs is None:
            raise refuse("logprob_token_ids", "logprob_token_ids needs logprobs")
        if self.stream and self.prompt_logprobs:
            raise refuse("prompt_logprobs", "prompt_logprobs needs stream to be false")
        if self.use_beam_search:
            raise refuse("use_beam_search", "Beam search is not supported")
        if self.suffix is not None:
            raise refuse("suffix", "suffix is not supported: omit it")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whether one or a list was sent."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
