"""`celery -A workers.gpu worker`: takes token ids to an engine and its tokens to the job's channel.

A job that wants nothing but the tokens ends here: its client's events are written in the commits that write them.

One process holds hundreds of requests: each takes a pool thread that only waits, and all of them run on one event
loop. A request that was begun elsewhere goes on from the tokens that are in its channel already.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from tasks.broker import transport
from tasks.broker.app import create_app, generate_queue, gpu_queues
from tasks.errors import TokenyardError
from tasks.ledger.store import Claim, Commit, Status, event_line
from tasks.protocol.base import JsonObject, compact_json
from tasks.protocol.tokens import GenerateRequest, TokenChunk, chunk_from_json, chunk_to_json, unpack_token_ids
from tasks.settings import ModelSettings, Settings, load_settings
from tasks.specs import GENERATE, GENERATE_TASK
from tasks.telemetry import get_logger
from workers.generate.answers import TokenAnswer, describe_tokens
from workers.generate.engines.base import Engine, choice_count, continue_request
from workers.generate.engines.registry import create_engine
from workers.runtime.process import Runner, Runtime, bind, serve

log = get_logger(__name__)

HEALTH_INTERVAL_S = 3.0
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
"""What an engine says of its whole prompt and output, which are others when a choice is continued."""


class Slots:
    """How many requests each model's engine works on, and which queue may send it another."""

    def __init__(self, models: tuple[ModelSettings, ...], batch_share: float) -> None:
        self._busy: Counter[str] = Counter()
        self._limits: dict[str, tuple[str, int]] = {}
        for model in models:
            most = model.engine.concurrency
            self._limits[generate_queue(model.name, "interactive")] = (model.name, most)
            self._limits[generate_queue(model.name, "batch")] = (model.name, max(1, int(most * batch_share)))

    def open(self, queue: str) -> bool:
        if queue not in self._limits:
            return True
        model, most = self._limits[queue]
        return self._busy[model] < most

    def busy(self) -> dict[str, int]:
        return dict(self._busy)

    def enter(self, model: str) -> None:
        self._busy[model] += 1

    def leave(self, model: str) -> None:
        self._busy[model] -= 1


class _Writer:
    """Appends one job's chunks to its channel: the first at once, the next ones together with what came meanwhile."""

    def __init__(self, runtime: Runtime, claim: Claim, interval_s: float, answer: TokenAnswer | None) -> None:
        self._runtime, self._claim, self._interval_s, self._answer = runtime, claim, interval_s, answer
        self._written = claim.job.token_chunks
        self._pending: list[bytes] = []
        self._events: list[JsonObject] = []
        self._tokens = 0
        self._ended = False
        self._wake = asyncio.Event()

    def add(self, chunk: TokenChunk) -> None:
        self._pending.append(compact_json(chunk_to_json(chunk)))
        self._tokens += len(chunk.token_ids)
        if self._answer is not None:
            self._events += self._answer.add(chunk)
        self._wake.set()

    async def run(self) -> None:
        """Write until `end`; raises ClaimLost when nobody needs the tokens any more."""
        while not self._ended:
            await self._wake.wait()
            self._wake.clear()
            if self._pending and not self._ended:
                await self._write(Commit())
                await asyncio.sleep(self._interval_s)

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def close(self, prompt_tokens: int, earlier_tokens: int) -> None:
        """Write what is left, and with it the end of the stage, or of the job."""
        job = self._claim.job
        last: list[bytes] = []
        if self._answer is not None:
            self._events += self._answer.finish()
            if job.detached or not job.stream:
                last.append(event_line("r", compact_json(self._answer.whole())))
        await self._write(
            Commit(
                events=last,
                done=True,
                messages=self._runtime.pipeline.next_messages(job, self._claim.stage),
                prompt_tokens=prompt_tokens if job.prompt_tokens is None else None,
                completion_tokens=earlier_tokens + self._tokens,
                status=None if self._answer is None else Status.SUCCEEDED,
            ),
        )

    async def _write(self, commit: Commit) -> None:
        chunks, self._pending = self._pending, []
        told, self._events = self._events, []
        events = [event_line("c", compact_json(event)) for event in told] if self._claim.job.stream else []
        written, self._written = self._written, self._written + len(chunks)
        await self._runtime.store.commit(
            self._claim.job.id,
            self._claim.stage,
            self._claim.owner,
            replace(commit, tokens=chunks, tokens_from=written, events=[*events, *commit.events]),
        )


class Generator:
    """The generate stage over the engines of the models that this worker serves."""

    def __init__(self, settings: Settings, models: tuple[ModelSettings, ...]) -> None:
        self._models = {model.name: model for model in models}
        self._engines: dict[str, Engine] = {}
        self._settings = settings
        self._health: dict[str, str] = {}
        self.slots = Slots(models, settings.workers.batch_share)
        self.runtime: Runtime

    def detail(self) -> dict[str, object]:
        return {"engines": dict(self._health), "busy": self.slots.busy()}

    async def open(self) -> None:
        self._engines = {name: create_engine(model.engine) for name, model in self._models.items()}
        self.runtime.spawn(self._watch_health())

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
        job = claim.job
        self.slots.enter(job.model)
        try:
            await self._generate(claim)
        finally:
            self.slots.leave(job.model)

    async def _generate(self, claim: Claim) -> None:
        job, engine = claim.job, self._engines[claim.job.model]
        token_ids = unpack_token_ids(claim.payloads["prompt"])
        asked = json.loads(claim.payloads["generate"])
        request = GenerateRequest.model_validate(
            {**asked, "token_ids": token_ids, "request_id": f"{job.id}-{claim.attempt}"}
        )
        answer = None
        if job.stages[-1] == GENERATE:
            context = describe_tokens(job, asked, token_ids)
            answer = TokenAnswer(context, keep=job.detached or not job.stream)
        engine_name = self._models[job.model].engine.model
        request = request.model_copy(update={"model": engine_name or job.model, "stream": job.followed})
        earlier: dict[int, list[int]] = {}
        finished: set[int] = set()
        if job.token_chunks:
            for entry in await self.runtime.store.read_tokens(job.id, 0):
                chunk = chunk_from_json(json.loads(entry.data))
                earlier.setdefault(chunk.index, []).extend(chunk.token_ids)
                if answer is not None:
                    answer.add(chunk)  # the client has heard of it
                if chunk.finish_reason is not None:
                    finished.add(chunk.index)
            log.info("generation_continued", tokens=sum(map(len, earlier.values())), attempt=claim.attempt)
        writer = _Writer(self.runtime, claim, self._settings.queue.flush_interval_s, answer)
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.run())
            if earlier:
                async with asyncio.TaskGroup() as choices:
                    for index in range(choice_count(request)):
                        if index not in finished:
                            choices.create_task(
                                self._continue(engine, request, index, earlier.get(index, []), writer, job.followed)
                            )
            else:
                async with aclosing(engine.generate(request, stream=job.followed)) as chunks:
                    await _pump(chunks, writer)
            writer.end()
        await writer.close(len(token_ids), sum(map(len, earlier.values())))

    async def _continue(
        self,
        engine: Engine,
        request: GenerateRequest,
        index: int,
        earlier: list[int],
        writer: _Writer,
        stream: bool,
    ) -> None:
        rest = continue_request(request, earlier, index=index)
        most = rest.sampling_params.get("max_tokens")
        if most is not None and most <= 0:
            writer.add(TokenChunk(index=index, finish_reason="length", prompt_tokens=len(request.token_ids)))
            return
        async with aclosing(engine.generate(rest, stream=stream)) as chunks:
            await _pump(chunks, writer, index=index, prompt_tokens=len(request.token_ids))


async def _pump(
    chunks: AsyncGenerator[TokenChunk, None],
    writer: _Writer,
    *,
    index: int | None = None,
    prompt_tokens: int | None = None,
) -> None:
    async for chunk in chunks:
        if index is not None:
            # A continued choice is the only one of its request, and its prompt holds what came before.
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


def _served(settings: Settings) -> tuple[ModelSettings, ...]:
    """The models of this worker: those of `TOKENYARD_GPU_MODELS` (names with commas between), or all."""
    wanted = [name for name in os.environ.get("TOKENYARD_GPU_MODELS", "").split(",") if name]
    models = tuple(model for model in settings.models if not wanted or model.name in wanted)
    if unknown := set(wanted) - {model.name for model in models}:
        raise SystemExit(f"TOKENYARD_GPU_MODELS names unknown models: {', '.join(sorted(unknown))}")
    return models


settings = load_settings()
models = _served(settings)
queues = gpu_queues([model.name for model in models])
app = create_app(settings, queues=queues, threads=max(256, sum(model.engine.concurrency for model in models)))
generator = Generator(settings, models)
runtime = Runtime(
    settings,
    app,
    "gpu",
    queues=tuple(queues),
    # Batch work is never handed over: it takes the slots that interactive work leaves, which a queue can wait for.
    pools=tuple(generate_queue(model.name, "interactive") for model in models),
    models=tuple(model.name for model in models),
    detail=generator.detail,
)
generator.runtime = runtime
transport.set_gate(generator.slots.open)
runners: dict[str, Runner] = {
    GENERATE_TASK.name: lambda job_id, given: runtime.pursue(GENERATE_TASK, job_id, generator.generate, given)
}
begun: dict[str, Runner] = {
    GENERATE_TASK.name: lambda job_id, given: runtime.launch(GENERATE_TASK, job_id, generator.generate, given)
}
serve(
    app,
    runtime,
    opening=lambda: runtime.wait(generator.open()),
    standing=lambda: runtime.stand(begun, generator.slots.open),
    closing=lambda: runtime.wait(generator.close()),
)
bind(app, runners, after=lambda: runtime.take_more(runners, generator.slots.open))
