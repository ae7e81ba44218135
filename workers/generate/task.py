"""The generate stage: sends a job's prompt to an engine and writes the engine's tokens to the token channel.

A later attempt resumes from the tokens that are already in the channel.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tasks.errors import TokenyardError
from tasks.ledger.store import Claim
from tasks.protocol.tokens import GenerateRequest, TokenChunk, chunk_from_json, unpack_token_ids
from tasks.settings import ModelSettings
from tasks.specs import GENERATE
from tasks.telemetry import get_logger
from workers.generate.answers import TokenAnswer, describe_tokens
from workers.generate.engines.base import Engine, choice_count, continue_request
from workers.generate.engines.registry import create_engine
from workers.generate.writer import TokenWriter
from workers.runtime.process import Runtime

log = get_logger(__name__)

HEALTH_INTERVAL_S = 3.0
ONLY_WHOLE = frozenset({"prompt_logprobs", "prompt_logprob_token_ids"})
"""Sampling parameters whose results an engine sends with a whole answer only."""
OF_WHOLE = frozenset(
    {
        "prompt_logprobs",
        "prompt_token_id_logprobs",
        "prompt_token_ids",
        "mm_placeholders",
        "routed_experts",
        "weight_versions",
    }
)
"""Fields that describe the engine's whole prompt and output; they are wrong for a resumed choice, whose prompt includes
earlier output."""


class Generator:
    """Runs the generate stage on the engines of this worker's models."""

    def __init__(self, runtime: Runtime, models: Sequence[ModelSettings]) -> None:
        self._runtime = runtime
        self._models = {model.name: model for model in models}
        self._engines: dict[str, Engine] = {}
        self._health: dict[str, str] = {}

    @property
    def health(self) -> dict[str, str]:
        """The last health check of each model's engine: `ok`, or what is wrong."""
        return dict(self._health)

    async def open(self) -> None:
        self._engines = {name: create_engine(model.engine) for name, model in self._models.items()}
        self._runtime.loop.spawn(self._watch_health())

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()

    async def _watch_health(self) -> None:
        while True:
            for name, engine in self._engines.items():
                try:
                    health = await engine.health()
                    self._health[name] = "ok" if health.ok else health.detail or "down"
                except TokenyardError as error:
                    self._health[name] = error.message
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def generate(self, claim: Claim) -> None:
        """Generate the rest of this job's tokens, and write them to its token channel."""
        job, engine = claim.job, self._engines[claim.job.model]
        token_ids = unpack_token_ids(claim.payloads["prompt"])
        body = json.loads(claim.payloads["generate"])
        request = GenerateRequest.model_validate(
            {**body, "token_ids": token_ids, "request_id": f"{job.id}-{claim.attempt}"}
        )
        answer = None
        if job.stages[-1] == GENERATE:
            context = describe_tokens(job, body, token_ids)
            answer = TokenAnswer(context, keep=job.detached or not job.stream)
        # An engine that answers at once shows no progress until its end. A request that has lost a worker is streamed:
        # what it got is kept, and the next lost worker does not count against it.
        stream = job.followed or (claim.attempt > 1 and not ONLY_WHOLE & request.sampling_params.keys())
        engine_name = self._models[job.model].engine.model
        request = request.model_copy(update={"model": engine_name or job.model, "stream": stream})
        earlier: dict[int, list[int]] = {}
        finished: set[int] = set()
        if job.token_chunks:
            for entry in await self._runtime.store.read_tokens(job.id, 0):
                chunk = chunk_from_json(json.loads(entry.data))
                earlier.setdefault(chunk.index, []).extend(chunk.token_ids)
                if answer is not None:
                    answer.add(chunk)  # an earlier attempt has sent its events to the client
                if chunk.finish_reason is not None:
                    finished.add(chunk.index)
            log.info("generation_continued", tokens=sum(map(len, earlier.values())), attempt=claim.attempt)
        writer = TokenWriter(self._runtime, claim, self._runtime.settings.queue.flush_interval_s, answer)
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.run())
            if earlier:
                async with asyncio.TaskGroup() as choices:
                    for index in range(choice_count(request)):
                        if index not in finished:
                            choices.create_task(
                                self._continue(engine, request, index, earlier.get(index, []), writer, stream)
                            )
            else:
                async with aclosing(engine.generate(request, stream=stream)) as chunks:
                    await _pump(chunks, writer)
            writer.end()
        await writer.close(len(token_ids), sum(map(len, earlier.values())))

    async def _continue(
        self,
        engine: Engine,
        request: GenerateRequest,
        index: int,
        earlier: list[int],
        writer: TokenWriter,
        stream: bool,
    ) -> None:
        rest = continue_request(request, earlier, index=index)
        max_tokens = rest.sampling_params.get("max_tokens")
        if max_tokens is not None and max_tokens <= 0:
            writer.add(TokenChunk(index=index, finish_reason="length", prompt_tokens=len(request.token_ids)))
            return
        async with aclosing(engine.generate(rest, stream=stream)) as chunks:
            await _pump(chunks, writer, index=index, prompt_tokens=len(request.token_ids))


async def _pump(
    chunks: AsyncGenerator[TokenChunk, None],
    writer: TokenWriter,
    *,
    index: int | None = None,
    prompt_tokens: int | None = None,
) -> None:
    async for chunk in chunks:
        if index is not None:
            # A resumed choice is the only one of its request, and its prompt includes the earlier tokens.
            extra = {name: value for name, value in (chunk.extra or {}).items() if name not in OF_WHOLE}
            chunk = TokenChunk(
                index=index,
                token_ids=chunk.token_ids,
                logprobs=chunk.logprobs,
                finish_reason=chunk.finish_reason,
                stop_reason=chunk.stop_reason,
                prompt_tokens=prompt_tokens if chunk.prompt_tokens is not None else None,
                extra=extra or None,
            )
        writer.add(chunk)
