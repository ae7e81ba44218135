"""The neutral form of an answer: the events of a model's parsed output, whichever format or surface it has.

The parser (`workers.parsing`) makes the first five kinds, the derendering fold adds the rest, and surfaces turn all of
them into client chunks. Standard library only, to keep parsing pure.

    Reasoning("Let me look.") Text("It is ") CallStart(0, "get_weather", None)
    CallArguments(0, '{"city": "Z') CallArguments(0, 'ürich"}') CallEnd(0) Finish("tool_calls", None)

Adjacent `Text`, `Reasoning` or `CallArguments` (of one index) may be merged without changing their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call starts: its index among the choice's calls, its function's name, and the id that the model wrote.

    `call_id` is None if the format has no ids; the surface then makes one.
    """

    index: int
    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next fragment of a call's arguments. All fragments of a closed call together form one JSON object."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A tool call is complete. A call without this event was cut off."""

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
    """Rank in the vocabulary, from 1; None if the engine does not send it."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The sampled token at one position, and the requested candidates, best first."""

    sampled: TopLogprob
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the tokens behind the events in the same step."""

    positions: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The choice is complete: OpenAI's finish reason, and the stop string or token id that ended it."""

    reason: str
    stop_reason: int | str | None = None


Event = ParseEvent | Logprobs | Finish
