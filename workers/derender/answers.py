"""Answers of the derender routes: turns an engine's answer, or one chunk of its stream, into the client's.

    answer = derender_request(profile, "openai_chat", body, created=1767225600)
    # {"id": "chatcmpl-1", "object": "chat.completion", ...}, or {"chunk": {...}, "stream_state": {...}}

The client carries a stream's state from call to call. It holds all that later chunks need: the state of the
detokenizer, the stop strings, the parser and the surface, and the few facts of the request that the answer depends on.
It grows with the request's tools but never with the output, so each chunk costs the same.
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
"""Placeholders for a request that was not sent, used only if the answer does not depend on it."""


def derender_request(profile: ModelProfile, surface: str, body: JsonObject, *, created: int) -> JsonObject:
    """The answer to a derender route's body; `created` is in Unix seconds.

    Raises:
        InvalidRequest: a field is wrong (`param` names it), or larger than the model allows.
        InvalidState: the stream state is malformed, or belongs to another route, model or version.
    """
    request = read_wire(REQUESTS[surface], body)
    if request.stream:
        return _derender_chunk(profile, surface, request, body, created)
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
            _restore_indices(answer, response.choices)
        answers.append(answer)
        first_index += len(response.choices)
    return answers[0] if len(answers) == 1 else _joined_answers(answers)


def _entry(body: JsonObject, name: str, place: int, several: bool) -> Any:
    given = body.get(name)
    return given[place] if several and given is not None else given


def _chunks(response: JsonObject) -> list[TokenChunk]:
    """Each choice as one chunk, numbered by its place; the first also carries what belongs to the whole answer."""
    _, cached = prompt_counts(response, 0)
    extra = present(response, EXTRA_OF_ANSWER)
    chunks = []
    for place, choice in enumerate(response["choices"]):
        chunk = chunk_from_choice(choice, index=place, extra=extra, cached_tokens=cached)
        chunks.append(replace(chunk, finish_reason=chunk.finish_reason or "stop"))
        extra = {}
    return chunks


def _restore_indices(answer: JsonObject, choices: list[TokensChoice]) -> None:
    """Give the choices of the answer the indices that the engine gave them."""
    for answered, choice in zip(answer.get("choices", ()), choices, strict=False):
        answered["index"] = choice.index


def _joined_answers(answers: list[JsonObject]) -> JsonObject:
    """Join the completions of several prompts into one answer."""
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


def _derender_chunk(
    profile: ModelProfile, surface: str, request: DerenderRequest, body: JsonObject, created: int
) -> JsonObject:
    engine_chunk: JsonObject = body["generate_chunk"]
    choice: JsonObject | None = next(iter(engine_chunk["choices"]), None)
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
                f"generate_chunk.choices.0.index is {choice['index']}, but stream_state belongs to choice "
                f"{context.first_index}: keep one stream_state for each choice",
                param="stream_state",
            )
        if choice["index"] != context.first_index:
            context = replace(context, first_index=choice["index"])
        _, cached = prompt_counts(engine_chunk, 0)
        chunk = chunk_from_choice(choice, index=0, extra=present(engine_chunk, EXTRA_OF_ANSWER), cached_tokens=cached)
        _check_chunk(profile, context, state, request)
        try:
            state, chunks, _ = fold.step(profile, context, state, chunk)
        except TokenyardError:
            raise
        except Exception as error:
            # The state comes from the client, and may be one that no stream produces.
            log.info("stream_state_refused", exc_info=error)
            raise InvalidState(param="stream_state") from error
        if state.done and surface in SINGLE and not was_done:
            surface_state, last = load_surface(surface).finish(context, state.surface)
            state, chunks = replace(state, surface=surface_state), [*chunks, *last]
    answer = ANSWERS[surface](_Derendered(context, state, chunks, engine_chunk, has_choice=choice is not None))
    if request.stream_state is None:
        context = replace(context, parse=_carried(context.parse), prompt_token_ids=None, prompt_text=None)
    answer["stream_state"] = {**fold.dump(context, state), "context": context_to_json(context)}
    return answer


def _begin(
    profile: ModelProfile, surface: str, request: DerenderRequest, body: JsonObject, created: int
) -> tuple[DerenderContext, fold.DerenderState]:
    assert request.generate_chunk is not None
    engine_chunk = request.generate_chunk
    prompt: list[int] | None = body.get("prompt_token_ids")
    _check_length(profile, prompt, "prompt_token_ids")
    if prompt is None and surface in PARSED and _has_parser(profile):
        raise InvalidRequest(
            "prompt_token_ids is required with the first chunk of a model that has a tool or reasoning parser: the "
            "prompt shows whether reasoning is open",
            param="prompt_token_ids",
        )
    if prompt is None:
        prompt = engine_chunk.prompt_token_ids
    context = _describe(profile, surface, request, engine_chunk.request_id, prompt or [], created)
    counted = body.get("prompt_tokens")
    context = replace(
        context,
        n=1,
        # The answer has usage only if the engine's chunk has it.
        include_usage=False,
        continuous_usage=False,
        prompt_tokens=len(prompt or ()) if counted is None else counted,
    )
    return context, fold.start(profile, context, prompt or [])


def _resume(profile: ModelProfile, surface: str, data: JsonObject) -> tuple[DerenderContext, fold.DerenderState]:
    context = read_context(data.get("context"))
    if context.surface != surface or context.n != 1 or not context.stream:
        raise InvalidState("The stream state belongs to another route: send it to the route that returned it.")
    if context.parsed and not _has_parser(profile):
        raise InvalidState(fold.OTHER_MODEL)
    return context, fold.load(profile, context, data)


def _carried(parse: JsonObject) -> JsonObject:
    """The part of the parse context that later chunks need; the parser's state has the tools."""
    return {name: parse[name] for name in ("tool_choice", "include_reasoning") if name in parse}


@dataclass(frozen=True, slots=True)
class _Derendered:
    """The client chunks that one chunk of an engine's stream led to, and whether that chunk had a choice."""

    context: DerenderContext
    state: fold.DerenderState
    chunks: list[JsonObject]
    engine_chunk: JsonObject
    has_choice: bool


def _chat_chunk(result: _Derendered) -> JsonObject:
    delta: JsonObject = {"role": None, "content": None, "reasoning": None}
    fields: JsonObject = {}
    shared: JsonObject = {}
    for chunk in result.chunks:
        shared |= {name: value for name, value in chunk.items() if value is not None}
        for part in chunk["choices"]:
            fields |= {name: value for name, value in part.items() if value is not None}
            more = part["delta"]
            content = (delta["content"] or "") + more["content"] if more.get("content") else delta["content"]
            delta |= more | {"content": content}
    choice = {**CHAT_CHOICE, "index": result.context.first_index, **fields, "delta": delta}
    return _one_chunk("chat.completion.chunk", result, shared, [choice] if result.has_choice else [])


def _completion_chunk(result: _Derendered) -> JsonObject:
    shared = result.chunks[0] if result.chunks else {}
    fields = shared["choices"][0] if result.chunks else {}
    choice = {**TEXT_CHOICE, "index": result.context.first_index, **fields}
    return _one_chunk("text_completion", result, shared, [choice] if result.has_choice else [])


def _one_chunk(kind: str, result: _Derendered, shared: JsonObject, choices: list[JsonObject]) -> JsonObject:
    context = result.context
    chunk = {
        "id": context.response_id,
        "object": kind,
        "created": context.created,
        "model": context.model,
        "choices": choices,
        "usage": _usage(context, result.state, result.engine_chunk),
        "system_fingerprint": shared.get("system_fingerprint"),
        "metrics": result.engine_chunk.get("metrics"),
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


def _several_chunks(result: _Derendered) -> JsonObject:
    """The client chunks of a protocol that may have several for one chunk of the engine."""
    return {"chunks": result.chunks}


ANSWERS: dict[str, Callable[[_Derendered], JsonObject]] = {
    "openai_chat": _chat_chunk,
    "openai_completions": _completion_chunk,
    "openai_responses": _several_chunks,
    "anthropic": _several_chunks,
}


def _usage(context: DerenderContext, state: fold.DerenderState, engine_chunk: JsonObject) -> JsonObject | None:
    """The usage in an engine's chunk, with the prompt tokens as the client counted them."""
    given = engine_chunk.get("usage")
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


# ---- stored generations ------------------------------------------------------------------------------


def select_profile(profile: ModelProfile, own: ModelProfile, body: JsonObject) -> ModelProfile:
    """The profile to derender what `own` generated: `profile`, with the parsers that the body names, if any.

    Raises InvalidRequest for an unknown parser, and for a model with another tokenizer.
    """
    if profile.tokenizer.fingerprint != own.tokenizer.fingerprint:
        raise InvalidRequest(
            f"The model {profile.name!r} cannot read the tokens of {own.name!r}: their tokenizers differ.",
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


def change_profile(context: DerenderContext, profile: ModelProfile) -> DerenderContext:
    """The context for derendering a whole answer with another profile."""
    return replace(
        context,
        stream=False,
        tool_parser=profile.settings.tool_parser is not None,
        reasoning_parser=profile.settings.reasoning_parser is not None,
        call_ids=profile.parser.format.call_ids,
        system_fingerprint=f"tokenyard-{profile.fingerprint[:8]}",
    )


# ---- shared ------------------------------------------------------------------------------------------


def _has_parser(profile: ModelProfile) -> bool:
    return profile.settings.tool_parser is not None or profile.settings.reasoning_parser is not None


def _describe(
    profile: ModelProfile, surface: str, request: DerenderRequest, request_id: str, prompt: list[int], created: int
) -> DerenderContext:
    """The derender context of the answer, whose id is that of the generate request."""
    client_request = request.client_request
    if client_request is None and surface in PARSED and _has_parser(profile):
        raise InvalidRequest(
            f"{request.request_field} is required for a model that has a tool or reasoning parser: without it, markup "
            "would be read as text",
            param=request.request_field,
        )
    # The derender request, and not the client's request in it, says whether the answer is streamed.
    overrides = {"stream": request.stream, "stream_options": None}
    client_request = {**(EMPTY[surface] if client_request is None else client_request), **overrides}
    try:
        described = fold.describe(
            profile,
            surface,
            load_surface(surface).read(client_request),
            response_id=request_id.removeprefix(REQUEST_PREFIX),
            created=created,
            prompt_token_ids=prompt,
            model=request.model,
        )
    except InvalidRequest as error:
        error.param = f"{request.request_field}.{error.param}" if error.param else request.request_field
        raise
    # If the request does not limit log-probabilities, the answer has all that the engine sent.
    return described if described.logprobs is not None else replace(described, logprobs=-1)


def _check_length(profile: ModelProfile, values: Any, name: str) -> None:
    if values is not None and len(values) > profile.max_model_len:
        raise InvalidRequest(
            f"{name} has {len(values)} entries, more than the model's context of {profile.max_model_len} tokens",
            param=name,
        )


def _check_candidates(profile: ModelProfile, choice: TokensChoice, name: str) -> None:
    most = profile.settings.max_logprobs
    content = (choice.logprobs or {}).get("content") or ()
    if most >= 0 and any(len(entry.get("top_logprobs") or ()) > most + 1 for entry in content):
        raise InvalidRequest(
            f"{name} has more than {most} candidates for a position, the limit max_logprobs of this model", param=name
        )


def _check_size(profile: ModelProfile, response: TokensResponse, name: str) -> None:
    """Refuses an answer larger than any of this model, before anything is decoded."""
    for place, choice in enumerate(response.choices):
        at = f"{name}.choices.{place}"
        _check_length(profile, choice.token_ids, f"{at}.token_ids")
        if choice.logprobs is not None:
            _check_length(profile, choice.logprobs.get("content"), f"{at}.logprobs.content")
        _check_candidates(profile, choice, f"{at}.logprobs")
    _check_length(profile, response.prompt_logprobs, f"{name}.prompt_logprobs")
    _check_length(profile, response.prompt_token_ids, f"{name}.prompt_token_ids")


def _check_chunk(
    profile: ModelProfile, context: DerenderContext, state: fold.DerenderState, request: DerenderRequest
) -> None:
    assert request.generate_chunk is not None
    (choice,) = request.generate_chunk.choices
    before, more = context.prompt_tokens + state.choices[0].completion_tokens, len(choice.token_ids or ())
    if before + more > profile.max_model_len:
        raise InvalidRequest(
            f"generate_chunk adds {more} tokens to {before} of prompt and output, which exceeds the model's context of "
            f"{profile.max_model_len} tokens",
            param="generate_chunk",
        )
    _check_candidates(profile, choice, "generate_chunk.choices.0.logprobs")
