"""Derenders streams: follows a job's token channel and writes its events channel, with checkpoints.

A choice that ends in a stop string ends here. When the last choice has ended, the job is done and its request at the
engine is aborted.

All streams of a process share its event loop. Each holds its derender state in memory, and saves it with its offset, as
a checkpoint, in the commit that writes the client chunks up to there. After a crash, another worker resumes exactly
there. Token chunks arrive through the process's inbox; after a gap, or a silence, they are read from the channel.
"""

from __future__ import annotations

import asyncio
import json

from tasks.errors import InvalidState
from tasks.ledger.bus import BusMessage
from tasks.ledger.store import Claim, Commit, Status, event_line
from tasks.protocol.base import JsonObject, compact_json
from tasks.protocol.tokens import TokenChunk, chunk_from_json, unpack_token_ids
from workers.derender import fold
from workers.derender.context import read_context
from workers.derender.task import chunks_of
from workers.models.catalog import Catalog
from workers.runtime.process import Runtime

SILENCE_S = 2.0
MOST_CHUNKS = 256
"""The most chunks folded at once: a stream that catches up must not delay the others."""


class _Inbox:
    """The chunks of one stream that have arrived and are not folded yet, without gaps."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.chunks: list[bytes] = []
        self.gap = False
        self.arrived = asyncio.Event()

    def feed(self, first_seq: int, records: tuple[bytes, ...]) -> None:
        have = self.offset + len(self.chunks)
        if first_seq > have + 1:
            self.gap = True
        else:
            self.chunks.extend(records[have + 1 - first_seq :])
        self.arrived.set()

    def take(self) -> list[bytes]:
        taken, self.chunks = self.chunks[:MOST_CHUNKS], self.chunks[MOST_CHUNKS:]
        self.offset += len(taken)
        return taken


class Followers:
    """All streams that this process derenders."""

    def __init__(self, runtime: Runtime, catalog: Catalog) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._inboxes: dict[str, _Inbox] = {}
        runtime.on_message(self._receive)

    def __len__(self) -> int:
        return len(self._inboxes)

    def _receive(self, message: BusMessage) -> None:
        inbox = self._inboxes.get(message.job_id)
        if message.kind == "t" and inbox is not None:
            inbox.feed(message.first_seq, message.records)

    async def follow(self, claim: Claim) -> None:
        """Derenders one stream from its checkpoint to its end."""
        job = claim.job
        store = self._runtime.store
        profile = self._catalog.get(job.model)
        context = read_context(profile, claim.job, claim.payloads)
        prompt_token_ids = unpack_token_ids(claim.payloads["prompt"])
        offset, state = 0, fold.start(profile, context, prompt_token_ids)
        if "checkpoint" in claim.payloads:
            saved = json.loads(claim.payloads["checkpoint"])
            offset, state = saved["offset"], fold.load(profile, context, saved["state"])
        if offset > job.token_chunks:
            raise InvalidState(
                f"The token channel of {job.id} has {job.token_chunks} chunks, but its checkpoint is at {offset}."
            )
        inbox = self._inboxes[job.id] = _Inbox(offset)
        try:
            await self._fill(job.id, inbox)
            while True:
                if not inbox.chunks:
                    await self._await_more(job.id, inbox)
                    continue
                before = inbox.offset
                records = inbox.take()
                client_chunks: list[JsonObject] = []
                for record in records:
                    step = fold.step(profile, context, state, chunk_from_json(json.loads(record)))
                    state = step.state
                    client_chunks += step.chunks
                if state.done:
                    client_chunks += fold.finish(profile, context, state).chunks
                events = [event_line("c", compact_json(chunk)) for chunk in client_chunks] if job.stream else []
                if state.done:
                    if job.detached or not job.stream:
                        chunks = await self._all_chunks(job.id)
                        response = await asyncio.to_thread(fold.respond, profile, context, prompt_token_ids, chunks)
                        events.append(event_line("r", compact_json(response)))
                    await store.commit(
                        job.id,
                        claim.stage,
                        claim.owner,
                        Commit(
                            events=events,
                            consumed=(before, inbox.offset),
                            done=True,
                            status=Status.SUCCEEDED,
                        ),
                    )
                    return
                checkpoint = compact_json({"offset": inbox.offset, "state": fold.dump(context, state)})
                await store.commit(
                    job.id,
                    claim.stage,
                    claim.owner,
                    Commit(events=events, consumed=(before, inbox.offset), payloads={"checkpoint": checkpoint}),
                )
        finally:
            del self._inboxes[job.id]

    async def _await_more(self, job_id: str, inbox: _Inbox) -> None:
        inbox.arrived.clear()
        if not inbox.gap:
            try:
                async with asyncio.timeout(SILENCE_S):
                    await inbox.arrived.wait()
            except TimeoutError:
                inbox.gap = True
        if inbox.gap:
            await self._fill(job_id, inbox)

    async def _fill(self, job_id: str, inbox: _Inbox) -> None:
        inbox.gap = False
        entries = await self._runtime.store.read_tokens(job_id, inbox.offset + len(inbox.chunks))
        if entries:
            inbox.feed(entries[0].seq, tuple(entry.data for entry in entries))

    async def _all_chunks(self, job_id: str) -> list[TokenChunk]:
        return chunks_of(await self._runtime.store.read_tokens(job_id, 0))
