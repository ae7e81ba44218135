"""Relays a job's events to its client: whole, as a stream of chunks, or as the job's events.

A worker writes events in the client's form, and the API passes them on unchanged. They arrive through the process's
inbox, which is fast but may lose messages. After a gap in the sequence numbers, or a silence, a subscription reads the
job's events channel, so it never misses an event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator

from fastapi import Request

from api.errors import envelope_from
from tasks.errors import BrokerUnavailable, Cancelled, JobNotFound, TokenyardError, error_from_json
from tasks.ledger.bus import Bus, parse_message
from tasks.ledger.store import Entry, JobStore
from tasks.pipeline import Pipeline
from tasks.protocol.base import compact_json
from tasks.telemetry import get_logger

log = get_logger(__name__)

SILENCE_S = 2.0
RECEIVE_S = 2.0
RECONNECT_PAUSE_S = 0.2
OUTAGE_S = 30.0
DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": waiting\n\n"


class Hub:
    """Reads this process's inbox, and feeds each message to the subscriptions to its job."""

    def __init__(self, name: str, store: JobStore, bus: Bus) -> None:
        self.name = name
        self._store = store
        self._bus = bus
        self._subscriptions: defaultdict[str, list[Subscription]] = defaultdict(list)

    async def receive(self) -> None:
        """Hand on the next messages; the caller repeats this."""
        try:
            raw_messages = await self._bus.receive(RECEIVE_S)
        except OSError:
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription.suspect_gap()
            await asyncio.sleep(RECONNECT_PAUSE_S)
            return
        for raw in raw_messages:
            message = parse_message(raw)
            for subscription in self._subscriptions.get(message.job_id, ()):
                subscription.feed(message.first_seq, message.records)
        # The caller yields to the subscribers before it asks again: receiving takes as long as sending their events.

    def subscribe(self, job_id: str, after: int = 0) -> Subscription:
        """Subscribe to a job's events with sequence numbers above `after`.

        Subscribe before you submit the job, and close the subscription at the end.
        """
        return Subscription(self, self._store, job_id, after)

    def _add(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.job_id].append(subscription)

    def _remove(self, subscription: Subscription) -> None:
        rest = [other for other in self._subscriptions.pop(subscription.job_id, ()) if other is not subscription]
        if rest:
            self._subscriptions[subscription.job_id] = rest


class Subscription:
    """A job's events for one client: in order, without gaps or repeats, until the last one."""

    def __init__(self, hub: Hub, store: JobStore, job_id: str, after: int) -> None:
        self.job_id = job_id
        self.ended = False
        self._hub, self._store = hub, store
        self._seen = after
        self._waiting: list[Entry] = []
        self._gap = False
        self._arrived = asyncio.Event()
        self._reached_at = time.monotonic()
        hub._add(self)

    def close(self) -> None:
        self._hub._remove(self)

    def feed(self, first_seq: int, records: tuple[bytes, ...]) -> None:
        if first_seq > self._seen + len(self._waiting) + 1:
            self._gap = True
        else:
            skip = self._seen + len(self._waiting) + 1 - first_seq
            self._waiting += [Entry(first_seq + i, data) for i, data in enumerate(records) if i >= skip]
        self._arrived.set()

    def suspect_gap(self) -> None:
        self._gap = True
        self._arrived.set()

    def wake(self) -> None:
        """Make a waiting `next` return."""
        self._arrived.set()

    async def next(self, wait_s: float) -> list[Entry]:
        """Return the next events, or an empty list if none arrive within `wait_s`.

        Raises:
            JobNotFound: the job does not exist, or has expired.
            BrokerUnavailable: the ledger has not answered for `OUTAGE_S`; shorter outages are waited out.
        """
        if not self._waiting and not self._gap:
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                self._gap = True
        self._arrived.clear()
        if self._gap:
            self._gap = False
            try:
                await self._fill()
            except BrokerUnavailable:
                if time.monotonic() - self._reached_at > OUTAGE_S:
                    raise
                self._gap = True
                await asyncio.sleep(0.2)
        events, self._waiting = self._waiting, []
        if events:
            self._seen = events[-1].seq
            self.ended = events[-1].data[:1] in (b"d", b"e")
        return events

    async def _fill(self) -> None:
        entries = await self._store.read_events(self.job_id, self._seen + len(self._waiting))
        if entries:
            self.feed(entries[0].seq, tuple(entry.data for entry in entries))
        elif not self._waiting and await self._store.get(self.job_id) is None:
            raise JobNotFound(f"The job {self.job_id!r} does not exist, or has expired.")
        self._reached_at = time.monotonic()

    async def replay(self) -> list[Entry]:
        """Return the events that are already in the channel."""
        self._gap = True
        return await self.next(0)


async def await_answer(request: Request, subscription: Subscription, pipeline: Pipeline) -> bytes:
    """Wait for a job's whole answer, and return the JSON that the worker wrote.

    Cancels the job if the client disconnects.

    Raises:
        TokenyardError: the error that the job failed with.
        Cancelled: the client disconnected.
    """
    gone = asyncio.create_task(_disconnected(request))
    gone.add_done_callback(lambda _: subscription.wake())
    answer: bytes | None = None
    try:
        while not subscription.ended:
            events = await subscription.next(SILENCE_S)
            if gone.done() and not events:
                await pipeline.cancel(subscription.job_id)
                raise Cancelled()
            for entry in events:
                if entry.data[:1] == b"r":
                    answer = entry.data[1:]
                elif entry.data[:1] == b"e":
                    raise error_from_json(json.loads(entry.data[1:]))
    finally:
        gone.cancel()
        subscription.close()
    assert answer is not None, "a job that succeeded has an answer"
    return answer


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def relay_chunks(
    subscription: Subscription, first: list[Entry], pipeline: Pipeline, heartbeat_s: float
) -> AsyncIterator[bytes]:
    """Yield a streamed answer as server-sent events, `[DONE]` last; cancel the job if the client disconnects."""
    try:
        async for events in _with_heartbeats(subscription, first, heartbeat_s):
            if not events:
                yield HEARTBEAT
            for entry in events:
                kind, body = entry.data[:1], entry.data[1:]
                if kind == b"c":
                    yield b"data: " + body + b"\n\n"
                elif kind == b"e":
                    yield b"data: " + compact_json(envelope_from(error_from_json(json.loads(body)))) + b"\n\n"
        yield DONE
    except TokenyardError as error:  # the HTTP status is already sent, so the error must go into the stream
        yield b"data: " + compact_json(envelope_from(error)) + b"\n\n"
        yield DONE
    finally:
        subscription.close()
        if not subscription.ended:
            # The client has disconnected and this task is being cancelled; cancelling the job must outlive it.
            await asyncio.shield(asyncio.ensure_future(_abandon(subscription.job_id, pipeline)))


async def _abandon(job_id: str, pipeline: Pipeline) -> None:
    try:
        await pipeline.cancel(job_id)
    except BrokerUnavailable:
        log.warning("job_left_to_its_deadline", job_id=job_id)


KINDS = {b"s": "status", b"c": "chunk", b"r": "response", b"e": "error", b"d": "done"}


async def relay_events(subscription: Subscription, first: list[Entry], heartbeat_s: float) -> AsyncIterator[bytes]:
    """Yield all of a job's events; each has its sequence number as its id, so clients can resume."""
    try:
        async for events in _with_heartbeats(subscription, first, heartbeat_s):
            if not events:
                yield HEARTBEAT
            for entry in events:
                kind, body = entry.data[:1], entry.data[1:]
                if kind == b"e":
                    body = compact_json(envelope_from(error_from_json(json.loads(body))))
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (entry.seq, KINDS[kind].encode(), body)
    finally:
        subscription.close()


async def _with_heartbeats(
    subscription: Subscription, first: list[Entry], heartbeat_s: float
) -> AsyncIterator[list[Entry]]:
    """Yield a subscription's events until the last one, and an empty list after every `heartbeat_s` of silence."""
    if first:
        yield first
    silent_s = 0.0
    while not subscription.ended:
        events = await subscription.next(SILENCE_S)
        silent_s = 0.0 if events else silent_s + SILENCE_S
        if events:
            yield events
        elif silent_s >= heartbeat_s:
            silent_s = 0.0
            yield []
