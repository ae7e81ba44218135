"""Tokens in, tokens out: the request that every engine understands, and its token chunks.

Wire sample of `POST /inference/v1/generate` (vLLM 0.33, `entrypoints/scale_out/token_in_token_out/protocol.py`):

    {"request_id": "job_1", "token_ids": [1, 4093, 198], "sampling_params": {"temperature": 0, "max_tokens": 16},
     "model": "smollm2", "stream": true}
    data: {"request_id": "generate-tokens-job_1", "choices": [{"index": 0, "token_ids": [57, 3355],
           "logprobs": null, "finish_reason": null}]}
    data: [DONE]
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator, model_validator

from tasks.protocol.base import JsonObject, WireModel

TokenIds = tuple[int, ...]


class StreamOptions(WireModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerateRequest(WireModel):
    """Prompt token ids and sampling parameters for an engine.

    `sampling_params` holds only the keys that were sent: without `max_tokens` the engine applies its own default,
    which a default here would silently replace.
    """

    request_id: str = ""
    token_ids: list[int] = Field(min_length=1)
    token_offsets: list[tuple[int, int]] | None = None
    features: JsonObject | None = None
    content_parts: list[JsonObject] | None = None
    sampling_params: JsonObject = Field(default_factory=dict)
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: JsonObject | None = None
    return_token_ids: bool | None = None
    output_mode: str = "tokens"
    parse_context: JsonObject | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    priority: int = 0
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None

    @field_validator("token_ids")
    @classmethod
    def _no_negative_ids(cls, value: list[int]) -> list[int]:
        if any(token_id < 0 for token_id in value):
            raise ValueError("token_ids must not contain negative values")
        return value

    @model_validator(mode="after")
    def _media_once(self) -> GenerateRequest:
        if self.content_parts and self.features:
            raise ValueError("content_parts and features are mutually exclusive")
        return self


@dataclass(frozen=True, slots=True)
class CandidateLogprob:
    """One candidate by token id: natural-log probability (never below -9999.0) and vocabulary rank from 1."""

    token_id: int
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The sampled token at one position, and the candidates in the engine's order (the sampled token first)."""

    sampled: CandidateLogprob
    top: tuple[CandidateLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """The next tokens of one choice, as an engine produced them.

    A chunk may have a finish reason and no tokens. `logprobs`, if requested, has one entry for each token.
    `finish_reason` is the engine's own: stop, length, abort, error or repetition. `prompt_tokens` and
    `cached_tokens` arrive with the choice's last chunk at the latest.
    """

    index: int = 0
    token_ids: TokenIds = ()
    logprobs: tuple[PositionLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    extra: JsonObject | None = None
    """Further fields of the engine's answer: prompt_logprobs, metrics, kv_transfer_params."""


def chunk_to_json(chunk: TokenChunk) -> JsonObject:
    """Return the chunk as JSON, with one-letter keys and without the keys that have default values."""
    out: JsonObject = {"t": list(chunk.token_ids)}
    if chunk.index:
        out["i"] = chunk.index
    if chunk.logprobs is not None:
        out["l"] = [
            [[c.token_id, c.logprob, c.rank] for c in (position.sampled, *position.top)] for position in chunk.logprobs
        ]
    for key, value in (
        ("f", chunk.finish_reason),
        ("s", chunk.stop_reason),
        ("p", chunk.prompt_tokens),
        ("c", chunk.cached_tokens),
        ("x", chunk.extra),
    ):
        if value is not None:
            out[key] = value
    return out


def chunk_from_json(data: dict[str, Any]) -> TokenChunk:
    """Restore a chunk from `chunk_to_json`."""
    logprobs = None
    if "l" in data:
        rows = [[CandidateLogprob(*candidate) for candidate in row] for row in data["l"]]
        logprobs = tuple(PositionLogprobs(row[0], tuple(row[1:])) for row in rows)
    return TokenChunk(
        index=data.get("i", 0),
        token_ids=tuple(data["t"]),
        logprobs=logprobs,
        finish_reason=data.get("f"),
        stop_reason=data.get("s"),
        prompt_tokens=data.get("p"),
        cached_tokens=data.get("c"),
        extra=data.get("x"),
    )


def pack_token_ids(token_ids: TokenIds | list[int]) -> bytes:
    """Pack token ids as little-endian int32, which takes a tenth of JSON's time and less space."""
    packed = array("i", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_token_ids(data: bytes) -> list[int]:
    """Restore token ids from `pack_token_ids`."""
    unpacked = array("i")
    unpacked.frombytes(data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()
