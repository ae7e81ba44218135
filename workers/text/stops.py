"""Finds stop strings in a stream of pieces: a fold over a small state that converts to JSON.

    state = start(["\\n\\n", "END"])
    state, pieces, matched = step(state, ["one\\n"])    # ["one"], None: the line break may begin a stop string
    state, pieces, matched = step(state, ["\\ntwo"])    # [], "\\n\\n"

The stop string that completes first wins; of several that complete together, the one listed first. Only text that may
become a stop string is held back, and nothing comes out after a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.errors import InvalidState
from workers.text.pieces import AddedToken, Piece

_INVALID = "The stop strings' state is not valid: send the last stream_state back unchanged."


@dataclass(frozen=True, slots=True)
class StopState:
    """The state between two steps.

    `held` is held back because it may begin a stop string; `seen` may begin one too, but has been sent. Matches do not
    count in the next `unarmed_tokens` tokens.
    """

    stops: tuple[str, ...]
    include_stop_str_in_output: bool = False
    unarmed_tokens: int = 0
    held: tuple[Piece, ...] = ()
    seen: str = ""
    matched: str | None = None


def start(stops: Sequence[str], *, include_stop_str_in_output: bool = False, min_tokens: int = 0) -> StopState:
    """The state before the first token. A stop string counts once it ends beyond the first `min_tokens` tokens."""
    return StopState(tuple(stop for stop in stops if stop), include_stop_str_in_output, min_tokens)


def step(
    state: StopState, pieces: Sequence[Piece], *, token_count: int = 1
) -> tuple[StopState, list[Piece], str | None]:
    """Returns the new state, the pieces that may be sent, and the stop string that ended the text, if any.

    `pieces` come from `token_count` tokens. To learn which token completed the stop string, or to use `min_tokens`,
    pass one token at a time.
    """
    if state.matched is not None:
        return state, [], state.matched
    if not state.stops:
        return state, list(pieces), None
    if not state.held and not state.seen and not state.unarmed_tokens and not _may_begin(state.stops, pieces):
        return state, list(pieces), None
    armed = token_count > state.unarmed_tokens
    state = replace(state, unarmed_tokens=max(0, state.unarmed_tokens - token_count)) if state.unarmed_tokens else state
    waiting = [*state.held, *pieces]
    old = len(state.seen) + sum(map(_length, state.held))
    text = state.seen + "".join(map(_text, waiting))
    if len(text) == old:
        return replace(state, held=tuple(waiting)), [], None
    if armed and (match := _first_match(text, state.stops, old)):
        begin, stop = match
        end = begin + len(stop) if state.include_stop_str_in_output else begin
        out = _cut(waiting, end - len(state.seen))
        return replace(state, held=(), seen="", matched=stop), out, stop
    live = _live_prefix(text, state.stops)
    if state.include_stop_str_in_output:
        return replace(state, seen=text[len(text) - live :]), waiting, None
    out, held = _hold(waiting, live)
    return replace(state, held=tuple(held)), out, None


def finish(state: StopState) -> tuple[StopState, list[Piece]]:
    """End the text; returns the pieces that were held back."""
    return replace(state, held=(), seen=""), list(state.held)


def _may_begin(stops: tuple[str, ...], pieces: Sequence[Piece]) -> bool:
    for piece in pieces:
        text = _text(piece)
        for stop in stops:
            if stop[0] in text:
                return True
    return False


def _text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.text


def _length(piece: Piece) -> int:
    return len(_text(piece))


def _first_match(text: str, stops: tuple[str, ...], old: int) -> tuple[int, str] | None:
    """The stop string that completes first, after the first `old` characters, and where it begins."""
    found = [
        (begin + len(stop), order, begin, stop)
        for order, stop in enumerate(stops)
        if (begin := text.find(stop, max(0, old - len(stop) + 1))) >= 0
    ]
    return min(found)[2:] if found else None


def _live_prefix(text: str, stops: tuple[str, ...]) -> int:
    """The length of the longest suffix of `text` that begins a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


def _cut(pieces: Sequence[Piece], length: int) -> list[Piece]:
    """The pieces' first `length` characters; an added token that is cut becomes text."""
    out: list[Piece] = []
    for piece in pieces:
        if length <= 0:
            break
        size = _length(piece)
        out.append(piece if size <= length else _text(piece)[:length])
        length -= size
    return out


def _hold(pieces: Sequence[Piece], length: int) -> tuple[list[Piece], list[Piece]]:
    """Pieces split before the last `length` characters, or before the added token in which those begin."""
    for index in range(len(pieces) - 1, -1, -1):
        if length <= 0:
            return list(pieces[: index + 1]), list(pieces[index + 1 :])
        piece = pieces[index]
        if isinstance(piece, str) and len(piece) > length:
            return [*pieces[:index], piece[:-length]], [piece[-length:], *pieces[index + 1 :]]
        length -= _length(piece)
    return [], list(pieces)


def dump(state: StopState) -> dict[str, Any]:
    """The state as JSON; fields at their defaults are left out."""
    out: dict[str, Any] = {"stops": list(state.stops)}
    if state.include_stop_str_in_output:
        out["include"] = True
    if state.unarmed_tokens:
        out["unarmed"] = state.unarmed_tokens
    if state.held:
        out["held"] = [p if isinstance(p, str) else [p.token_id, p.text, p.special] for p in state.held]
    if state.seen:
        out["seen"] = state.seen
    if state.matched is not None:
        out["matched"] = state.matched
    return out


def load(data: dict[str, Any]) -> StopState:
    """Restore the state that `dump` returned; raises `InvalidState` for anything else."""
    try:
        state = StopState(
            stops=tuple(data["stops"]),
            include_stop_str_in_output=data.get("include", False),
            unarmed_tokens=data.get("unarmed", 0),
            held=tuple(p if isinstance(p, str) else AddedToken(*p) for p in data.get("held", ())),
            seen=data.get("seen", ""),
            matched=data.get("matched"),
        )
        sound = (
            all(isinstance(stop, str) and stop for stop in state.stops)
            and isinstance(state.include_stop_str_in_output, bool)
            and type(state.unarmed_tokens) is int
            and (state.matched is None or state.matched in state.stops)
            and sum(map(_length, state.held[1:])) + len(state.seen) < max(map(len, state.stops), default=1)
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidState(_INVALID) from error
    if not sound:
        raise InvalidState(_INVALID)
    return state
