"""vLLM's `POST /inference/v1/generate`: the body that clients send, and the token answers of engines.

Both are those of vLLM 0.33 (`entrypoints/scale_out/token_in_token_out/protocol.py`). A request, as render routes return
it:

    {"model": "m", "token_ids": [151644, 872], "sampling_params": {"temperature": 0, "max_tokens": 16, "stop": ["\\n"]},
     "output_mode": "derender", "parse_context": {"tools": [...], "tool_choice": "auto"}, "stream": true}

An answer, whole, and one event of a streamed answer:

    {"request_id": "generate-tokens-chatcmpl-1", "model": "m", "created": 1, "output_mode": "tokens",
     "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
     "choices": [{"index": 0, "token_ids": [57, 2], "finish_reason": "stop", "stop_reason": null,
                  "logprobs": {"content": [{"token_id": 57, "logprob": -0.1, "rank": 1, "top_logprobs": [...]}, ...]}}]}
    data: {"request_id": "generate-tokens-chatcmpl-1", "output_mode": "tokens", "usage": null,
           "choices": [{"index": 0, "token_ids": [57], "finish_reason": null, "stop_reason": null, "logprobs": null}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator
from typing_extensions import TypedDict

from tasks.errors import InvalidRequest
from tasks.protocol.base import INT64, MAX_SALT_CHARS, JsonObject, WireModel, refuse
from tasks.protocol.openai_chat import NamedToolChoice, Tool
from tasks.protocol.tokens import CandidateLogprob, GenerateRequest, PositionLogprobs, TokenChunk

# ---- the request --------------------------------------------------------------------------------

OutputMode = Literal["tokens", "text", "derender"]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""The ledger stores prompts as int32."""


class SamplingParams(TypedDict, total=False):
    """The engine's sampling parameters. Those listed here are checked; others pass unchecked.

    Keys that were not sent stay absent: without `max_tokens`, the engine applies its own default.
    """

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    n: Annotated[int, Field(ge=1)] | None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None
    top_p: Annotated[float, Field(gt=0, le=1)] | None
    min_p: Annotated[float, Field(ge=0, le=1)] | None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    max_tokens: Annotated[int, Field(ge=1)] | None
    min_tokens: Annotated[int, Field(ge=0)] | None
    stop: Annotated[str, Field(min_length=1)] | list[Annotated[str, Field(min_length=1)]] | None
    stop_token_ids: list[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    detokenize: bool | None
    skip_special_tokens: bool | None
    spaces_between_special_tokens: bool | None
    logprobs: Annotated[int, Field(ge=-1)] | None
    prompt_logprobs: Annotated[int, Field(ge=-1)] | None
    logprob_token_ids: list[int] | None
    prompt_logprob_token_ids: list[int] | None


class ParseContext(WireModel):
    """What the parser needs to know of the chat whose answer it reads; render routes return it."""

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    history_tool_call_cnt: int = Field(0, ge=0)

    @property
    def unmet_choice(self) -> str | None:
        """The function that `tool_choice` names, if it is not among the tools."""
        if not isinstance(self.tool_choice, NamedToolChoice):
            return None
        name = self.tool_choice.function.name
        return None if any(tool.function.name == name for tool in self.tools or ()) else name


class PlaceholderRange(WireModel):
    """The place of one medium in the prompt, in tokens."""

    offset: int = Field(ge=0)
    length: int = Field(gt=0)


class Features(WireModel):
    """Preprocessed media: lists by modality, with one entry for each medium."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None

    @model_validator(mode="after")
    def _is_parallel(self) -> Features:
        hashes = {modality: len(items) for modality, items in self.mm_hashes.items()}
        for name in ("mm_placeholders", "kwargs_data", "mm_metadata"):
            given: dict[str, list[Any]] | None = getattr(self, name)
            if given is not None and {modality: len(items) for modality, items in given.items()} != hashes:
                raise refuse(f"features.{name}", f"{name} must have one entry for each of mm_hashes")
        if any(one.offset + one.length > next_.offset for one, next_ in pairwise(self.ranges)):
            raise refuse("features.mm_placeholders", "mm_placeholders must not overlap")
        return self

    @property
    def ranges(self) -> list[PlaceholderRange]:
        """All placeholders, in the order of the prompt."""
        return sorted((one for some in self.mm_placeholders.values() for one in some), key=lambda one: one.offset)

    @property
    def has_metadata_alone(self) -> bool:
        """Whether a medium has metadata but no data."""
        for modality, described in (self.mm_metadata or {}).items():
            given = (self.kwargs_data or {}).get(modality) or [None] * len(described)
            if any(one is not None and data is None for one, data in zip(described, given, strict=True)):
                return True
        return False


class ParserArguments(WireModel):
    """Arguments for the engine's own reasoning parser."""

    model_config = ConfigDict(extra="forbid")

    chat_template_kwargs: JsonObject = Field(default_factory=dict)


class GenerateBody(GenerateRequest):
    """The body of `POST /inference/v1/generate`."""

    request_id: str = Field("", max_length=512)
    token_ids: list[TokenId] = Field(min_length=1)
    # Narrower types than in GenerateRequest, because the API checks what clients send.
    sampling_params: SamplingParams  # type: ignore[assignment]
    features: Features | None = None  # type: ignore[assignment]
    output_mode: OutputMode = "tokens"
    parse_context: ParseContext | None = None  # type: ignore[assignment]
    reasoning_parser_kwargs: ParserArguments | None = None  # type: ignore[assignment]
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_CHARS)
    priority: int = Field(0, ge=-INT64, lt=INT64)

    @field_validator("cache_salt")
    @classmethod
    def _plain_salt(cls, salt: str | None) -> str | None:
        if salt is not None and any(char in "@/\\\0" for char in salt):
            raise refuse("cache_salt", "cache_salt must not contain @, a slash, a backslash or NUL")
        return salt

    @model_validator(mode="after")
    def _can_be_answered(self) -> GenerateBody:
        params, context, features = self.sampling_params, self.parse_context, self.features
        detokenized = params.get("detokenize") is not False
        if self.output_mode != "tokens" and not detokenized:
            raise refuse("sampling_params.detokenize", f"output_mode {self.output_mode!r} needs detokenize to be true")
        if self.stops and not detokenized:
            raise refuse("sampling_params.stop", "stop strings need detokenize to be true")
        if self.stream and params.get("prompt_logprob_token_ids") is not None:
            raise refuse(
                "sampling_params.prompt_logprob_token_ids",
                "prompt_logprob_token_ids needs stream to be false",
            )
        if self.output_mode == "derender" and context is not None and context.model_extra:
            unknown = ", ".join(sorted(context.model_extra))
            raise refuse("parse_context", f"parse_context has unknown fields: {unknown}")
        if features is not None:
            if any(one.offset + one.length > len(self.token_ids) for one in features.ranges):
                raise refuse("features.mm_placeholders", "mm_placeholders must lie within token_ids")
            if features.has_metadata_alone and not self.ec_transfer_params:
                raise refuse("features.mm_metadata", "media with metadata but no kwargs_data need ec_transfer_params")
        return self

    def require_parse_context(self) -> ParseContext:
        """Return the parse context.

        Raises:
            InvalidRequest: it is missing, or its `tool_choice` names an unknown tool.
        """
        if self.parse_context is None:
            raise InvalidRequest(
                "output_mode 'derender' needs a parse_context, because the model has a tool or reasoning parser: "
                "send the parse_context that the render route returned",
                param="parse_context",
            )
        if name := self.parse_context.unmet_choice:
            raise InvalidRequest(
                f"tool_choice names {name!r}, which is not in tools", param="parse_context.tool_choice"
            )
        return self.parse_context

    @property
    def n(self) -> int:
        """The number of choices."""
        return self.sampling_params.get("n") or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whether one or a list was sent."""
        stop = self.sampling_params.get("stop")
        return (stop,) if isinstance(stop, str) else tuple(stop or ())


# ---- the answer ---------------------------------------------------------------------------------

REQUEST_PREFIX = "generate-tokens-"
"""Comes before the request's id in answers of the generate route."""
EXTRA_OF_CHOICE = ("routed_experts", "sampling_mask", "weight_versions")
EXTRA_OF_ANSWER = (
    "prompt_logprobs",
    "prompt_token_id_logprobs",
    "prompt_token_ids",
    "mm_placeholders",
    "metrics",
    "kv_transfer_params",
    "ec_transfer_params",
)

AnsweredId = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, ge=0)]


class Candidate(TypedDict):
    """One candidate at one position."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    token_id: AnsweredId
    logprob: Annotated[float, Field(strict=True)]
    rank: NotRequired[Annotated[int, Field(strict=True)] | None]


class Position(Candidate):
    """The sampled token at one position; it also comes first in `top_logprobs`."""

    top_logprobs: NotRequired[list[Candidate]]


class TokenLogprobs(TypedDict):
    content: NotRequired[list[Position] | None]


class TokensChoice(WireModel):
    """One choice: the whole of it, or its next part."""

    index: Count
    token_ids: list[AnsweredId] | None = None
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: Annotated[int, Field(strict=True)] | str | None = None


class TokensUsage(WireModel):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = 0
    total_tokens: Count = 0
    prompt_tokens_details: JsonObject | None = None


class _TokensBase(WireModel):
    """Fields of whole and streamed answers. Only token answers are accepted: text answers are already derendered."""

    request_id: str = ""
    output_mode: Literal["tokens"] = "tokens"
    choices: list[TokensChoice]
    usage: TokensUsage | None = None
    prompt_token_ids: list[AnsweredId] | None = None
    metrics: JsonObject | None = None


class TokensResponse(_TokensBase):
    """A whole answer."""

    model: str | None = None
    created: int | None = None
    prompt_logprobs: list[JsonObject | None] | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None


class TokensStreamResponse(_TokensBase):
    """One event of a stream; the last one may have only usage."""


def answer_id(job_id: str, request: Mapping[str, Any]) -> str:
    """Return the `request_id` of an answer: the prefix, and the client's own request id or else the job's id."""
    return f"{REQUEST_PREFIX}{request.get('request_id') or job_id}"


def present(values: Mapping[str, Any], names: Iterable[str]) -> JsonObject:
    """Return the named values that are present and not None."""
    return {name: values[name] for name in names if values.get(name) is not None}


def prompt_counts(answer: Mapping[str, Any], prompt_tokens: int) -> tuple[int, int | None]:
    """Return the number of prompt tokens (`prompt_tokens` if the answer has none), and how many of them were cached."""
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return usage.get("prompt_tokens", prompt_tokens), details.get("cached_tokens")


def chunk_from_choice(
    choice: Mapping[str, Any],
    *,
    index: int | None = None,
    extra: JsonObject | None = None,
    prompt_tokens: int | None = None,
    cached_tokens: int | None = None,
) -> TokenChunk:
    """Convert a choice of a validated answer to a TokenChunk; `extra` is merged with the choice's own extra fields."""
    extra = {**(extra or {}), **present(choice, EXTRA_OF_CHOICE)}
    content = (choice.get("logprobs") or {}).get("content")
    return TokenChunk(
        index=choice["index"] if index is None else index,
        token_ids=tuple(choice.get("token_ids") or ()),
        logprobs=None if content is None else tuple(_position(entry) for entry in content),
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        extra=extra or None,
    )


def _position(entry: Mapping[str, Any]) -> PositionLogprobs:
    return PositionLogprobs(_candidate(entry), tuple(_candidate(top) for top in entry.get("top_logprobs") or ()))


def _candidate(entry: Mapping[str, Any]) -> CandidateLogprob:
    return CandidateLogprob(entry["token_id"], entry["logprob"], entry.get("rank"))
