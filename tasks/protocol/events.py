"""The narrow waist out: what a model's output means, whoever wrote it and whoever will read it.

Formats (`workers.parsing`) make the first five; the derendering fold adds the rest; surfaces turn all of them
into their client's chunks. Standard library only, so that parsing stays pure.

    Reasoning("Let me look.") Text("It is ") CallStart(0, "get_weather", None)
    CallArguments(0, '{"city": "Z') CallArguments(0, 'ürich"}') CallEnd(0) Finish("tool_calls", None)

Adjacent `Text`, `Reasoning` or `CallArguments` (of one index) may be merged without changing their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call began: its place among this answer's calls, its function, and the id that the model gave it.

    `call_id` is None where the format has no ids of its own; the surface then makes one.
    """

    index: int
    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next fragment of a call's arguments; all fragments of a closed call together are one JSON object."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A tool call closed; a call without this event was cut off and is not whole."""

    index: int


ParseEvent = Text | Reasoning | CallStart | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One candidate at a position: decoded text, UTF-8 bytes, natural-log probability."""

    token_id: int
    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    rank: int | None = None
    """In the vocabulary, from 1; where the engine says so."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The sampled token of one position and the requested candidates, best first."""

    sampled: TopLogprob
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the tokens that the events beside it came from."""

    positions: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The choice is complete: OpenAI's finish reason, and the stop string or token id that ended it."""

    reason: str
    stop_reason: int | str | None = None


Event = ParseEvent | Logprobs | Finish
