"""Token chunks to the generate route's answers in token ids, which need no tokenizer.

    answer = TokenAnswer(context)
    for chunk in token_chunks:
        events = answer.add(chunk)       # [{"request_id": "generate-tokens-1", "choices": [{"token_ids": [57], ...}]}]
    events = answer.finish()             # the usage, if the client wants it
    answer.whole()                       # {"request_id": "generate-tokens-1", "choices": [...], "usage": {...}, ...}

Answers with text or messages go through the derender stage (`workers.derender.fold`), on the same surface.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tasks.ledger.store import Job
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import Event, Finish, Logprobs, TokenLogprobs, TopLogprob
from tasks.protocol.tokens import CandidateLogprob, TokenChunk
from tasks.protocol.vllm_generate import answer_id
from workers.surfaces.base import AnswerFacts, ChoiceDelta
from workers.surfaces.vllm_generate import GENERATE


class TokenAnswer:
    """Makes one job's answer in token ids from the chunks that are added; `keep` stores them for `whole`."""

    def __init__(self, context: DerenderContext, *, keep: bool = True) -> None:
        self._context = context
        self._state = GENERATE.start(context)
        self._chunks: list[TokenChunk] | None = [] if keep else None

    def add(self, chunk: TokenChunk) -> list[JsonObject]:
        """Adds a chunk of the engine and returns the client's next chunks."""
        if self._chunks is not None:
            self._chunks.append(chunk)
        delta = _delta(self._context, chunk, self._state.completion_tokens[chunk.index])
        self._state, events = GENERATE.step(self._context, self._state, delta)
        return events

    def finish(self) -> list[JsonObject]:
        """The client's last chunks, once all choices have finished."""
        return GENERATE.finish(self._context, self._state)[1]

    def whole(self) -> JsonObject:
        """The whole answer; needs `keep`."""
        assert self._chunks is not None
        return respond(self._context, self._chunks)


def respond(context: DerenderContext, chunks: Iterable[TokenChunk]) -> JsonObject:
    """The whole answer of these chunks, made by folding its stream."""
    context = replace(context, stream=False)
    answer = TokenAnswer(context, keep=False)
    events = [event for chunk in chunks for event in answer.add(chunk)]
    return GENERATE.fold(context, events + answer.finish())


def describe_tokens(job: Job, request: JsonObject, prompt_token_ids: Sequence[int]) -> DerenderContext:
    """The derender context of an answer in token ids; `request` is the client's, without its token ids."""
    facts = AnswerFacts(
        model=job.model,
        response_id=answer_id(job.id, request),
        created=int(job.created_at),
        prompt_token_ids=tuple(prompt_token_ids),
    )
    return GENERATE.describe(GENERATE.read({**request, "token_ids": list(prompt_token_ids)}), facts)


def _delta(context: DerenderContext, chunk: TokenChunk, before: int) -> ChoiceDelta:
    events: list[Event] = []
    if chunk.logprobs is not None:
        positions = (TokenLogprobs(_named(p.sampled), tuple(map(_named, p.top))) for p in chunk.logprobs)
        events.append(Logprobs(tuple(positions)))
    if chunk.finish_reason is not None:
        events.append(Finish(chunk.finish_reason, chunk.stop_reason))
    return ChoiceDelta(
        index=chunk.index,
        events=tuple(events),
        token_ids=chunk.token_ids,
        completion_tokens=before + len(chunk.token_ids),
        # A resumed request's own output may be cached too, but is not part of its prompt.
        cached_tokens=None if chunk.cached_tokens is None else min(chunk.cached_tokens, context.prompt_tokens),
        extra=chunk.extra,
    )


def _named(candidate: CandidateLogprob) -> TopLogprob:
    return TopLogprob(candidate.token_id, "", candidate.logprob, None, candidate.rank)
