"""llama.cpp's `llama-server` as a token engine: `POST /completion`, token ids in and out.

    data: {"index": 0, "content": "The", "tokens": [504], "stop": false, "tokens_predicted": 1, "tokens_evaluated": 16,
           "completion_probabilities": [{"id": 504, "logprob": -0.527, "top_logprobs": [{"id": 504, "logprob": -0.527}]}]}
    data: {"content": "", "tokens": [], "stop": true, "tokens_predicted": 8, "tokens_evaluated": 16,
           "stop_type": "eos", "stopping_word": "", "timings": {"cache_n": 15}}

As with vLLM, `token_ids` include the end token or the tokens of the stop string that ended the choice. Log-probabilities
are the model's own, before sampling parameters. A request with `n` choices becomes `n` requests with consecutive
seeds. Closing a request's connection aborts it; the server notices within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from tasks.errors import EngineFailed
from tasks.protocol.base import JsonObject
from tasks.protocol.tokens import CandidateLogprob, GenerateRequest, PositionLogprobs, TokenChunk
from tasks.settings import EngineSettings
from workers.generate.engines.base import Capabilities, Health, choice_count, ensure_whole, fold_chunks
from workers.generate.engines.http import HttpEngine
from workers.generate.engines.llamacpp_gaps import BrokenPieces, is_whole_text
from workers.generate.engines.llamacpp_request import STRUCTURED_OUTPUTS, map_request, requested_logprobs

PATH = "/completion"
WHOLE_VOCABULARY = 10_000_000
SCORED_CANDIDATES = 512
LOWEST_LOGPROB = -9999.0


class LlamaCppEngine(HttpEngine):
    """An engine for any `llama-server`; it has no options."""

    capabilities = Capabilities(prompt_logprobs=False, priority=False, structured_outputs=STRUCTURED_OUTPUTS)

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        if settings.options:
            raise ValueError(f"the llamacpp engine has no option {', '.join(sorted(settings.options))}")
        self._pieces: BrokenPieces | None = None
        self._pieces_lock = asyncio.Lock()

    async def generate(self, request: GenerateRequest, *, stream: bool) -> AsyncGenerator[TokenChunk, None]:
        choices = choice_count(request)
        bodies = [map_request(request, index) for index in range(choices)]
        parts = [self._choice(request, body, index) for index, body in enumerate(bodies)]
        chunks = ensure_whole(parts[0] if choices == 1 else _merge(parts), choices)
        async with aclosing(chunks):
            if stream:
                async for chunk in chunks:
                    yield chunk
            else:
                for chunk in await fold_chunks(chunks):
                    yield chunk

    async def health(self) -> Health:
        return await self.probe("/health")

    async def _choice(self, request: GenerateRequest, body: JsonObject, index: int) -> AsyncGenerator[TokenChunk, None]:
        wanted = requested_logprobs(request)
        stop_ids = set(request.sampling_params.get("stop_token_ids") or ())
        produced: list[int] = []
        headers = {"X-Request-Id": request.request_id} if request.request_id else None
        async with aclosing(self.exchange(PATH, body, stream=True, headers=headers)) as events:
            async for event in events:
                tokens: list[int] = event.get("tokens") or []
                positions = [_position(entry, wanted) for entry in event.get("completion_probabilities") or ()]
                missing = event["tokens_predicted"] - len(produced) - len(tokens)
                if missing > 0:
                    found = await self._fill_gap(body, produced, missing, event.get("content", ""), tokens, wanted)
                    tokens = [candidate.sampled.token_id for candidate in found] + tokens
                    positions = found + positions
                cut = next((k for k, token in enumerate(tokens, 1) if token in stop_ids), None)
                tokens, positions = tokens[:cut], positions[:cut]
                produced += tokens
                finish, stop_reason = _finish(event, tokens, cut)
                if tokens or finish is not None:
                    yield TokenChunk(
                        index=index,
                        token_ids=tuple(tokens),
                        logprobs=None if wanted is None else tuple(positions),
                        finish_reason=finish,
                        stop_reason=stop_reason,
                        prompt_tokens=None if finish is None else len(request.token_ids),
                        cached_tokens=None if finish is None else (event.get("timings") or {}).get("cache_n"),
                    )
                if finish is not None:
                    return

    async def _fill_gap(
        self, body: JsonObject, produced: list[int], missing: int, text: str, tokens: list[int], wanted: int | None
    ) -> list[PositionLogprobs]:
        """The tokens that the server did not send, with their log-probabilities if the request wants them."""
        pieces = await self._broken_pieces(body["prompt"][:1])
        ways = pieces.fill(text, tokens[0], missing) if tokens and is_whole_text(text) else []
        known = ways[0] if len(ways) == 1 or (ways and wanted is None) else None
        if known is not None and wanted is None:
            return [PositionLogprobs(CandidateLogprob(token, LOWEST_LOGPROB)) for token in known]
        found: list[PositionLogprobs] = []
        for step in range(missing):
            context = [*body["prompt"], *produced, *(position.sampled.token_id for position in found)]
            ranked = await self._score(context, max(SCORED_CANDIDATES, wanted or 0))
            if known is not None:
                token = known[step]
            else:
                allowed = {way[step] for way in ways} or pieces.bytes_of.keys()
                token = next((c.token_id for c in ranked if c.token_id in allowed), min(allowed))
                ways = [way for way in ways if way[step] == token]
            sampled = next((c for c in ranked if c.token_id == token), CandidateLogprob(token, LOWEST_LOGPROB))
            found.append(_ordered(sampled, ranked[: wanted or 0]))
        return found

    async def _broken_pieces(self, prompt: list[int]) -> BrokenPieces:
        async with self._pieces_lock:
            if self._pieces is None:
                self._pieces = BrokenPieces.from_candidates(await self._candidates(prompt, WHOLE_VOCABULARY))
            return self._pieces

    async def _score(self, context: list[int], count: int) -> list[CandidateLogprob]:
        candidates = await self._candidates(context, count)
        return [CandidateLogprob(c["id"], c["logprob"], rank) for rank, c in enumerate(candidates, 1)]

    async def _candidates(self, context: list[int], count: int) -> list[dict[str, Any]]:
        # The log-probabilities are from before sampling; the grammar makes sure that the token itself gets an entry.
        body = {"prompt": context, "n_predict": 1, "n_probs": count, "grammar": 'root ::= "a"', "stream": False}
        async with aclosing(self.exchange(PATH, body, stream=False)) as answers:
            async for answer in answers:
                entries = answer.get("completion_probabilities")
                if entries:
                    return list(entries[0]["top_logprobs"])
        raise EngineFailed("the engine sent no log-probabilities, which are needed to find a token that it left out")


def _finish(event: JsonObject, tokens: list[int], cut: int | None) -> tuple[str | None, int | str | None]:
    if cut is not None:
        return "stop", tokens[-1]
    if not event.get("stop"):
        return None, None
    kind = event.get("stop_type")
    if kind == "eos":
        return "stop", None
    if kind == "word":
        return "stop", event.get("stopping_word") or None
    if kind == "limit":
        return "length", None
    raise EngineFailed(f"the engine stopped for an unknown reason: {kind!r}")


def _position(entry: dict[str, Any], wanted: int | None) -> PositionLogprobs:
    ranked = [CandidateLogprob(c["id"], c["logprob"], rank) for rank, c in enumerate(entry["top_logprobs"], 1)]
    sampled = next((c for c in ranked if c.token_id == entry["id"]), CandidateLogprob(entry["id"], entry["logprob"]))
    return _ordered(sampled, ranked[: wanted or 0])


def _ordered(sampled: CandidateLogprob, ranked: list[CandidateLogprob]) -> PositionLogprobs:
    """The sampled token first, then the candidates in order of rank."""
    return PositionLogprobs(sampled, (sampled, *(c for c in ranked if c.token_id != sampled.token_id)))


async def _merge(parts: list[AsyncGenerator[TokenChunk, None]]) -> AsyncGenerator[TokenChunk, None]:
    """Yields the chunks of all parts as they arrive; the first error ends all parts, and so does closing."""
    queue: asyncio.Queue[TokenChunk | asyncio.Task[None]] = asyncio.Queue()

    async def drain(part: AsyncGenerator[TokenChunk, None]) -> None:
        async with aclosing(part):
            async for chunk in part:
                queue.put_nowait(chunk)

    running = [asyncio.create_task(drain(part)) for part in parts]
    for task in running:
        task.add_done_callback(queue.put_nowait)
    try:
        left = len(running)
        while left:
            item = await queue.get()
            if isinstance(item, TokenChunk):
                yield item
            else:
                item.result()
                left -= 1
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
