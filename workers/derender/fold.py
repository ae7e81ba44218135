"""Token chunks to a client's answer: a pure fold, whose state can be saved as JSON after any step.

    context = describe(profile, "openai_chat", request, response_id=..., created=..., prompt_token_ids=prompt)
    state = start(profile, context, prompt)
    for chunk in token_chunks:
        state, chunks, stopped = step(profile, context, state, chunk)     # client chunks, ready to be sent
    state, chunks, _ = finish(profile, context, state)

A whole answer is the same chunks folded (`respond`). The detokenizer, the stop strings, the parser and the surface each
keep a bounded state, so a step costs the same whatever came before it. A state that is saved between any two steps and
loaded elsewhere gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tasks.errors import EngineFailed, InvalidRequest, InvalidState
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import STATE_VERSION, DerenderContext
from tasks.protocol.events import Event, Finish, Logprobs, ParseEvent, Reasoning, TokenLogprobs, TopLogprob
from tasks.protocol.tokens import CandidateLogprob, PositionLogprobs, TokenChunk
from workers import parsing
from workers.models.catalog import ModelProfile
from workers.parsing.spec import REASONING
from workers.renderers.base import template_arguments as resolve_arguments
from workers.surfaces.base import AnswerFacts, ChoiceDelta, load_surface
from workers.text import detokenizer, stops
from workers.text.logprobs import CONTEXT_TOKENS, describe_token
from workers.text.pieces import Piece

BLOCK_TOKENS = 64
"""Tokens that are read together if it does not matter which of them did what."""
PLAIN = parsing.bind(parsing.load_format(None, None), {})
LOWEST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have."""
OTHER_MODEL = "The derender state belongs to another model or to other settings: start the stream again without it."


@dataclass(frozen=True, slots=True)
class ChoiceState:
    """How far one choice has been derendered."""

    text: detokenizer.DetokenizerState
    stop: stops.StopState
    parse: parsing.ParserState
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    undecided_tokens: int = 0
    """The latest tokens that have led to no event yet; they count as reasoning if they lead to reasoning."""
    held: int | None = None
    """A stop token, which is text only if another token follows it."""
    recent: tuple[int, ...] = ()
    """The latest tokens, for the log-probabilities of characters that span several tokens."""
    finished: bool = False


@dataclass(frozen=True, slots=True)
class DerenderState:
    """How far a request's answer has been derendered; `dump` and `load` convert it to and from JSON."""

    fingerprint: str
    choices: tuple[ChoiceState, ...]
    surface: Any

    @property
    def done(self) -> bool:
        """Whether every choice has finished."""
        return all(choice.finished for choice in self.choices)


class Step(NamedTuple):
    """The state after a token chunk, and the client's next chunks.

    `stopped`: a stop string ended the choice here but not at the engine, whose request must be aborted.
    """

    state: DerenderState
    chunks: list[JsonObject]
    stopped: bool = False


def describe(
    profile: ModelProfile,
    surface: str,
    request: Any,
    *,
    response_id: str,
    created: int,
    prompt_token_ids: Sequence[int],
    model: str | None = None,
    template_arguments: JsonObject | None = None,
    prompt_text: str | None = None,
    sampling: JsonObject | None = None,
) -> DerenderContext:
    """The derender context of a request; `request` is what the surface's `read` returned.

    `model` is the model's name in the answer; None means the profile's. `template_arguments` are the request's combined
    with the model's defaults; None combines them here. `sampling` are the engine's sampling parameters, for answers
    that report them. Raises InvalidRequest if tools may be called and the model has no tool parser.
    """
    protocol = load_surface(surface)
    if template_arguments is None:
        template_arguments = resolve_arguments(protocol.converse(request), profile.settings.default_template_arguments)
    facts = AnswerFacts(
        model=model or profile.name,
        response_id=response_id,
        created=created,
        prompt_token_ids=tuple(prompt_token_ids),
        tool_parser=profile.settings.tool_parser is not None,
        reasoning_parser=profile.settings.reasoning_parser is not None,
        tool_arguments=profile.settings.tool_arguments,
        call_ids=profile.parser.format.call_ids,
        # Only the prompt needs the documents, which may be long.
        template_arguments={name: value for name, value in template_arguments.items() if name != "documents"},
        skip_special_tokens=bool(profile.generation_defaults.get("skip_special_tokens", True)),
        stop_token_ids=tuple(profile.generation_defaults.get("stop_token_ids") or ()),
        system_fingerprint=f"tokenyard-{profile.fingerprint[:8]}",
        prompt_text=prompt_text,
        sampling=sampling or {},
    )
    context = protocol.describe(request, facts)
    if context.parse.get("tool_choice") not in (None, "none") and not context.tool_parser:
        raise InvalidRequest(
            f"The model {facts.model!r} cannot call tools: send tool_choice 'none', or give it a tool_parser.",
            param="tool_choice",
        )
    return context


def start(profile: ModelProfile, context: DerenderContext, prompt_token_ids: Sequence[int]) -> DerenderState:
    """The state before the first token. Later steps do not need the prompt."""
    choice = ChoiceState(
        # Special tokens may be markup, so the parser gets all of them, and hides those that the client must not see.
        text=detokenizer.start(
            profile.tokenizer,
            prompt_token_ids,
            skip_special_tokens=context.skip_special_tokens and not context.parsed,
        ),
        stop=stops.start(context.stops, include_stop_str_in_output=context.include_stop, min_tokens=context.min_tokens),
        parse=parsing.start(_parser(profile, context), _parse_context(context), prompt_token_ids),
    )
    surface = load_surface(context.surface).start(context)
    return DerenderState(profile.fingerprint, (choice,) * context.n, surface)


def step(profile: ModelProfile, context: DerenderContext, state: DerenderState, chunk: TokenChunk) -> Step:
    """Derender the next tokens of one choice; chunks of a choice that has finished change only the usage.

    Raises EngineFailed if the engine reports an error, or sends a choice that was not requested.
    """
    if not 0 <= chunk.index < len(state.choices):
        raise EngineFailed(f"The engine sent choice {chunk.index} of {len(state.choices)}, counted from 0.")
    before = state.choices[chunk.index]
    if before.finished:
        state, chunks = _emit(context, state, before, ChoiceDelta(chunk.index, cached_tokens=_cached(context, chunk)))
        return Step(state, chunks)
    if chunk.finish_reason == "error":
        raise EngineFailed(f"The engine ended choice {chunk.index} with an error.")
    choice, events, kept, matched = _read(profile, context, before, chunk)
    positions = _positions(profile, before.recent, chunk, kept) if context.logprobs is not None else ()
    if positions:
        events.append(Logprobs(positions))
        choice = replace(choice, recent=(*before.recent, *chunk.token_ids[:kept])[-CONTEXT_TOKENS:])
    if matched is not None:
        choice, last = _close(_parser(profile, context), choice, "stop", matched)
        events += last
    elif chunk.finish_reason is not None:
        choice, last = _close(
            _parser(profile, context), choice, chunk.finish_reason, _stop_reason(profile, context, chunk)
        )
        events += last
    delta = ChoiceDelta(
        index=chunk.index,
        events=tuple(events),
        token_ids=chunk.token_ids[:kept],
        cached_tokens=_cached(context, chunk),
        extra=chunk.extra,
    )
    state, chunks = _emit(context, state, choice, delta)
    return Step(state, chunks, stopped=matched is not None and chunk.finish_reason is None)


def finish(profile: ModelProfile, context: DerenderContext, state: DerenderState, reason: str = "abort") -> Step:
    """End the stream: choices that are still open end with `reason`, then the surface adds its last chunks."""
    chunks: list[JsonObject] = []
    for index, choice in enumerate(state.choices):
        if not choice.finished:
            closed, events = _close(_parser(profile, context), choice, reason, None)
            state, more = _emit(context, state, closed, ChoiceDelta(index, tuple(events)))
            chunks += more
    surface, last = load_surface(context.surface).finish(context, state.surface)
    return Step(replace(state, surface=surface), chunks + last)


def respond(
    profile: ModelProfile, context: DerenderContext, prompt_token_ids: Sequence[int], chunks: Iterable[TokenChunk]
) -> JsonObject:
    """The whole answer: `start`, `step` and `finish`, folded. Incomplete calls are left out."""
    context = replace(context, stream=False, tool_arguments="complete")

    def client_chunks() -> Iterator[JsonObject]:
        state = start(profile, context, prompt_token_ids)
        for chunk in chunks:
            state, more, _ = step(profile, context, state, chunk)
            yield from more
        yield from finish(profile, context, state).chunks

    return load_surface(context.surface).fold(context, client_chunks())


def _emit(
    context: DerenderContext, state: DerenderState, choice: ChoiceState, delta: ChoiceDelta
) -> tuple[DerenderState, list[JsonObject]]:
    """The state with the choice in it, and the client chunks for the delta."""
    delta = replace(delta, completion_tokens=choice.completion_tokens, reasoning_tokens=choice.reasoning_tokens)
    surface, chunks = load_surface(context.surface).step(context, state.surface, delta)
    choices = (*state.choices[: delta.index], choice, *state.choices[delta.index + 1 :])
    return replace(state, choices=choices, surface=surface), chunks


def _read(
    profile: ModelProfile, context: DerenderContext, choice: ChoiceState, chunk: TokenChunk
) -> tuple[ChoiceState, list[Event], int, str | None]:
    """The choice after the chunk's tokens, their events, how many of them count, and the stop string they end in."""
    arrived = len(chunk.token_ids)
    token_ids = chunk.token_ids if choice.held is None else (choice.held, *chunk.token_ids)
    total = len(token_ids)
    held, token_ids = _split_stop_token(profile, context, chunk, token_ids)
    choice = replace(choice, held=held, completion_tokens=choice.completion_tokens + arrived)
    events: list[Event] = []
    for at, group, fed in _feed_all(profile, context, choice, token_ids):
        choice = fed.choice
        events += fed.events
        if fed.matched is not None:
            beyond = total - at - len(group)
            counted = replace(choice, held=None, completion_tokens=choice.completion_tokens - beyond)
            return counted, events, max(0, arrived - beyond), fed.matched
    return choice, events, arrived, None


class _Fed(NamedTuple):
    """The result of feeding a group of tokens."""

    choice: ChoiceState
    events: list[ParseEvent]
    matched: str | None
    clear: bool
    """Whether it is known how many of the tokens count, and how many of them are reasoning."""


def _feed_all(
    profile: ModelProfile, context: DerenderContext, choice: ChoiceState, token_ids: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...], _Fed]]:
    """Feeds blocks of tokens, or single tokens if a block is not clear; ends at a stop string.

    Yields the place of the first token, the tokens, and the result.
    """
    for begin in range(0, len(token_ids), BLOCK_TOKENS):
        block = token_ids[begin : begin + BLOCK_TOKENS]
        # Until `min_tokens` have been counted, it matters in which token a stop string ends.
        fed = None if choice.stop.unarmed_tokens else _feed(profile, context, choice, block)
        if fed is not None and fed.clear:
            choice = fed.choice
            yield begin, block, fed
            continue
        for offset, token_id in enumerate(block):
            fed = _feed(profile, context, choice, (token_id,))
            choice = fed.choice
            yield begin + offset, (token_id,), fed
            if fed.matched is not None:
                return


def _feed(profile: ModelProfile, context: DerenderContext, choice: ChoiceState, group: tuple[int, ...]) -> _Fed:
    text, pieces = detokenizer.step(profile.tokenizer, choice.text, group)
    stop, pieces, matched = stops.step(choice.stop, pieces, token_count=len(group))
    fed, events = _parse(_parser(profile, context), replace(choice, text=text, stop=stop), pieces, len(group))
    clear = len(group) == 1 or (
        matched is None and not (context.reasoning_parser and _is_mixed(choice, fed, pieces, events))
    )
    return _Fed(fed, events, matched, clear)


def _is_mixed(before: ChoiceState, after: ChoiceState, pieces: Sequence[Piece], events: Sequence[ParseEvent]) -> bool:
    """Whether some of the tokens may be reasoning and others not."""
    inside = [state.parse.mode == REASONING for state in (before, after)]
    reasoned = [event.text for event in events if isinstance(event, Reasoning)]
    if not any(inside) and not reasoned:
        return False
    waiting = after.text.held or after.text.pending or after.stop.held or after.parse.held
    if not all(inside) or waiting or not all(isinstance(piece, str) for piece in pieces):
        return True
    return before.parse.held + "".join(map(str, pieces)) != "".join(reasoned)


def _split_stop_token(
    profile: ModelProfile, context: DerenderContext, chunk: TokenChunk, token_ids: tuple[int, ...]
) -> tuple[int | None, tuple[int, ...]]:
    """Take the stop token off the end, because it is not text: (the token if it must be held, the others).

    It may come before the chunk that ends the choice. Until then it is held: it is text if another token follows.
    """
    if not token_ids or context.include_stop:
        return None, token_ids
    last = token_ids[-1]
    if chunk.finish_reason is None:
        return (last, token_ids[:-1]) if _may_end(profile, context, last) else (None, token_ids)
    if chunk.finish_reason != "stop" or isinstance(chunk.stop_reason, str):
        return None, token_ids
    ended = _may_end(profile, context, last) if chunk.stop_reason is None else last == chunk.stop_reason
    return None, token_ids[:-1] if ended else token_ids


def _may_end(profile: ModelProfile, context: DerenderContext, token_id: int) -> bool:
    return token_id in context.stop_token_ids or (not context.ignore_eos and token_id in profile.eos_token_ids)


def _stop_reason(profile: ModelProfile, context: DerenderContext, chunk: TokenChunk) -> int | str | None:
    """The engine's stop reason; if it gives none, the stop token unless it is the model's usual one."""
    if chunk.stop_reason is not None or chunk.finish_reason != "stop" or not chunk.token_ids:
        return chunk.stop_reason
    last = chunk.token_ids[-1]
    usual = profile.eos_token_ids[:1] if not context.ignore_eos else ()
    return last if last not in usual and _may_end(profile, context, last) else None


def _parser(profile: ModelProfile, context: DerenderContext) -> parsing.Parser:
    """The model's parser, or one that leaves the text alone if the answer is not parsed."""
    return profile.parser if context.parsed else PLAIN


def _parse(
    parser: parsing.Parser, choice: ChoiceState, pieces: Sequence[Piece], token_count: int
) -> tuple[ChoiceState, list[ParseEvent]]:
    """The choice after these pieces, and their events; the pieces come from `token_count` tokens."""
    parse, events = parsing.step(parser, choice.parse, pieces) if pieces else (choice.parse, [])
    # Markers are not reasoning: tokens that begin or end it, or that a marker swallows, do not count.
    inside = choice.parse.mode == parse.mode == REASONING and (not pieces or bool(events) or bool(parse.held))
    undecided = choice.undecided_tokens + token_count if inside else 0
    reasoning = choice.reasoning_tokens
    if any(isinstance(event, Reasoning) for event in events):
        reasoning, undecided = reasoning + (undecided or min(token_count, 1)), 0
    return replace(choice, parse=parse, reasoning_tokens=reasoning, undecided_tokens=undecided), events


def _close(
    parser: parsing.Parser, choice: ChoiceState, reason: str, stop_reason: int | str | None
) -> tuple[ChoiceState, list[Event]]:
    """The choice at its end, and its last events: what was held back, and the finish."""
    stop, pieces = stops.finish(choice.stop)
    choice = replace(choice, text=detokenizer.finish(choice.text), stop=stop, held=None, finished=True)
    choice, events = _parse(parser, choice, pieces, 0)
    rest, finish_reason = parsing.finish(parser, choice.parse, reason)
    if choice.parse.mode == REASONING:
        # Tokens that were held back, or cut off with a stop string, belong to the reasoning.
        choice = replace(choice, reasoning_tokens=choice.reasoning_tokens + choice.undecided_tokens)
    return choice, [*events, *rest, Finish(finish_reason, stop_reason)]


def _parse_context(context: DerenderContext) -> parsing.ParseContext:
    given = context.parse
    choice = given.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"name": choice["function"]["name"]}
    return parsing.ParseContext(
        tools=tuple(given.get("tools") or ()),
        tool_choice="none" if choice is None else choice,
        parallel_tool_calls=given.get("parallel_tool_calls") is not False,
        # Hidden reasoning must be counted too; the surface leaves it out.
        include_reasoning=True,
        skip_special_tokens=context.skip_special_tokens,
        template_arguments=given.get("chat_template_kwargs") or {},
        history_tool_call_count=given.get("history_tool_call_cnt") or 0,
        tool_arguments=context.tool_arguments,
    )


def _cached(context: DerenderContext, chunk: TokenChunk) -> int | None:
    """Prompt tokens from the engine's cache, without a resumed request's own output, which may be cached too."""
    return None if chunk.cached_tokens is None else min(chunk.cached_tokens, context.prompt_tokens)


def _positions(
    profile: ModelProfile, recent: tuple[int, ...], chunk: TokenChunk, kept: int
) -> tuple[TokenLogprobs, ...]:
    given: Sequence[PositionLogprobs] = (chunk.logprobs or ())[:kept]
    before = (*recent, *chunk.token_ids)
    out = []
    for at, position in enumerate(given):
        near = before[: len(recent) + at][-CONTEXT_TOKENS:]
        shown = {c.token_id: _candidate(profile, c, near) for c in (position.sampled, *position.top)}
        out.append(
            TokenLogprobs(
                shown[position.sampled.token_id], tuple(shown[candidate.token_id] for candidate in position.top)
            )
        )
    return tuple(out)


def _candidate(profile: ModelProfile, candidate: CandidateLogprob, near: tuple[int, ...]) -> TopLogprob:
    token, data = describe_token(profile.tokenizer, candidate.token_id, near)
    return TopLogprob(candidate.token_id, token, max(candidate.logprob, LOWEST_LOGPROB), data, candidate.rank)


def dump(context: DerenderContext, state: DerenderState) -> JsonObject:
    """The state as JSON, one entry per choice in all but `surface`."""
    return {
        "v": STATE_VERSION,
        "fingerprint": state.fingerprint,
        "text": [
            {
                **detokenizer.dump(choice.text),
                "counts": [choice.completion_tokens, choice.reasoning_tokens, choice.undecided_tokens],
                "end": choice.held,
                "recent": list(choice.recent),
                "finished": choice.finished,
            }
            for choice in state.choices
        ],
        "stop": [stops.dump(choice.stop) for choice in state.choices],
        "parse": [choice.parse.dump() for choice in state.choices],
        "surface": load_surface(context.surface).dump(state.surface),
    }


def load(profile: ModelProfile, context: DerenderContext, data: Any) -> DerenderState:
    """Restore what `dump` returned; raises InvalidState if it is malformed, or of another version or model."""
    if not isinstance(data, dict) or data.get("v") != STATE_VERSION:
        raise InvalidState("The derender state is of another version: start the stream again without it.")
    if data.get("fingerprint") != profile.fingerprint:
        raise InvalidState(OTHER_MODEL)
    rows: list[Any] = [data.get(name) for name in ("text", "stop", "parse")]
    if any(not isinstance(row, list) or len(row) != context.n for row in rows):
        raise InvalidState(f"The derender state is malformed: it must have {context.n} choices.")
    choices = tuple(_load_choice(*row) for row in zip(*rows, strict=True))
    surface = load_surface(context.surface).load(data.get("surface"), context.n)
    return DerenderState(profile.fingerprint, choices, surface)


def _load_choice(text: Any, stop: Any, parse: Any) -> ChoiceState:
    try:
        counts, end, recent, finished = text["counts"], text["end"], text["recent"], text["finished"]
        numbers = [*counts, *recent, *([] if end is None else [end])]
        sound = len(counts) == 3 and len(recent) <= CONTEXT_TOKENS and type(finished) is bool
    except (KeyError, TypeError) as error:
        raise InvalidState from error
    if not sound or any(type(number) is not int or number < 0 for number in numbers):
        raise InvalidState
    return ChoiceState(
        text=detokenizer.load(text),
        stop=stops.load(stop),
        parse=parsing.ParserState.load(parse),
        completion_tokens=counts[0],
        reasoning_tokens=counts[1],
        undecided_tokens=counts[2],
        held=end,
        recent=tuple(recent),
        finished=finished,
    )
