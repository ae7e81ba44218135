"""A process's inbox, and the parser for its messages.

A script that changes a job notifies the processes concerned in the same transaction. A message is a head line, then one
line for each record:

    e job_01... 7\\n c{...}\\n c{...}     events from sequence number 7 on, for an API process
    t job_01... 12\\n {...}\\n {...}      token chunks from sequence number 12 on, for the derender worker
    x job_01... cancelled                 the job has ended, for a worker that owns one of its stages

The inbox is only a fast path: it may lose messages (the process reconnects, Redis restarts). The job's channel holds
the same records durably; after a gap in the sequence numbers, the reader fetches the missing ones there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class BusMessage:
    kind: Literal["e", "t", "x"]
    job_id: str
    first_seq: int
    records: tuple[bytes, ...]
    status: str = ""


class Bus(Protocol):
    """The inbox of one process."""

    async def receive(self, wait_s: float) -> list[bytes]:
        """Return the next raw messages, in order; an empty list if none arrive within `wait_s`.

        Raises:
            OSError: the connection broke and messages may be lost; read the channels.
        """
        ...

    async def close(self) -> None: ...


def parse_message(raw: bytes) -> BusMessage:
    """Parse one raw message of an inbox."""
    head, *records = raw.split(b"\n")
    kind, job_id, argument = head.decode().split(" ", 2)
    if kind == "x":
        return BusMessage("x", job_id, 0, (), argument)
    return BusMessage("e" if kind == "e" else "t", job_id, int(argument), tuple(records))
