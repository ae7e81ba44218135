"""Answers of the derender routes: an engine's answer, or one event of its stream, made into its client's.

    answer = derender_request(profile, "openai_chat", body, created=1767225600)
    # {"id": "chatcmpl-1", "object": "chat.completion", ...}, or {"chunk": {...}, "stream_state": {...}}

A stream's state travels with the client and holds all that later events need: where the text, the stop strings, the
markup and the surface are, and the few facts of the request that the answer's form depends on. It grows with the
request's tools, never with the output, so that each event costs the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tasks.errors import InvalidRequest, InvalidState, TokenyardError
from tasks.protocol.base import JsonObject, read_wire
from tasks.protocol.derender_context import DerenderContext, context_to_json, read_context
from tasks.protocol.tokens import TokenChunk
from tasks.protocol.vllm_derender import (
    ChatDerenderRequest,
    CompletionDerenderRequest,
    DerenderRequest,
    MessagesDerenderRequest,
    ResponsesDerenderRequest,
)
from tasks.protocol.vllm_generate import (
    EXTRA_OF_ANSWER,
    REQUEST_PREFIX,
    TokensChoice,
    TokensResponse,
    chunk_from_choice,
    present,
    prompt_counts,
)
from tasks.telemetry import get_logger
from workers import parsing
from workers.derender import fold
from workers.models.catalog import ModelProfile
from workers.surfaces.base import load_surface

log = get_logger(__name__)

REQUESTS: dict[str, type[DerenderRequest]] = {
    "openai_chat": ChatDerenderRequest,
    "openai_completions": CompletionDerenderRequest,
    "openai_responses": ResponsesDerenderRequest,
    "anthropic": MessagesDerenderRequest,
}
PARSED = frozenset({"openai_chat", "openai_responses", "anthropic"})
"""Surfaces whose answers have reasoning and calls."""
SINGLE = frozenset({"openai_responses", "anthropic"})
"""Surfaces whose answers have one choice."""
EMPTY: dict[str, JsonObject] = {
    "openai_chat": {"messages": [{"role": "user", "content": ""}]},
    "openai_completions": {"prompt": " ", "logprobs": None},
    "openai_responses": {"input": ""},
    "anthropic": {"model": "-", "messages": [], "max_tokens": 1},
}
"""What is taken for a request that was not sent, where nothing depends on it."""


def derender_request(profile: ModelProfile, surface: str, body: JsonObject, *, created: int) -> JsonObject:
    """The answer to a derender route's body; `created` is in Unix seconds.

    Raises:
        InvalidRequest: a field is wrong (`param` names it), or larger than the model allows.
        InvalidState: the stream state does not add up.
    """
    request = read_wire(REQUESTS[surface], body)
    if request.stream:
        return _derender_event(profile, surface, request, body, created)
    return _derender_whole(profile, surface, request, body, created)


# ---- whole answers ---------------------------------------------------------------------------------


def _derender_whole(
    profile: ModelProfile, surface: str, request: DerenderRequest, body: JsonObject, created: int
) -> JsonObject:
    several = isinstance(request, CompletionDerenderRequest)
    name = "generate_responses" if several else "generate_response"
    raw: list[JsonObject] = body[name] if several else [body[name]]
    if surface in SINGLE and len(request.responses[0].choices) != 1:
        raise InvalidRequest(f"{name}.choices must have one choice", param=f"{name}.choices")
    for place, response in enumerate(request.responses):
        _check_size(profile, response, f"{name}.{place}" if several else name)
    answers: list[JsonObject] = []
    first_index = 0
    for place, response in enumerate(request.responses):
        prompt = _entry(body, "prompt_token_ids", place, several)
        _check_length(profile, prompt, "prompt_token_ids")
        if prompt is None:
            prompt = response.prompt_token_ids
        counted = _entry(body, "prompt_tokens", place, several)
        if counted is None:
            counted, _ = prompt_counts(raw[place], len(prompt or ()))
        context = _describe(profile, surface, request, response.request_id, prompt or [], created)
        context = replace(
            context,
            n=len(response.choices),
            first_index=first_index,
            prompt_tokens=counted,
            prompt_token_ids=context.prompt_token_ids and tuple(response.prompt_token_ids or prompt or ()),
        )
        answer = fold.respond(profile, context, prompt or [], _chunks(raw[place]))
        if not several:
            _number(answer, response.choices)
        answers.append(answer)
        first_index += len(response.choices)
    return answers[0] if len(answers) == 1 else _joined_answers(answers)


def _entry(body: JsonObject, name: str, place: int, several: bool) -> Any:
    given = body.get(name)
    return given[place] if several and given is not None else given


def _chunks(response: JsonObject) -> list[TokenChunk]:
    """Each choice as one chunk, numbered by its place; what belongs to the whole answer goes with the first."""
    _, cached = prompt_counts(response, 0)
    extra = present(response, EXTRA_OF_ANSWER)
    chunks = []
    for place, choice in enumerate(response["choices"]):
        chunk = chunk_from_choice(choice, index=place, extra=extra, cached_tokens=cached)
        chunks.append(replace(chunk, finish_reason=chunk.finish_reason or "stop"))
        extra = {}
    return chunks


def _number(answer: JsonObject, choices: list[TokensChoice]) -> None:
    """Give choices the numbers that the engine gave them."""
    for told, choice in zip(answer.get("choices", ()), choices, strict=False):
        told["index"] = choice.index


def _joined_answers(answers: list[JsonObject]) -> JsonObject:
    """One completion of several prompts' completions."""
    first = answers[0]
    usage = dict(first["usage"])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        usage[name] = sum(answer["usage"][name] for answer in answers)
    transfer = {name: first[name] for name in ("kv_transfer_params", "ec_transfer_params")}
    for name, value in transfer.items():
        if any(answer[name] != value for answer in answers):
            transfer[name] = None
    cached = [details["cached_tokens"] for answer in answers if (details := answer["usage"]["prompt_tokens_details"])]
    if cached:
        usage["prompt_tokens_details"] = {**(usage["prompt_tokens_details"] or {}), "cached_tokens": sum(cached)}
    choices = [choice for answer in answers for choice in answer["choices"]]
    return {**first, **transfer, "choices": choices, "usage": usage, "metrics": None}


# ---- streams ---------------------------------------------------------------------------------------


def _derender_event(
    profile: ModelProfile, surface: str, request: DerenderRequest, body: JsonObject, created: int
) -> JsonObject:
    event: JsonObject = body["generate_chunk"]
    choice: JsonObject | None = next(iter(event["choices"]), None)
    if request.stream_state is None:
        context, state = _begin(profile, surface, request, body, created)
    else:
        try:
            context, state = _resume(profile, surface, request.stream_state)
        except InvalidState as error:
            error.param = "stream_state"
            raise
    chunks: list[JsonObject] = []
    was_done = state.done
    if choice is not None:
        begun = state.choices[0].completion_tokens > 0 or state.choices[0].finished
        if begun and choice["index"] != context.first_index:
            raise InvalidRequest(
                f"generate_chunk.choices.0.index is {choice['index']}, and the state is that of choice "
                f"{context.first_index}: keep one stream_state for each choice",
                param="stream_state",
            )
        if choice["index"] != context.first_index:
            context = replace(context, first_index=choice["index"])
        _, cached = prompt_counts(event, 0)
        chunk = chunk_from_choice(choice, index=0, extra=present(event, EXTRA_OF_ANSWER), cached_tokens=cached)
        _check_event(profile, context, state, request)
        try:
            state, chunks, _ = fold.step(profile, context, state, chunk)
        except TokenyardError:
            raise
        except Exception as error:
            # The state came from outside, and may be such as no stream ever leads to.
            log.info("stream_state_refused", exc_info=error)
            raise InvalidState(param="stream_state") from error
        if state.done and surface in SINGLE and not was_done:
            surface_state, last = load_surface(surface).finish(context, state.surface)
            state, chunks = replace(state, surface=surface_state), [*chunks, *last]
    answer = EVENTS[surface](_Told(context, state, chunks, event, told=choice is not None))
    if request.stream_state is None:
        context = replace(context, parse=_carried(context.parse), prompt_token_ids=None, prompt_text=None)
    answer["stream_state"] = {**fold.dump(context, state), "context": context_to_json(context)}
    return answer


def _begin(
    profile: ModelProfile, surface: str, request: DerenderRequest, body: JsonObject, created: int
) -> tuple[DerenderContext, fold.DerenderState]:
    assert request.generate_chunk is not None
    event = request.generate_chunk
    prompt: list[int] | None = body.get("prompt_token_ids")
    _check_length(profile, prompt, "prompt_token_ids")
    if prompt is None and surface in PARSED and _has_parser(profile):
        raise InvalidRequest(
            "prompt_token_ids is required with the first chunk of a model that has a tool or reasoning parser: the "
            "prompt says whether reasoning is open",
            param="prompt_token_ids",
        )
    if prompt is None:
        prompt = event.prompt_token_ids
    context = _describe(profile, surface, request, event.request_id, prompt or [], created)
    counted = body.get("prompt_tokens")
    context = replace(
        context,
        n=1,
        # Usage comes where the engine's events have it.
        include_usage=False,
        continuous_usage=False,
        prompt_tokens=len(prompt or ()) if counted is None else counted,
    )
    return context, fold.start(profile, context, prompt or [])


def _resume(profile: ModelProfile, surface: str, data: JsonObject) -> tuple[DerenderContext, fold.DerenderState]:
    context = read_context(data.get("context"))
    if context.surface != surface or context.n != 1 or not context.stream:
        raise InvalidState("The stream state belongs to another route.")
    if context.parsed and not _has_parser(profile):
        raise InvalidState("The stream state belongs to another model, or to other settings of it.")
    return context, fold.load(profile, context, data)


def _carried(parse: JsonObject) -> JsonObject:
    """What later events need of the request's parse context: its tools are in the parser's state."""
    return {name: parse[name] for name in ("tool_choice", "include_reasoning") if name in parse}


@dataclass(frozen=True, slots=True)
class _Told:
    """What one event of an engine's stream led to: the client's chunks, if it was about a choice (`told`)."""

    context: DerenderContext
    state: fold.DerenderState
    chunks: list[JsonObject]
    event: JsonObject
    told: bool


def _chat_event(said: _Told) -> JsonObject:
    delta: JsonObject = {"role": None, "content": None, "reasoning": None}
    told: JsonObject = {}
    shared: JsonObject = {}
    for chunk in said.chunks:
        shared |= {name: value for name, value in chunk.items() if value is not None}
        for part in chunk["choices"]:
            told |= {name: value for name, value in part.items() if value is not None}
            more = part["delta"]
            content = (delta["content"] or "") + more["content"] if more.get("content") else delta["content"]
            delta |= more | {"content": content}
    choice = {**CHAT_CHOICE, "index": said.context.first_index, **told, "delta": delta}
    return _one_chunk("chat.completion.chunk", said, shared, [choice] if said.told else [])


def _completion_event(said: _Told) -> JsonObject:
    shared = said.chunks[0] if said.chunks else {}
    told = shared["choices"][0] if said.chunks else {}
    choice = {**TEXT_CHOICE, "index": said.context.first_index, **told}
    return _one_chunk("text_completion", said, shared, [choice] if said.told else [])


def _one_chunk(kind: str, said: _Told, shared: JsonObject, choices: list[JsonObject]) -> JsonObject:
    context = said.context
    chunk = {
        "id": context.response_id,
        "object": kind,
        "created": context.created,
        "model": context.model,
        "choices": choices,
        "usage": _usage(context, said.state, said.event),
        "system_fingerprint": shared.get("system_fingerprint"),
        "metrics": said.event.get("metrics"),
        "kv_transfer_params": shared.get("kv_transfer_params"),
    }
    if kind == "chat.completion.chunk":
        chunk |= {name: shared.get(name) for name in ("prompt_token_ids", "prompt_text")}
    return {"chunk": chunk}


CHAT_CHOICE: JsonObject = {
    "logprobs": None,
    "finish_reason": None,
    "stop_reason": None,
    "token_ids": None,
    "weight_versions": None,
}
TEXT_CHOICE: JsonObject = {
    "text": "",
    "logprobs": None,
    "finish_reason": None,
    "stop_reason": None,
    "prompt_token_ids": None,
    "token_ids": None,
    "weight_versions": None,
}


def _own_events(said: _Told) -> JsonObject:
    """The client protocol's own events, of which one call may have several."""
    return {"chunks": said.chunks}


EVENTS: dict[str, Callable[[_Told], JsonObject]] = {
    "openai_chat": _chat_event,
    "openai_completions": _completion_event,
    "openai_responses": _own_events,
    "anthropic": _own_events,
}


def _usage(context: DerenderContext, state: fold.DerenderState, event: JsonObject) -> JsonObject | None:
    """The usage of an engine's event, with the prompt's tokens as the client counted them."""
    given = event.get("usage")
    if given is None:
        return None
    prompt_tokens = context.prompt_tokens or given.get("prompt_tokens") or 0
    completion_tokens = given.get("completion_tokens") or 0
    reasoning = sum(choice.reasoning_tokens for choice in state.choices) if context.reasoning_parser else None
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": given.get("prompt_tokens_details"),
        "completion_tokens_details": None if reasoning is None else {"reasoning_tokens": reasoning},
    }


# ---- generations that are stored ---------------------------------------------------------------------


def other_reader(profile: ModelProfile, own: ModelProfile, body: JsonObject) -> ModelProfile:
    """The profile that reads what `own` generated: `profile`, or it with the parsers that the body names.

    Raises InvalidRequest for a parser that nobody registered, and for a model with another tokenizer.
    """
    if profile.tokenizer.fingerprint != own.tokenizer.fingerprint:
        raise InvalidRequest(
            f"The model {profile.name!r} has another tokenizer than {own.name!r}, which generated the tokens",
            param="model",
        )
    named: JsonObject = {name: body[name] for name in ("tool_parser", "reasoning_parser") if name in body}
    if not named:
        return profile
    settings = profile.settings.model_copy(update=named)
    try:
        table = parsing.load_format(settings.tool_parser, settings.reasoning_parser)
    except ValueError as error:
        raise InvalidRequest(str(error), param=" or ".join(named)) from error
    return replace(profile, settings=settings, parser=parsing.bind(table, profile.tokenizer.added_tokens))


def read_otherwise(context: DerenderContext, reader: ModelProfile) -> DerenderContext:
    """The context of a whole answer that another profile reads."""
    return replace(
        context,
        stream=False,
        tool_parser=reader.settings.tool_parser is not None,
        reasoning_parser=reader.settings.reasoning_parser is not None,
        call_ids=reader.parser.format.call_ids,
        system_fingerprint=f"tokenyard-{reader.fingerprint[:8]}",
    )


# ---- what both share ---------------------------------------------------------------------------------


def _has_parser(profile: ModelProfile) -> bool:
    return profile.settings.tool_parser is not None or profile.settings.reasoning_parser is not None


def _describe(
    profile: ModelProfile, surface: str, request: DerenderRequest, request_id: str, prompt: list[int], created: int
) -> DerenderContext:
    """What the answer depends on; its id is that of the request that was generated for."""
    asked = request.asked
    if asked is None and surface in PARSED and _has_parser(profile):
        raise InvalidRequest(
            f"{request.request_field} is required for a model that has a tool or reasoning parser: without it, markup "
            "would be taken for text",
            param=request.request_field,
        )
    # What the client itself is told at once or as a stream does not matter here: the derender request says it.
    asked = {**(EMPTY[surface] if asked is None else asked), "stream": request.stream, "stream_options": None}
    try:
        described = fold.describe(
            profile,
            surface,
            load_surface(surface).read(asked),
            response_id=request_id.removeprefix(REQUEST_PREFIX),
            created=created,
            prompt_token_ids=prompt,
            model=request.model,
        )
    except InvalidRequest as error:
        error.param = f"{request.request_field}.{error.param}" if error.param else request.request_field
        raise
    # A request that says nothing of log-probabilities does not cut those that are there.
    return described if described.logprobs is not None else replace(described, logprobs=-1)


def _check_length(profile: ModelProfile, values: Any, name: str) -> None:
    if values is not None and len(values) > profile.max_model_len:
        raise InvalidRequest(
            f"{name} has {len(values)} entries, and the model's context {profile.max_model_len} tokens", param=name
        )


def _check_candidates(profile: ModelProfile, choice: TokensChoice, name: str) -> None:
    most = profile.settings.max_logprobs
    content = (choice.logprobs or {}).get("content") or ()
    if most >= 0 and any(len(entry.get("top_logprobs") or ()) > most + 1 for entry in content):
        raise InvalidRequest(f"{name} has more than {most} candidates for a position", param=name)


def _check_size(profile: ModelProfile, response: TokensResponse, name: str) -> None:
    """Refuses, before anything is decoded, what no answer of this model can be."""
    for place, choice in enumerate(response.choices):
        at = f"{name}.choices.{place}"
        _check_length(profile, choice.token_ids, f"{at}.token_ids")
        if choice.logprobs is not None:
            _check_length(profile, choice.logprobs.get("content"), f"{at}.logprobs.content")
        _check_candidates(profile, choice, f"{at}.logprobs")
    _check_length(profile, response.prompt_logprobs, f"{name}.prompt_logprobs")
    _check_length(profile, response.prompt_token_ids, f"{name}.prompt_token_ids")


def _check_event(
    profile: ModelProfile, context: DerenderContext, state: fold.DerenderState, request: DerenderRequest
) -> None:
    assert request.generate_chunk is not None
    (choice,) = request.generate_chunk.choices
    before, more = context.prompt_tokens + state.choices[0].completion_tokens, len(choice.token_ids or ())
    if before + more > profile.max_model_len:
        raise InvalidRequest(
            f"{before} tokens of prompt and output and {more} more exceed the model's context of "
            f"{profile.max_model_len}",
            param="generate_chunk",
        )
    _check_candidates(profile, choice, "generate_chunk.choices.0.logprobs")
