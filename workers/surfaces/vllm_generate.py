"""vLLM's generate route, as vLLM's own server implements it: tokens in, and an answer in one of three output modes.

    data: {"request_id": "generate-tokens-1", "output_mode": "tokens", "usage": null, "choices": [{"index": 0,
           "token_ids": [57], "logprobs": {"content": [{"token_id": 57, "logprob": -0.1, "rank": 1, ...}]},
           "finish_reason": null, "stop_reason": null}]}
    data: {..., "output_mode": "text", "choices": [{"index": 0, "token_ids": [57], "text": "It", "logprobs": ...}]}
    data: {..., "output_mode": "derender", "choices": [{"index": 0, "delta": {"content": "It"}, ...}]}
    data: {..., "choices": [], "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}}

`text` adds the text, and log-probabilities in chat form; `derender` has a chat message, or its deltas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tasks.protocol.base import JsonObject, read_wire
from tasks.protocol.conversation import Conversation
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import Finish, Logprobs, Text, TopLogprob
from tasks.protocol.vllm_generate import EXTRA_OF_ANSWER, EXTRA_OF_CHOICE, GenerateBody, present
from workers.surfaces.base import AnswerFacts, ChoiceDelta, invalid_state
from workers.surfaces.chat_messages import FoldedMessage, logprobs_of, message_delta


@dataclass(frozen=True, slots=True)
class GenerateState:
    """The surface's state between two chunks."""

    completion_tokens: tuple[int, ...]
    """Each choice's total."""
    begun: tuple[bool, ...]
    """Which choices have been in a chunk."""
    cached_tokens: int | None = None
    metrics: JsonObject | None = None


class Generate:
    """The surface. It is stateless."""

    def read(self, body: JsonObject) -> GenerateBody:
        """The body as a validated request; raises InvalidRequest naming the field."""
        return read_wire(GenerateBody, body)

    def converse(self, request: GenerateBody) -> Conversation:
        """An empty conversation: the prompt has already been rendered."""
        return Conversation(messages=())

    def describe(self, request: GenerateBody, facts: AnswerFacts) -> DerenderContext:
        """The derender context: what the answer depends on.

        Raises:
            InvalidRequest: parsing needs a `parse_context`, and the request has no valid one.
        """
        params, options = request.sampling_params, request.stream_options
        parsed = request.output_mode == "derender"
        tool_parser, reasoning_parser = parsed and facts.tool_parser, parsed and facts.reasoning_parser
        parse: JsonObject = {}
        if tool_parser or reasoning_parser:
            parse = request.require_parse_context().model_dump(exclude_unset=True)
            if not tool_parser:
                parse["tool_choice"] = "none"
        include_usage = bool(options and options.include_usage)
        return DerenderContext(
            surface="generate",
            model=facts.model,
            response_id=facts.response_id,
            created=facts.created,
            prompt_tokens=len(facts.prompt_token_ids),
            n=request.n,
            stream=bool(request.stream),
            stops=request.stops,
            include_stop=bool(params.get("include_stop_str_in_output")),
            min_tokens=params.get("min_tokens") or 0,
            stop_token_ids=tuple(dict.fromkeys([*(params.get("stop_token_ids") or ()), *facts.stop_token_ids])),
            ignore_eos=bool(params.get("ignore_eos")),
            # If the model has a parser, rendering turns this off for the engine, so that the parser sees every marker.
            skip_special_tokens=bool(parse) or params.get("skip_special_tokens") is not False,
            spaces_between_special_tokens=params.get("spaces_between_special_tokens") is not False,
            logprobs=_candidates(request),
            prompt_token_ids=facts.prompt_token_ids if request.return_token_ids else None,
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
            parse=parse,
            tool_arguments="stream" if request.stream and facts.tool_arguments == "stream" else "complete",
            call_ids=facts.call_ids,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            echoed={"output_mode": request.output_mode},
        )

    def start(self, context: DerenderContext) -> GenerateState:
        """The state before the first token."""
        return GenerateState((0,) * context.n, (False,) * context.n)

    def step(
        self, context: DerenderContext, state: GenerateState, delta: ChoiceDelta
    ) -> tuple[GenerateState, list[JsonObject]]:
        """The client's next chunk, if the delta has anything for it."""
        extra = delta.extra or {}
        state = replace(
            state,
            completion_tokens=_put(state.completion_tokens, delta.index, delta.completion_tokens),
            cached_tokens=state.cached_tokens if delta.cached_tokens is None else delta.cached_tokens,
            metrics=extra.get("metrics") or state.metrics,
        )
        choice = _choice(context, state, delta)
        if choice is None:
            return state, []
        event: JsonObject = {
            "request_id": context.response_id,
            "usage": None,
            "output_mode": context.echoed["output_mode"],
            "choices": [choice],
        }
        if context.continuous_usage:
            event["usage"] = _usage(context, delta.completion_tokens, None)
        if context.prompt_token_ids is not None and not any(state.begun):
            event["prompt_token_ids"] = extra.get("prompt_token_ids") or list(context.prompt_token_ids)
            event |= present(extra, ("mm_placeholders",))
        if not context.stream:
            event |= present(extra, [name for name in EXTRA_OF_ANSWER if name != "prompt_token_ids"])
        return replace(state, begun=_put(state.begun, delta.index, True)), [event]

    def finish(self, context: DerenderContext, state: GenerateState) -> tuple[GenerateState, list[JsonObject]]:
        """The usage chunk, if the client wants one or the answer is whole."""
        if context.stream and not context.include_usage:
            return state, []
        usage = _usage(context, sum(state.completion_tokens), state.cached_tokens)
        event = {
            "request_id": context.response_id,
            "usage": _present(usage),
            "output_mode": context.echoed["output_mode"],
            "choices": [],
        }
        if context.n == 1 and state.metrics is not None:
            event["metrics"] = state.metrics
        return state, [event]

    def fold(self, context: DerenderContext, chunks: Iterable[JsonObject]) -> JsonObject:
        """The answer, put together from all chunks of its stream."""
        folded = [_FoldedChoice() for _ in range(context.n)]
        usage: JsonObject = {}
        extra: JsonObject = {}
        for event in chunks:
            for choice in event["choices"]:
                folded[choice["index"] - context.first_index].add(choice)
            usage = event["usage"] or usage
            extra |= present(event, EXTRA_OF_ANSWER)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return {
            "request_id": context.response_id,
            "model": context.model,
            "created": context.created,
            "usage": _usage(context, usage.get("completion_tokens", 0), cached),
            **{name: extra.get(name) for name in EXTRA_OF_ANSWER},
            "output_mode": context.echoed["output_mode"],
            "choices": [choice.whole(context, context.first_index + at) for at, choice in enumerate(folded)],
        }

    def dump(self, state: GenerateState) -> JsonObject:
        """The state as JSON."""
        return {
            "completion": list(state.completion_tokens),
            "begun": list(state.begun),
            "cached": state.cached_tokens,
            "metrics": state.metrics,
        }

    def load(self, data: Any, choices: int) -> GenerateState:
        """Restore the state that `dump` returned for so many choices; raises InvalidState."""
        try:
            completion, begun = data["completion"], data["begun"]
            cached, metrics = data["cached"], data["metrics"]
            sound = (
                len(completion) == len(begun) == choices
                and all(type(count) is int and count >= 0 for count in completion)
                and all(type(flag) is bool for flag in begun)
                and (cached is None or type(cached) is int)
                and (metrics is None or isinstance(metrics, dict))
            )
        except (KeyError, TypeError) as error:
            raise invalid_state("generate") from error
        if not sound:
            raise invalid_state("generate")
        return GenerateState(tuple(completion), tuple(begun), cached, metrics)


GENERATE = Generate()


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _candidates(request: GenerateBody) -> int | None:
    """How many candidates to show at each position: all that the engine sends, or for a message as many as in a chat."""
    wanted, named = request.sampling_params.get("logprobs"), request.sampling_params.get("logprob_token_ids")
    if request.output_mode == "derender":
        return -1 if named else wanted
    return None if wanted is None else -1


def _choice(context: DerenderContext, state: GenerateState, delta: ChoiceDelta) -> JsonObject | None:
    """The chunk's choice for one delta; None if the delta has nothing for the client."""
    finish = next((event for event in delta.events if isinstance(event, Finish)), None)
    mode = context.echoed["output_mode"]
    token_ids = None if context.hides_tokens else list(delta.token_ids)
    content: JsonObject = {}
    if mode == "text":
        content["text"] = "".join(event.text for event in delta.events if isinstance(event, Text))
    elif mode == "derender":
        content["delta"] = message_delta(context, delta)
    if not (token_ids or any(content.values()) or finish is not None):
        return None
    if mode == "derender" and not state.begun[delta.index]:
        content["delta"] = {"role": context.role, **content["delta"]}
    if context.hides_tokens:
        logprobs = None
    else:
        logprobs = _by_ids(context, delta) if mode == "tokens" else logprobs_of(context, delta.events)
    extra = delta.extra or {}
    return {
        "index": context.first_index + delta.index,
        "finish_reason": None if finish is None else finish.reason,
        "stop_reason": None if finish is None else finish.stop_reason,
        "token_ids": token_ids,
        **{name: extra.get(name) for name in EXTRA_OF_CHOICE},
        **({"sampling_mask": None} if context.hides_tokens else {}),
        **content,
        "logprobs": logprobs,
    }


def _by_ids(context: DerenderContext, delta: ChoiceDelta) -> JsonObject | None:
    """Log-probabilities with token ids only."""
    if context.logprobs is None:
        return None
    positions = [position for event in delta.events if isinstance(event, Logprobs) for position in event.positions]
    content = [{**_row(p.sampled), "top_logprobs": [_row(candidate) for candidate in p.top]} for p in positions]
    return {"content": content}


def _row(candidate: TopLogprob) -> JsonObject:
    return {"token_id": candidate.token_id, "logprob": candidate.logprob, "rank": candidate.rank}


def _usage(context: DerenderContext, completion_tokens: int, cached_tokens: int | None) -> JsonObject:
    details = {"cached_tokens": cached_tokens, "created_cache_tokens": None, "multimodal_tokens": None}
    return {
        "prompt_tokens": context.prompt_tokens,
        "total_tokens": context.prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else details,
        "completion_tokens_details": None,
    }


def _present(values: JsonObject) -> JsonObject:
    """The fields that are not null, at every level."""
    return {
        name: _present(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }


class _FoldedChoice:
    """Folds one choice's chunks."""

    def __init__(self) -> None:
        self._message = FoldedMessage()
        self._text: list[str] = []
        self._lists: dict[str, list[Any]] = {}
        self._last: JsonObject = {}

    def add(self, choice: JsonObject) -> None:
        self._message.add(choice.get("delta", {}))
        self._text.append(choice.get("text", ""))
        logprobs = choice["logprobs"]
        for name, more in (
            ("token_ids", choice["token_ids"]),
            ("sampling_mask", choice["sampling_mask"]),
            ("logprobs", None if logprobs is None else logprobs["content"]),
        ):
            if more is not None:
                self._lists.setdefault(name, []).extend(more)
        self._last |= present(choice, ("finish_reason", "stop_reason", "routed_experts", "weight_versions"))

    def whole(self, context: DerenderContext, index: int) -> JsonObject:
        mode = context.echoed["output_mode"]
        logprobs = self._lists.get("logprobs")
        out: JsonObject = {
            "index": index,
            "finish_reason": self._last.get("finish_reason", "stop"),
            "stop_reason": self._last.get("stop_reason"),
            "token_ids": None if context.hides_tokens else self._lists.get("token_ids", []),
            "routed_experts": self._last.get("routed_experts"),
            "sampling_mask": self._lists.get("sampling_mask"),
            "weight_versions": self._last.get("weight_versions"),
            "logprobs": None if logprobs is None else {"content": logprobs},
        }
        if mode == "text":
            out["text"] = "".join(self._text)
        elif mode == "derender":
            out["message"] = self._message.message(context)
        return out
