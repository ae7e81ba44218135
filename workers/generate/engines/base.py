"""The engine interface: token ids in, token chunks out.

    async with aclosing(engine.generate(request, stream=True)) as chunks:
        async for chunk in chunks:      # TokenChunk(index=0, token_ids=(504, 3575), ...)
            ...

Closing the generator, or cancelling the task that reads it, aborts the request at the engine, which then generates
nothing more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from tasks.errors import EngineFailed, InvalidRequest
from tasks.protocol.base import JsonObject
from tasks.protocol.tokens import GenerateRequest, TokenChunk

FINISH_REASONS = frozenset({"stop", "length", "abort", "error", "repetition"})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. The derender stage does the rest if it can; otherwise the request is refused."""

    stops_on_strings: bool = True
    """If False, `stop` is not sent: the derender stage finds stop strings, and the request must then be aborted."""
    stops_on_token_ids: bool = True
    choices: bool = True
    """`n` above 1 in one request."""
    logprobs: bool = True
    prompt_logprobs: bool = True
    priority: bool = True
    structured_outputs: frozenset[str] = frozenset()
    """The keys of `sampling_params.structured_outputs` that are enforced."""
    media: bool = False
    """`features` and `content_parts`."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether at least one of an engine's servers answers, why not, and each server's state by its URL."""

    ok: bool
    detail: str = ""
    servers: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """What every engine implements; `tests/contract/test_engine.py` tests how each must behave."""

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(self, request: GenerateRequest, *, stream: bool) -> AsyncGenerator[TokenChunk, None]:
        """Yields the request's chunks, those of each choice in order; `stream=False` asks for as few as possible.

        Every choice ends with a chunk that has a finish reason; a stream that ends without one raises.

        Raises:
            EngineUnavailable: no server answers (refused, 503, all down); `retry_after_s` says when to try again.
            EngineRefused: the engine says that the request is wrong (4xx), with its message and `param`.
            EngineFailed: the engine failed (5xx), or the stream broke or ended before every choice had finished.
            InvalidRequest: the request needs something that this kind of engine cannot do; `param` names it.
        """
        ...

    async def health(self) -> Health: ...

    async def close(self) -> None:
        """Closes all connections, which aborts the requests in flight."""
        ...


def choice_count(request: GenerateRequest) -> int:
    """The number of choices that the request wants: its `n`, or 1.

    Raises:
        InvalidRequest: `n` is not a positive integer.
    """
    n = request.sampling_params.get("n")
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise InvalidRequest("n must be a positive integer", param="n")
    return n


async def ensure_whole(chunks: AsyncGenerator[TokenChunk, None], choices: int) -> AsyncGenerator[TokenChunk, None]:
    """Passes chunks on; raises `EngineFailed` unless each of the `choices` choices finishes exactly once."""
    finished: set[int] = set()
    async with aclosing(chunks):
        async for chunk in chunks:
            if not 0 <= chunk.index < choices:
                raise EngineFailed(f"the engine sent choice {chunk.index} of {choices}, counted from 0")
            if chunk.index in finished:
                raise EngineFailed(f"the engine sent more of choice {chunk.index} after its finish reason")
            if chunk.finish_reason is not None:
                if chunk.finish_reason == "error":
                    raise EngineFailed("the engine ended the request with an error")
                finished.add(chunk.index)
            yield chunk
    if len(finished) < choices:
        raise EngineFailed(f"the engine's stream ended with {choices - len(finished)} of {choices} choices unfinished")


@dataclass(frozen=True, slots=True)
class _Continuation:
    """Marks a continued request. It is a class, and not JSON, because then no client can send one."""

    prompt_length: int
    index: int


def continue_request(request: GenerateRequest, token_ids: Sequence[int], *, index: int = 0) -> GenerateRequest:
    """The request for the rest of choice `index`, which already has `token_ids`.

    The prompt grows by the tokens so far, and `max_tokens` and `min_tokens` shrink by them. The new request has one
    choice, numbered 0 in its chunks. Greedy output continues unchanged. Sampled output continues from another point of
    its random sequence, and frequency and presence penalties do not see the tokens that moved into the prompt.
    """
    params: JsonObject = dict(request.sampling_params)
    done = len(token_ids)
    if index and isinstance(params.get("seed"), int):
        params["seed"] += index
    if choice_count(request) > 1:
        params["n"] = 1
    if params.get("max_tokens") is not None:
        params["max_tokens"] = params["max_tokens"] - done
    if params.get("min_tokens"):
        params["min_tokens"] = max(0, params["min_tokens"] - done)
    prompt_length, first_index = find_origin(request)
    return request.model_copy(
        update={
            "token_ids": [*request.token_ids, *token_ids],
            "token_offsets": None,
            "sampling_params": params,
            "continuation": _Continuation(prompt_length, first_index + index),
        }
    )


def find_origin(request: GenerateRequest) -> tuple[int, int]:
    """The length of the original prompt and the index of the original choice, also for a continued request."""
    continuation = (request.model_extra or {}).get("continuation")
    if isinstance(continuation, _Continuation):
        return continuation.prompt_length, continuation.index
    return len(request.token_ids), 0


async def fold_chunks(chunks: AsyncIterator[TokenChunk]) -> list[TokenChunk]:
    """Joins a stream into one chunk for each choice, in order of index."""
    folded: dict[int, TokenChunk] = {}
    async for chunk in chunks:
        folded[chunk.index] = _join(folded[chunk.index], chunk) if chunk.index in folded else chunk
    return [folded[index] for index in sorted(folded)]


def _join(first: TokenChunk, second: TokenChunk) -> TokenChunk:
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = (first.logprobs or ()) + (second.logprobs or ())
    return TokenChunk(
        index=first.index,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs,
        finish_reason=second.finish_reason or first.finish_reason,
        stop_reason=second.stop_reason if second.stop_reason is not None else first.stop_reason,
        prompt_tokens=second.prompt_tokens if second.prompt_tokens is not None else first.prompt_tokens,
        cached_tokens=second.cached_tokens if second.cached_tokens is not None else first.cached_tokens,
        extra={**(first.extra or {}), **(second.extra or {})} or None,
    )
