"""OpenAI's Chat Completions API, as vLLM's own server implements it.

data: {..., "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}
data: {..., "choices": [{"index": 0, "delta": {"reasoning": "Let me look."}, "finish_reason": null}]}
data: {..., "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "chatcmpl-tool-9f...",
       "type": "function", "function": {"name": "get_weather"}}]}, "finish_reason": null}]}
data: {..., "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "stop_reason": null}]}
data: {..., "choices": [], "usage": {"prompt_tokens": 9, "total_tokens": 30, "completion_tokens": 21}}
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tasks.protocol.base import JsonObject, read_wire
from tasks.protocol.conversation import Conversation, Tokenization
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import Finish
from tasks.protocol.openai_chat import ChatCompletionRequest
from workers.surfaces.base import (
    OPTION_FIELDS,
    SAMPLING_FIELDS,
    AnswerFacts,
    ChoiceDelta,
    common_fields,
    invalid_state,
    parsing_fields,
)
from workers.surfaces.chat_messages import FoldedMessage, logprobs_of, message_delta


@dataclass(frozen=True, slots=True)
class ChoiceCounts:
    """One choice's token totals."""

    completion_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChatState:
    """The surface's state between two chunks."""

    choices: tuple[ChoiceCounts, ...]
    started: bool = False
    cached_tokens: int | None = None


class OpenAIChat:
    """The surface. It is stateless."""

    def read(self, body: JsonObject) -> ChatCompletionRequest:
        """The body as a validated request; raises InvalidRequest naming the field."""
        return read_wire(ChatCompletionRequest, body)

    def converse(self, request: ChatCompletionRequest) -> Conversation:
        """The request as a conversation."""
        sent = request.model_dump(exclude_unset=True)
        by_new_name = request.max_completion_tokens is not None
        return Conversation(
            messages=tuple(sent["messages"]),
            tools=None if request.tools is None else tuple(sent["tools"]),
            tool_choice=_tool_choice(request),
            parallel_tool_calls=request.parallel_tool_calls,
            include_reasoning=request.include_reasoning,
            template=request.chat_template,
            template_arguments=request.chat_template_kwargs or {},
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            documents=None if request.documents is None else tuple(request.documents),
            reasoning_effort=request.reasoning_effort,
            response_format=request.response_format,
            structured_outputs=request.structured_outputs,
            sampling=_sampling(request, sent),
            max_output_tokens=request.max_output_tokens,
            max_output_tokens_param="max_completion_tokens" if by_new_name else "max_tokens",
            tokenization=Tokenization(
                add_special_tokens=request.add_special_tokens,
                truncate_to=request.truncate_prompt_tokens,
                truncation_side=request.truncation_side,
                return_offsets=bool(request.return_token_offsets),
            ),
            options={name: sent[name] for name in OPTION_FIELDS if sent.get(name) is not None},
        )

    def describe(self, request: ChatCompletionRequest, facts: AnswerFacts) -> DerenderContext:
        """The derender context: what the answer depends on."""
        conversation = self.converse(request)
        return DerenderContext(
            surface="openai_chat",
            model=facts.model,
            response_id=facts.response_id,
            created=facts.created,
            prompt_tokens=len(facts.prompt_token_ids),
            stream=bool(request.stream),
            role=_role(request),
            echo=_echo(request),
            logprobs=_candidates(request),
            **common_fields(request, facts),
            **parsing_fields(conversation, facts, stream=bool(request.stream)),
            prompt_text=facts.prompt_text if request.return_prompt_text else None,
        )

    def start(self, context: DerenderContext) -> ChatState:
        """The state before the first token."""
        return ChatState(choices=(ChoiceCounts(),) * context.n)

    def step(
        self, context: DerenderContext, state: ChatState, delta: ChoiceDelta
    ) -> tuple[ChatState, list[JsonObject]]:
        """The client's next chunks: the first step sends every choice's role; then at most one chunk for the delta."""
        chunks = [] if state.started else _opening(context)
        counts = ChoiceCounts(delta.completion_tokens, delta.reasoning_tokens)
        state = replace(
            state,
            started=True,
            choices=(*state.choices[: delta.index], counts, *state.choices[delta.index + 1 :]),
            cached_tokens=state.cached_tokens if delta.cached_tokens is None else delta.cached_tokens,
        )
        chunk = _chunk_of(context, delta, counts)
        return state, chunks if chunk is None else [*chunks, chunk]

    def finish(self, context: DerenderContext, state: ChatState) -> tuple[ChatState, list[JsonObject]]:
        """The usage chunk, if the client wants one or the answer is whole."""
        chunks = [] if state.started else _opening(context)
        if context.include_usage or not context.stream:
            chunk = _envelope(context, [])
            chunk["usage"] = _usage(context, state)
            if context.system_fingerprint is not None:
                chunk["system_fingerprint"] = context.system_fingerprint
            chunks.append(chunk)
        return replace(state, started=True), chunks

    def fold(self, context: DerenderContext, chunks: Iterable[JsonObject]) -> JsonObject:
        """The response, put together from all chunks of its stream."""
        folded = [_FoldedChoice() for _ in range(context.n)]
        usage: JsonObject = {}
        extra: JsonObject = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                folded[choice["index"] - context.first_index].add(choice)
            usage = chunk.get("usage") or usage
            extra |= {name: chunk[name] for name in EXTRA_FIELDS if chunk.get(name) is not None}
        details = usage.get("prompt_tokens_details")
        return {
            "id": context.response_id,
            "object": "chat.completion",
            "created": context.created,
            "model": context.model,
            "choices": [choice.response(context, context.first_index + index) for index, choice in enumerate(folded)],
            "service_tier": None,
            "system_fingerprint": context.system_fingerprint,
            "usage": {
                "prompt_tokens": usage.get("prompt_tokens", 0),
                "total_tokens": usage.get("total_tokens", 0),
                "completion_tokens": usage.get("completion_tokens", 0),
                "prompt_tokens_details": (
                    None if details is None else {"created_cache_tokens": None, "multimodal_tokens": None, **details}
                ),
                "completion_tokens_details": usage.get("completion_tokens_details"),
            },
            "prompt_logprobs": extra.get("prompt_logprobs"),
            "prompt_token_ids": extra.get("prompt_token_ids"),
            "prompt_text": context.prompt_text,
            "kv_transfer_params": extra.get("kv_transfer_params"),
            "ec_transfer_params": extra.get("ec_transfer_params"),
            "metrics": extra.get("metrics"),
        }

    def dump(self, state: ChatState) -> JsonObject:
        """The state as JSON."""
        return {
            "started": state.started,
            "cached": state.cached_tokens,
            "choices": [[c.completion_tokens, c.reasoning_tokens] for c in state.choices],
        }

    def load(self, data: Any, choices: int) -> ChatState:
        """Restore the state that `dump` returned for so many choices; raises InvalidState."""
        try:
            rows = data["choices"]
            numbers = [number for row in rows for number in row]
            cached = data["cached"]
            if (
                len(rows) != choices
                or any(type(n) is not int or n < 0 for n in numbers)
                or not (cached is None or type(cached) is int)
            ):
                raise TypeError
            return ChatState(tuple(ChoiceCounts(*row) for row in rows), bool(data["started"]), cached)
        except (KeyError, TypeError) as error:
            raise invalid_state("openai_chat") from error


OPENAI_CHAT = OpenAIChat()

EXTRA_FIELDS = ("prompt_logprobs", "prompt_token_ids", "kv_transfer_params", "ec_transfer_params", "metrics")
"""Fields that a response has besides its choices, if the engine provides them."""


def _tool_choice(request: ChatCompletionRequest) -> Any:
    choice = request.tool_choice
    return choice if choice is None or isinstance(choice, str) else choice.model_dump()


def _sampling(request: ChatCompletionRequest, sent: JsonObject) -> JsonObject:
    sampling = {name: sent[name] for name in SAMPLING_FIELDS if sent.get(name) not in (None, [])}
    if request.stops:
        sampling["stop"] = list(request.stops)
    if request.logprobs and not request.logprob_token_ids:
        sampling["logprobs"] = request.top_logprobs or 0
    if request.echo and request.prompt_logprobs is None and request.top_logprobs:
        sampling["prompt_logprobs"] = request.top_logprobs
    if request.thinking_token_budget is not None and request.thinking_token_budget >= 0:
        sampling["thinking_token_budget"] = request.thinking_token_budget
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    return sampling


def _candidates(request: ChatCompletionRequest) -> int | None:
    if not request.logprobs:
        return None
    return -1 if request.logprob_token_ids else request.top_logprobs or 0


def _role(request: ChatCompletionRequest) -> str:
    return "assistant" if request.add_generation_prompt else request.messages[-1].role


def _echo(request: ChatCompletionRequest) -> str:
    last = request.messages[-1]
    if not request.echo or last.role != _role(request) or not last.content:
        return ""
    if isinstance(last.content, str):
        return last.content
    return "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in last.content)


def _envelope(context: DerenderContext, choices: list[JsonObject]) -> JsonObject:
    return {
        "id": context.response_id,
        "object": "chat.completion.chunk",
        "created": context.created,
        "model": context.model,
        "choices": choices,
    }


def _opening(context: DerenderContext) -> list[JsonObject]:
    """A chunk with the role for each choice, and one with the echoed text."""
    chunks = []
    deltas: list[JsonObject] = [{"role": context.role, "content": ""}]
    if context.echo:
        deltas.append({"content": context.echo})
    for delta in deltas:
        for index in range(context.n):
            chunk = _envelope(
                context,
                [
                    {
                        "index": context.first_index + index,
                        "delta": dict(delta),
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
            )
            if "role" in delta:
                chunk["prompt_token_ids"] = None if context.prompt_token_ids is None else list(context.prompt_token_ids)
                chunk["prompt_text"] = context.prompt_text
            if context.continuous_usage:
                chunk["usage"] = _running_usage(context, ChoiceCounts())
            chunks.append(chunk)
    return chunks


def _chunk_of(context: DerenderContext, delta: ChoiceDelta, counts: ChoiceCounts) -> JsonObject | None:
    """The chunk for one delta; None if the delta has nothing for the client yet."""
    message = message_delta(context, delta)
    finish = next((event for event in delta.events if isinstance(event, Finish)), None)
    logprobs = None if context.hides_tokens else logprobs_of(context, delta.events)
    token_ids = list(delta.token_ids) if context.return_token_ids and not context.hides_tokens else None
    if not message and finish is None and logprobs is None and not token_ids:
        return None
    choice: JsonObject = {
        "index": context.first_index + delta.index,
        "delta": message,
        "logprobs": logprobs,
        "finish_reason": None,
    }
    if finish is not None:
        choice["finish_reason"] = finish.reason
        choice["stop_reason"] = finish.stop_reason
    choice["token_ids"] = token_ids
    if finish is not None:
        choice["weight_versions"] = None
    chunk = _envelope(context, [choice])
    extra = delta.extra or {}
    chunk["kv_transfer_params"] = extra.get("kv_transfer_params") if finish is not None else None
    if not context.stream:
        chunk |= {name: extra[name] for name in EXTRA_FIELDS if extra.get(name) is not None}
    elif finish is not None and not context.include_usage and context.system_fingerprint is not None:
        chunk["system_fingerprint"] = context.system_fingerprint
    if context.continuous_usage:
        chunk["usage"] = _running_usage(context, counts)
    return chunk


def _running_usage(context: DerenderContext, counts: ChoiceCounts) -> JsonObject:
    """One choice's usage so far."""
    return {
        "prompt_tokens": context.prompt_tokens,
        "total_tokens": context.prompt_tokens + counts.completion_tokens,
        "completion_tokens": counts.completion_tokens,
        "completion_tokens_details": (
            {"reasoning_tokens": counts.reasoning_tokens} if context.reasoning_parser else None
        ),
    }


def _usage(context: DerenderContext, state: ChatState) -> JsonObject:
    """The usage of all choices; fields that are not known are left out."""
    completion = sum(counts.completion_tokens for counts in state.choices)
    usage: JsonObject = {
        "prompt_tokens": context.prompt_tokens,
        "total_tokens": context.prompt_tokens + completion,
        "completion_tokens": completion,
    }
    if state.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": state.cached_tokens}
    if context.reasoning_parser:
        reasoning = sum(counts.reasoning_tokens for counts in state.choices)
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


class _FoldedChoice:
    """Folds one choice's chunks."""

    def __init__(self) -> None:
        self._message = FoldedMessage()
        self._logprobs: list[JsonObject] | None = None
        self._token_ids: list[int] | None = None
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    def add(self, choice: JsonObject) -> None:
        self._message.add(choice["delta"])
        if choice["logprobs"] is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += choice["logprobs"]["content"]
        if choice.get("token_ids") is not None:
            self._token_ids = self._token_ids or []
            self._token_ids += choice["token_ids"]
        if choice["finish_reason"] is not None:
            self._finish_reason = choice["finish_reason"]
            self._stop_reason = choice.get("stop_reason")

    def response(self, context: DerenderContext, index: int) -> JsonObject:
        return {
            "index": index,
            "message": self._message.message(context),
            "logprobs": None if self._logprobs is None else {"content": self._logprobs},
            "finish_reason": self._finish_reason,
            "stop_reason": self._stop_reason,
            "token_ids": self._token_ids,
            "routed_experts": None,
            "weight_versions": None,
        }
