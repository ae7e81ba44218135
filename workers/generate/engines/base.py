"""What every engine is: token ids in, token chunks out.

    async with aclosing(engine.generate(request, stream=True)) as chunks:
        async for chunk in chunks:      # TokenChunk(index=0, token_ids=(504, 3575), ...)
            ...

Closing the generator, or cancelling the task that reads it, aborts the request at the engine: nothing keeps
running for nobody. What is left unread is not generated.
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
    """What an engine does by itself; what it does not is done while derendering, or refused."""

    stops_on_strings: bool = True
    """False: `stop` is not sent. The derenderer finds stop strings, and the request is then to be closed."""
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
    """The port; `tests/contract/test_engine.py` says what each implementation must do."""

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(self, request: GenerateRequest, *, stream: bool) -> AsyncGenerator[TokenChunk, None]:
        """The request's chunks, those of each choice in order; `stream=False` asks for the fewest chunks.

        Every choice ends with a chunk that has a finish reason; a stream that ends without one raises.

        Raises:
            EngineUnavailable: nothing answers (refused, 503, every server down); `retry_after_s` says when to return.
            EngineRefused: the engine answered that the request is wrong (4xx), with its message and `param`.
            EngineFailed: the engine failed (5xx), or the stream broke or ended before each choice did.
            InvalidRequest: the request asks for what this kind of engine cannot do; `param` names it.
        """
        ...

    async def health(self) -> Health: ...

    async def close(self) -> None:
        """Closes connections; requests in flight are aborted."""
        ...


def choice_count(request: GenerateRequest) -> int:
    """`n`, checked.

    Raises:
        InvalidRequest: it is not a positive integer.
    """
    n = request.sampling_params.get("n")
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise InvalidRequest("n must be a positive integer", param="n")
    return n


async def ensure_whole(chunks: AsyncGenerator[TokenChunk, None], choices: int) -> AsyncGenerator[TokenChunk, None]:
    """Passes chunks on and raises `EngineFailed` unless each of `choices` choices finishes, and finishes once."""
    finished: set[int] = set()
    async with aclosing(chunks):
        async for chunk in chunks:
            if not 0 <= chunk.index < choices:
                raise EngineFailed(f"the engine answered choice {chunk.index} of {choices}")
            if chunk.index in finished:
                raise EngineFailed(f"the engine went on with choice {chunk.index} after its end")
            if chunk.finish_reason is not None:
                if chunk.finish_reason == "error":
                    raise EngineFailed("the engine ended the request with an error")
                finished.add(chunk.index)
            yield chunk
    if len(finished) < choices:
        raise EngineFailed(f"the engine's stream ended with {choices - len(finished)} of {choices} choices unfinished")


@dataclass(frozen=True, slots=True)
class _Continuation:
    """Rides on a continued request; a class of its own, so that no client can send one."""

    prompt_length: int
    index: int


def continue_request(request: GenerateRequest, token_ids: Sequence[int], *, index: int = 0) -> GenerateRequest:
    """The request for the rest of choice `index`, of which `token_ids` are there already.

    The prompt grows by the tokens so far and `max_tokens` and `min_tokens` shrink by them. The result has one choice,
    numbered 0 in its chunks. Greedy output goes on as it would have; sampled output goes on from another point
    of its random sequence, and frequency and presence penalties do not see the tokens that moved into the prompt.
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
    """The length of the original prompt and the original choice: the request's own unless it was continued."""
    continuation = (request.model_extra or {}).get("continuation")
    if isinstance(continuation, _Continuation):
        return continuation.prompt_length, continuation.index
    return len(request.token_ids), 0


async def fold_chunks(chunks: AsyncIterator[TokenChunk]) -> list[TokenChunk]:
    """One chunk for each choice, in order of index: a streamed answer as the one-shot answer."""
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
