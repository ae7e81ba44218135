"""Turns token ids into text as they arrive: a fold over a small state that converts to JSON.

    state = start(tokenizer, prompt_token_ids, skip_special_tokens=False)
    state, pieces = step(tokenizer, state, [57, 3355])   # ["It is ", AddedToken(151657, "<tool_call>", False)]
    state = finish(state)

All pieces together are the decoded whole, however the ids are split into steps. If text ends inside a character, all
text of its tokens is held back, as in the reference, but never more than `_MAX_HELD`: endless invalid bytes come out as
U+FFFD, and the state stays small.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

from tasks.errors import InvalidState
from workers.text.pieces import AddedToken, Piece
from workers.text.tokenizer import Tokenizer

_MAX_HELD = 64
"""Bytes (or, with an inexact decoder, 16 tokens) that may wait for the rest of a character."""
_MAX_PENDING = 16
_CONTEXT = 7
"""Prompt ids that an inexact decoder needs as context to place spaces."""

_INVALID = "The detokenizer's state is not valid: send the last stream_state back unchanged."


@dataclass(frozen=True, slots=True)
class DetokenizerState:
    """`at_start` is true before any text, the prompt's included; `held` has the bytes of an unfinished character.

    Only inexact decoders use `context` (ids whose text has been sent) and `pending` (ids whose text has not).
    """

    skip_special_tokens: bool
    at_start: bool = False
    held: bytes = b""
    context: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()


def start(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
) -> DetokenizerState:
    """The state before the first output token.

    With `skip_special_tokens`, hidden tokens give no piece; without it, they give an `AddedToken`. The prompt decides
    whether the first token keeps its leading space; its last few ids are enough.
    """
    visible = [
        token_id for token_id in prompt_token_ids[-64:] if not (skip_special_tokens and tokenizer.is_hidden(token_id))
    ]
    if not tokenizer.table.exact:
        return DetokenizerState(skip_special_tokens, not visible, context=tuple(visible[-_CONTEXT:]))
    return DetokenizerState(skip_special_tokens, not visible)


def step(
    tokenizer: Tokenizer, state: DetokenizerState, token_ids: Sequence[int]
) -> tuple[DetokenizerState, list[Piece]]:
    """Returns the state after these ids, and the pieces that they complete, with adjacent text merged."""
    if not tokenizer.table.exact:
        return _step_in_context(tokenizer, state, token_ids)
    table = tokenizer.table
    held = state.held
    pieces: list[Piece] = []
    text: list[str] = []
    for token_id in token_ids:
        entry = table[token_id]
        if entry.__class__ is str:
            if held:
                text.append(table.lossy(held))
                held = b""
            text.append(entry)
        elif entry.__class__ is bytes:
            held += entry
            whole = table.lossy(held)
            if not whole.endswith("\ufffd"):
                text.append(whole)
                held = b""
            elif len(held) > _MAX_HELD:
                _, decided = utf_8_decode(held, "replace", False)
                text.append(table.lossy(held[:decided]))
                held = held[decided:]
        elif isinstance(entry, AddedToken) and not (entry.special and state.skip_special_tokens):
            if held:
                text.append(table.lossy(held))
                held = b""
            if text:
                pieces.append("".join(text))
                text = []
            pieces.append(entry)
    if text:
        pieces.append("".join(text))
    if state.at_start and pieces:
        if table.strips_leading_space and isinstance(pieces[0], str):
            pieces[0] = pieces[0].removeprefix(" ")
            if not pieces[0]:
                del pieces[0]
        return DetokenizerState(state.skip_special_tokens, held=held), pieces
    return replace(state, held=held) if held != state.held else state, pieces


def finish(state: DetokenizerState) -> DetokenizerState:
    """End the text. An unfinished character is dropped, as in the reference."""
    return replace(state, held=b"", pending=())


def _step_in_context(
    tokenizer: Tokenizer, state: DetokenizerState, token_ids: Sequence[int]
) -> tuple[DetokenizerState, list[Piece]]:
    """`step` for decoders that place spaces by a token's neighbours: compares texts with and without the new tokens."""
    context, pending = list(state.context), list(state.pending)
    pieces: list[Piece] = []

    def emit(text: str) -> None:
        if text and pieces and isinstance(pieces[-1], str):
            pieces[-1] += text
        elif text:
            pieces.append(text)

    for token_id in token_ids:
        entry = tokenizer.table[token_id]
        if entry is None or (isinstance(entry, AddedToken) and entry.special and state.skip_special_tokens):
            continue
        pending.append(token_id)
        before = tokenizer.decode(context)
        text = tokenizer.decode(context + pending)
        new = text[len(commonprefix((before, text))) :]
        if isinstance(entry, AddedToken):
            emit(new.removesuffix(entry.text))
            pieces.append(entry)
        elif len(pending) < _MAX_PENDING and (not new or new.endswith("\ufffd")):
            continue
        else:
            emit(new)
        context, pending = pending, []
    return DetokenizerState(
        state.skip_special_tokens, state.at_start and not pieces, context=tuple(context), pending=tuple(pending)
    ), pieces


def dump(state: DetokenizerState) -> dict[str, Any]:
    """The state as JSON; fields at their defaults are left out."""
    out: dict[str, Any] = {"skip": state.skip_special_tokens}
    if state.at_start:
        out["start"] = True
    if state.held:
        out["held"] = state.held.hex()
    if state.context:
        out["context"] = list(state.context)
    if state.pending:
        out["pending"] = list(state.pending)
    return out


def load(data: dict[str, Any]) -> DetokenizerState:
    """Restore the state that `dump` returned; raises `InvalidState` for anything else."""
    try:
        state = DetokenizerState(
            skip_special_tokens=data["skip"],
            at_start=data.get("start", False),
            held=bytes.fromhex(data.get("held", "")),
            context=tuple(data.get("context", ())),
            pending=tuple(data.get("pending", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidState(_INVALID) from error
    sound = (
        isinstance(state.skip_special_tokens, bool)
        and isinstance(state.at_start, bool)
        and len(state.held) <= _MAX_HELD
        and len(state.context) <= max(_CONTEXT, _MAX_PENDING)
        and len(state.pending) < _MAX_PENDING
        and all(type(token_id) is int for token_id in (*state.context, *state.pending))
    )
    if not sound:
        raise InvalidState(_INVALID)
    return state
