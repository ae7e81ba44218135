"""A process's inbox and how its messages are taken apart.

The scripts that change a job tell those whom it concerns, in the same transaction. A message is a head line and then
the records, one a line:

    e job_01... 7\\n c{...}\\n c{...}     events from sequence number 7 on, for an API process
    t job_01... 12\\n {...}\\n {...}      token chunks from sequence number 12 on, for the worker that derenders
    x job_01... cancelled                 the job is over, for a worker that holds one of its stages

The inbox is a fast path, never the truth: it may lose messages (its process reconnects, Redis restarts), and what it
brought is also in the job's channel, where a gap in the sequence numbers is read again.
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
        """The next raw messages, in order; none if nothing came within `wait_s`.

        Raises:
            OSError: messages may be lost; read the channels again.
        """
        ...

    async def close(self) -> None: ...


def parse_message(raw: bytes) -> BusMessage:
    head, *records = raw.split(b"\n")
    kind, job_id, argument = head.decode().split(" ", 2)
    if kind == "x":
        return BusMessage("x", job_id, 0, (), argument)
    return BusMessage("e" if kind == "e" else "t", job_id, int(argument), tuple(records))
