"""What engines answer on the wire: token ids, for clients of `/inference/v1/generate` and for derendering.

Wire samples (vLLM 0.33, `entrypoints/scale_out/token_in_token_out/protocol.py`), whole and one event of a stream:

    {"request_id": "generate-tokens-chatcmpl-1", "model": "m", "created": 1, "output_mode": "tokens",
     "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
     "choices": [{"index": 0, "token_ids": [57, 2], "finish_reason": "stop", "stop_reason": null,
                  "logprobs": {"content": [{"token_id": 57, "logprob": -0.1, "rank": 1, "top_logprobs": [...]}, ...]}}]}
    data: {"request_id": "generate-tokens-chatcmpl-1", "output_mode": "tokens", "usage": null,
           "choices": [{"index": 0, "token_ids": [57], "finish_reason": null, "stop_reason": null, "logprobs": null}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from tasks.protocol.base import JsonObject, WireModel
from tasks.protocol.generate import CandidateLogprob, PositionLogprobs, TokenChunk

REQUEST_PREFIX = "generate-tokens-"
"""Stands before the id of whoever asked, in answers of the generate route."""
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

TokenId = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, ge=0)]


class Candidate(TypedDict):
    """One candidate at one position."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    token_id: TokenId
    logprob: Annotated[float, Field(strict=True)]
    rank: NotRequired[Annotated[int, Field(strict=True)] | None]


class Position(Candidate):
    """The sampled token of one position; it comes first among `top_logprobs`."""

    top_logprobs: NotRequired[list[Candidate]]


class TokenLogprobs(TypedDict):
    content: NotRequired[list[Position] | None]


class TokensChoice(WireModel):
    """One choice, whole or the next part of it."""

    index: Count
    token_ids: list[TokenId] | None = None
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: Annotated[int, Field(strict=True)] | str | None = None


class TokensUsage(WireModel):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = 0
    total_tokens: Count = 0
    prompt_tokens_details: JsonObject | None = None


class _TokensBase(WireModel):
    """Only token answers are read: texts are decoded already, and cut at their stop strings."""

    request_id: str = ""
    output_mode: Literal["tokens"] = "tokens"
    choices: list[TokensChoice]
    usage: TokensUsage | None = None
    prompt_token_ids: list[TokenId] | None = None
    metrics: JsonObject | None = None


class TokensResponse(_TokensBase):
    """A whole answer."""

    model: str | None = None
    created: int | None = None
    prompt_logprobs: list[JsonObject | None] | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None


class TokensStreamResponse(_TokensBase):
    """One event of a stream; the last one may have usage alone."""


def present(values: Mapping[str, Any], names: Iterable[str]) -> JsonObject:
    """Those of the named values that are there."""
    return {name: values[name] for name in names if values.get(name) is not None}


def prompt_counts(answer: Mapping[str, Any], prompt_tokens: int) -> tuple[int, int | None]:
    """The prompt's tokens, and how many of them were cached, if the answer says so."""
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
    """A choice of an answer that is known to be sound; `extra` goes with its own."""
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
