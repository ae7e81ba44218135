"""Writes an engine's chunks to the job's token channel, and commits the end of the stage.

A job without a derender stage ends here: each commit writes the client's events together with the chunks.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tasks.ledger.store import Claim, Commit, Status, event_line
from tasks.protocol.base import JsonObject, compact_json
from tasks.protocol.tokens import TokenChunk, chunk_to_json
from workers.generate.answers import TokenAnswer
from workers.runtime.process import Runtime


class TokenWriter:
    """Appends one job's chunks to its token channel: the first at once, later ones batched by `interval_s`."""

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
        """Write chunks until `end` is called.

        Raises:
            ClaimLost: the job has ended, or another worker has the stage.
        """
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
        """Commit the remaining chunks, together with the end of the stage or of the job."""
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
        pending, self._events = self._events, []
        events = [event_line("c", compact_json(event)) for event in pending] if self._claim.job.stream else []
        written, self._written = self._written, self._written + len(chunks)
        await self._runtime.store.commit(
            self._claim.job.id,
            self._claim.stage,
            self._claim.owner,
            replace(commit, tokens=chunks, tokens_from=written, events=[*events, *commit.events]),
        )
