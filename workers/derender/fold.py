"""Token chunks to a client's answer: a pure fold, whose state survives JSON at every step.

    context = describe(profile, "openai_chat", request, response_id=..., created=..., prompt_token_ids=prompt)
    state = start(profile, context, prompt)
    for chunk in token_chunks:
        state, chunks, stopped = step(profile, context, state, chunk)     # client chunks, ready to be sent
    state, chunks, _ = finish(profile, context, state)

A one-shot answer is the same chunks folded (`respond`). Detokenize, stop strings, parsing and the surface each keep a
bounded state, so a step costs the same whatever came before, and the state may travel: saved between any two steps
and loaded elsewhere, it gives the same answer.
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
"""Tokens that are read at once where it does not matter which of them did what."""
PLAIN = parsing.bind(parsing.load_format(None, None), {})
LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot write."""


@dataclass(frozen=True, slots=True)
class ChoiceState:
    """How far one choice has been read."""

    text: detokenizer.DetokenizerState
    stop: stops.StopState
    parse: parsing.ParserState
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    undecided_tokens: int = 0
    """Tokens in a row that gave nothing yet; reasoning if reasoning comes of them."""
    held: int | None = None
    """A token that ends the text if nothing follows it."""
    recent: tuple[int, ...] = ()
    """The last tokens, for log-probabilities of characters that several tokens share."""
    finished: bool = False


@dataclass(frozen=True, slots=True)
class DerenderState:
    """How far a request's answer has been read; `dump` and `load` are its JSON."""

    fingerprint: str
    choices: tuple[ChoiceState, ...]
    surface: Any

    @property
    def done(self) -> bool:
        """Whether every choice has finished."""
        return all(choice.finished for choice in self.choices)


class Step(NamedTuple):
    """The state after a chunk, the client's next chunks, and whether the engine goes on with a choice that is over.

    `stopped`: a stop string ended the choice here, and its request at the engine is to be aborted.
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
    """What the answer to a request depends on beside its tokens; `request` is what the surface's `read` gave.

    `model` is the name that the answer gives, the profile's own if None. `template_arguments` are the request's with
    the model's defaults laid under them; that is done here if None. `sampling` are the engine's sampling parameters,
    for answers that tell them. Raises InvalidRequest for tools that the model's settings do not provide for.
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
        # Documents are for the prompt alone, and may be long.
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
            f"The model {facts.model!r} calls no tools: its settings name no tool parser.", param="tool_choice"
        )
    return context


def start(profile: ModelProfile, context: DerenderContext, prompt_token_ids: Sequence[int]) -> DerenderState:
    """The state before the first token. The prompt is read here and never again."""
    choice = ChoiceState(
        # Markup is made of special tokens as well: the parser sees all of them and hides what is to be hidden.
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
    """Read the next tokens of one choice; chunks of a choice that has finished change nothing but the usage.

    Raises EngineFailed if the engine says that it failed, or names a choice that nobody asked for.
    """
    if not 0 <= chunk.index < len(state.choices):
        raise EngineFailed(f"The engine answered choice {chunk.index}, which was not asked for.")
    before = state.choices[chunk.index]
    if before.finished:
        state, chunks = _tell(context, state, before, ChoiceDelta(chunk.index, cached_tokens=_cached(context, chunk)))
        return Step(state, chunks)
    if chunk.finish_reason == "error":
        raise EngineFailed("The engine failed while it generated.")
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
    state, chunks = _tell(context, state, choice, delta)
    return Step(state, chunks, stopped=matched is not None and chunk.finish_reason is None)


def finish(profile: ModelProfile, context: DerenderContext, state: DerenderState, reason: str = "abort") -> Step:
    """The engine's stream is over: choices that it left open end with `reason`, then comes what the surface adds."""
    chunks: list[JsonObject] = []
    for index, choice in enumerate(state.choices):
        if not choice.finished:
            closed, events = _close(_parser(profile, context), choice, reason, None)
            state, more = _tell(context, state, closed, ChoiceDelta(index, tuple(events)))
            chunks += more
    surface, last = load_surface(context.surface).finish(context, state.surface)
    return Step(replace(state, surface=surface), chunks + last)


def respond(
    profile: ModelProfile, context: DerenderContext, prompt_token_ids: Sequence[int], chunks: Iterable[TokenChunk]
) -> JsonObject:
    """The whole answer at once: `start`, `step` and `finish`, folded. Its calls are whole, or left out."""
    context = replace(context, stream=False, tool_arguments="complete")

    def told() -> Iterator[JsonObject]:
        state = start(profile, context, prompt_token_ids)
        for chunk in chunks:
            state, more, _ = step(profile, context, state, chunk)
            yield from more
        yield from finish(profile, context, state).chunks

    return load_surface(context.surface).fold(context, told())


def _tell(
    context: DerenderContext, state: DerenderState, choice: ChoiceState, delta: ChoiceDelta
) -> tuple[DerenderState, list[JsonObject]]:
    """The state with the choice in it, and what the client hears of the delta."""
    delta = replace(delta, completion_tokens=choice.completion_tokens, reasoning_tokens=choice.reasoning_tokens)
    surface, chunks = load_surface(context.surface).step(context, state.surface, delta)
    choices = (*state.choices[: delta.index], choice, *state.choices[delta.index + 1 :])
    return replace(state, choices=choices, surface=surface), chunks


def _read(
    profile: ModelProfile, context: DerenderContext, choice: ChoiceState, chunk: TokenChunk
) -> tuple[ChoiceState, list[Event], int, str | None]:
    """The choice after the chunk's tokens, what they meant, how many of them count, and the stop string they end in."""
    arrived = len(chunk.token_ids)
    token_ids = chunk.token_ids if choice.held is None else (choice.held, *chunk.token_ids)
    total = len(token_ids)
    held, token_ids = _part_with_end(profile, context, chunk, token_ids)
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
    """What a group of tokens led to."""

    choice: ChoiceState
    events: list[ParseEvent]
    matched: str | None
    clear: bool
    """Whether it is known how many of the tokens count, and how many of them are reasoning."""


def _feed_all(
    profile: ModelProfile, context: DerenderContext, choice: ChoiceState, token_ids: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...], _Fed]]:
    """Feeds blocks, and single tokens where only they tell; each with its place. Nothing follows a stop string."""
    for begin in range(0, len(token_ids), BLOCK_TOKENS):
        block = token_ids[begin : begin + BLOCK_TOKENS]
        # Stop strings are armed by counting tokens.
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


def _part_with_end(
    profile: ModelProfile, context: DerenderContext, chunk: TokenChunk, token_ids: tuple[int, ...]
) -> tuple[int | None, tuple[int, ...]]:
    """The token that ended the text, or may have, is no text: (held, the others).

    It may come before the chunk that says that the choice has finished, so it waits for what follows.
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
    """What the engine says, or the token that ended the text where it is not the model's usual one."""
    if chunk.stop_reason is not None or chunk.finish_reason != "stop" or not chunk.token_ids:
        return chunk.stop_reason
    last = chunk.token_ids[-1]
    usual = profile.eos_token_ids[:1] if not context.ignore_eos else ()
    return last if last not in usual and _may_end(profile, context, last) else None


def _parser(profile: ModelProfile, context: DerenderContext) -> parsing.Parser:
    """What reads the output's markup; text that has none is left alone."""
    return profile.parser if context.parsed else PLAIN


def _parse(
    parser: parsing.Parser, choice: ChoiceState, pieces: Sequence[Piece], token_count: int
) -> tuple[ChoiceState, list[ParseEvent]]:
    """The choice after these pieces of so many tokens, and what they meant."""
    parse, events = parsing.step(parser, choice.parse, pieces) if pieces else (choice.parse, [])
    # A marker is no reasoning: tokens that led into or out of it, or that it swallowed, do not count.
    inside = choice.parse.mode == parse.mode == REASONING and (not pieces or bool(events) or bool(parse.held))
    undecided = choice.undecided_tokens + token_count if inside else 0
    reasoning = choice.reasoning_tokens
    if any(isinstance(event, Reasoning) for event in events):
        reasoning, undecided = reasoning + (undecided or min(token_count, 1)), 0
    return replace(choice, parse=parse, reasoning_tokens=reasoning, undecided_tokens=undecided), events


def _close(
    parser: parsing.Parser, choice: ChoiceState, reason: str, stop_reason: int | str | None
) -> tuple[ChoiceState, list[Event]]:
    """The choice at its end, with what was held back and the finish."""
    stop, pieces = stops.finish(choice.stop)
    choice = replace(choice, text=detokenizer.finish(choice.text), stop=stop, held=None, finished=True)
    choice, events = _parse(parser, choice, pieces, 0)
    rest, said = parsing.finish(parser, choice.parse, reason)
    if choice.parse.mode == REASONING:
        # Whatever was held back, or cut away with a stop string, the model spent it on its reasoning.
        choice = replace(choice, reasoning_tokens=choice.reasoning_tokens + choice.undecided_tokens)
    return choice, [*events, *rest, Finish(said, stop_reason)]


def _parse_context(context: DerenderContext) -> parsing.ParseContext:
    given = context.parse
    choice = given.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"name": choice["function"]["name"]}
    return parsing.ParseContext(
        tools=tuple(given.get("tools") or ()),
        tool_choice="none" if choice is None else choice,
        parallel_tool_calls=given.get("parallel_tool_calls") is not False,
        # Hidden reasoning is still counted, and left out by the surface.
        include_reasoning=True,
        skip_special_tokens=context.skip_special_tokens,
        template_arguments=given.get("chat_template_kwargs") or {},
        history_tool_call_count=given.get("history_tool_call_cnt") or 0,
        tool_arguments=context.tool_arguments,
    )


def _cached(context: DerenderContext, chunk: TokenChunk) -> int | None:
    """Prompt tokens from the engine's cache; a request that was resumed counts its own output there too."""
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
    """Restores what `dump` gave; raises InvalidState for another version, another model, or what does not add up."""
    if not isinstance(data, dict) or data.get("v") != STATE_VERSION:
        raise InvalidState("The stream state is of another version.")
    if data.get("fingerprint") != profile.fingerprint:
        raise InvalidState("The stream state belongs to another model, or to other settings of it.")
    rows: list[Any] = [data.get(name) for name in ("text", "stop", "parse")]
    if any(not isinstance(row, list) or len(row) != context.n for row in rows):
        raise InvalidState("The stream state does not have the request's choices.")
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
