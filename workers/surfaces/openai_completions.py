"""OpenAI's legacy Completions API: prompts in, plain text out.

data: {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [{"index": 0, "text": " on",
       "logprobs": {"text_offset": [0], "token_logprobs": [-0.1], "tokens": [" on"], "top_logprobs": [{" on": -0.1}]},
       "finish_reason": null, "stop_reason": null}]}
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tasks.protocol.base import JsonObject, read_wire
from tasks.protocol.conversation import Conversation, Prompt, Tokenization
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import Finish, Logprobs, Text, TokenLogprobs, TopLogprob
from tasks.protocol.openai_completions import CompletionRequest
from workers.surfaces.base import OPTION_FIELDS, SAMPLING_FIELDS, AnswerFacts, ChoiceDelta, common_fields, invalid_state


def read(body: JsonObject) -> CompletionRequest:
    """The body as a validated request; raises InvalidRequest naming the field."""
    return read_wire(CompletionRequest, body)


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The request's prompts, one for each text or list of token ids, in order."""
    sent = request.model_dump(exclude_unset=True)
    shared: dict[str, Any] = {
        "response_format": request.response_format,
        "structured_outputs": request.structured_outputs,
        "sampling": _sampling(request, sent),
        # To echo a prompt, the engine must generate a token; the answer leaves it out.
        "max_output_tokens": 1 if request.echo and request.max_tokens == 0 else request.max_tokens,
        "tokenization": Tokenization(
            add_special_tokens=request.add_special_tokens,
            truncate_to=request.truncate_prompt_tokens,
            truncation_side=request.truncation_side,
            return_offsets=bool(request.return_token_offsets),
        ),
        "options": {name: sent[name] for name in OPTION_FIELDS if sent.get(name) is not None},
    }
    return [
        Prompt(text=prompt, **shared) if isinstance(prompt, str) else Prompt(token_ids=tuple(prompt), **shared)
        for prompt in _each(request.prompt)
    ]


def _each(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    return list(prompt or ())


def _sampling(request: CompletionRequest, sent: JsonObject) -> JsonObject:
    sampling = {name: sent[name] for name in SAMPLING_FIELDS if sent.get(name) not in (None, [])}
    if request.stops:
        sampling["stop"] = list(request.stops)
    if request.logprobs is not None and not request.logprob_token_ids:
        sampling["logprobs"] = request.logprobs
    if request.echo and request.prompt_logprobs is None and request.logprobs is not None:
        sampling["prompt_logprobs"] = request.logprobs
    if request.thinking_token_budget is not None and request.thinking_token_budget >= 0:
        sampling["thinking_token_budget"] = request.thinking_token_budget
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    return sampling


@dataclass(frozen=True, slots=True)
class TextCounts:
    """One choice's totals: its tokens, and the characters of the tokens whose log-probabilities have been sent."""

    completion_tokens: int = 0
    text_offset: int = 0
    started: bool = False


@dataclass(frozen=True, slots=True)
class CompletionState:
    """The surface's state between two chunks."""

    choices: tuple[TextCounts, ...]
    cached_tokens: int | None = None


class OpenAICompletions:
    """The surface for one prompt. It is stateless; completions have no reasoning and no calls."""

    def read(self, body: JsonObject) -> CompletionRequest:
        """The body as a validated request; raises InvalidRequest naming the field."""
        return read(body)

    def converse(self, request: CompletionRequest) -> Conversation:
        """An empty conversation: a completion has prompts instead."""
        return Conversation(messages=())

    def describe(self, request: CompletionRequest, facts: AnswerFacts) -> DerenderContext:
        """The derender context: what the answer depends on."""
        return DerenderContext(
            surface="openai_completions",
            model=facts.model,
            response_id=facts.response_id,
            created=facts.created,
            prompt_tokens=len(facts.prompt_token_ids),
            stream=bool(request.stream),
            logprobs=_candidates(request),
            **common_fields(request, facts),
        )

    def start(self, context: DerenderContext) -> CompletionState:
        """The state before the first token."""
        return CompletionState((TextCounts(),) * context.n)

    def step(
        self, context: DerenderContext, state: CompletionState, delta: ChoiceDelta
    ) -> tuple[CompletionState, list[JsonObject]]:
        """The client's next chunk, if the delta has anything for it."""
        before = state.choices[delta.index]
        positions = [p for event in delta.events if isinstance(event, Logprobs) for p in event.positions]
        logprobs, offset = _columns(context, positions, before.text_offset)
        text = "".join(event.text for event in delta.events if isinstance(event, Text))
        finish = next((event for event in delta.events if isinstance(event, Finish)), None)
        sends = bool(text or positions or finish is not None or (context.return_token_ids and delta.token_ids))
        counts = TextCounts(delta.completion_tokens, offset, before.started or sends)
        state = replace(
            state,
            choices=(*state.choices[: delta.index], counts, *state.choices[delta.index + 1 :]),
            cached_tokens=state.cached_tokens if delta.cached_tokens is None else delta.cached_tokens,
        )
        if not sends:
            return state, []
        prompt = context.prompt_token_ids if not before.started else None
        extra = delta.extra or {}
        choice = {
            "index": context.first_index + delta.index,
            "text": text,
            "logprobs": logprobs if positions else None,
            "finish_reason": None if finish is None else finish.reason,
            "stop_reason": None if finish is None else finish.stop_reason,
            "prompt_token_ids": None if prompt is None else list(prompt),
            "token_ids": list(delta.token_ids) if context.return_token_ids else None,
            "weight_versions": None,
        }
        chunk = _envelope(context, [choice])
        chunk["kv_transfer_params"] = extra.get("kv_transfer_params") if finish is not None else None
        if not context.stream:
            chunk |= {name: extra[name] for name in EXTRA_FIELDS if extra.get(name) is not None}
        elif finish is not None and not context.include_usage and context.system_fingerprint is not None:
            chunk["system_fingerprint"] = context.system_fingerprint
        if context.continuous_usage:
            chunk["usage"] = _usage(context.prompt_tokens, counts.completion_tokens)
        return state, [chunk]

    def finish(self, context: DerenderContext, state: CompletionState) -> tuple[CompletionState, list[JsonObject]]:
        """The usage chunk, if the client wants one or the answer is whole."""
        if context.stream and not context.include_usage:
            return state, []
        chunk = _envelope(context, [])
        chunk["usage"] = _usage(context.prompt_tokens, sum(c.completion_tokens for c in state.choices))
        if state.cached_tokens is not None:
            chunk["usage"]["prompt_tokens_details"] = {"cached_tokens": state.cached_tokens}
        if context.system_fingerprint is not None:
            chunk["system_fingerprint"] = context.system_fingerprint
        return state, [chunk]

    def fold(self, context: DerenderContext, chunks: Iterable[JsonObject]) -> JsonObject:
        """The response, put together from all chunks of its stream."""
        folded = [_blank(context.first_index + index) for index in range(context.n)]
        usage: JsonObject = {}
        extra: JsonObject = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                _add(folded[choice["index"] - context.first_index], choice)
            usage = chunk.get("usage") or usage
            extra |= {name: chunk[name] for name in EXTRA_FIELDS if chunk.get(name) is not None}
        prompt = None if context.prompt_token_ids is None else list(context.prompt_token_ids)
        details = usage.get("prompt_tokens_details")
        return {
            "id": context.response_id,
            "object": "text_completion",
            "created": context.created,
            "model": context.model,
            "choices": [
                {
                    **choice,
                    "text": "".join(choice["text"]),
                    "prompt_logprobs": extra.get("prompt_logprobs"),
                    "prompt_token_ids": prompt,
                }
                for choice in folded
            ],
            "service_tier": None,
            "system_fingerprint": context.system_fingerprint,
            "usage": {
                **_usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)),
                "prompt_tokens_details": (
                    None if details is None else {"created_cache_tokens": None, "multimodal_tokens": None, **details}
                ),
                "completion_tokens_details": None,
            },
            **{name: extra.get(name) for name in ("kv_transfer_params", "ec_transfer_params", "metrics")},
        }

    def dump(self, state: CompletionState) -> JsonObject:
        """The state as JSON."""
        return {
            "choices": [[c.completion_tokens, c.text_offset, c.started] for c in state.choices],
            "cached": state.cached_tokens,
        }

    def load(self, data: Any, choices: int) -> CompletionState:
        """Restore the state that `dump` returned for so many choices; raises InvalidState."""
        try:
            rows, cached = data["choices"], data["cached"]
            sound = cached is None or type(cached) is int
            for tokens, offset, started in rows:
                sound = sound and type(tokens) is type(offset) is int and min(tokens, offset) >= 0
                sound = sound and type(started) is bool
            if len(rows) != choices or not sound:
                raise TypeError
            return CompletionState(tuple(TextCounts(*row) for row in rows), cached)
        except (KeyError, TypeError, ValueError) as error:
            raise invalid_state("openai_completions") from error


OPENAI_COMPLETIONS = OpenAICompletions()

EXTRA_FIELDS = ("prompt_logprobs", "kv_transfer_params", "ec_transfer_params", "metrics")
"""Fields that a response has besides its choices, if the engine provides them."""


def _candidates(request: CompletionRequest) -> int | None:
    """How many candidates to show at each position: one more than requested, as OpenAI does."""
    if request.logprobs is None:
        return None
    return -1 if request.logprob_token_ids or request.logprobs < 0 else request.logprobs + 1


def _envelope(context: DerenderContext, choices: list[JsonObject]) -> JsonObject:
    return {
        "id": context.response_id,
        "object": "text_completion",
        "created": context.created,
        "model": context.model,
        "choices": choices,
    }


def _usage(prompt_tokens: int, completion_tokens: int) -> JsonObject:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _columns(context: DerenderContext, positions: list[TokenLogprobs], offset: int) -> tuple[JsonObject, int]:
    """The positions as parallel lists, and the text offset after them."""
    columns: JsonObject = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    wanted = context.logprobs or 0
    for position in positions:
        token = _named(context, position.sampled)
        top = position.top if wanted < 0 else position.top[:wanted]
        columns["text_offset"].append(offset)
        columns["token_logprobs"].append(position.sampled.logprob)
        columns["tokens"].append(token)
        columns["top_logprobs"].append({_named(context, c): c.logprob for c in top} if position.top else None)
        offset += len(token)
    return columns, offset


def _named(context: DerenderContext, candidate: TopLogprob) -> str:
    return f"token_id:{candidate.token_id}" if context.tokens_as_ids else candidate.token


def _blank(index: int) -> JsonObject:
    return {
        "index": index,
        "text": [],
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
        "weight_versions": None,
    }


def _add(folded: JsonObject, choice: JsonObject) -> None:
    folded["text"].append(choice["text"])
    if choice["token_ids"] is not None:
        folded["token_ids"] = folded["token_ids"] or []
        folded["token_ids"].extend(choice["token_ids"])
    if choice["logprobs"] is not None:
        folded["logprobs"] = folded["logprobs"] or {name: [] for name in choice["logprobs"]}
        for name, column in choice["logprobs"].items():
            folded["logprobs"][name].extend(column)
    if choice["finish_reason"] is not None:
        folded |= {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
