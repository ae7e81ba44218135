"""The interface of every client protocol: requests to conversations, events to client chunks, chunks to a response.

    surface = load_surface("openai_chat")
    request = surface.read(body)
    conversation = surface.converse(request)            # the renderer's input
    context = surface.describe(request, facts)          # what its answer depends on
    state = surface.start(context)
    state, chunks = surface.step(context, state, delta)
    state, chunks = surface.finish(context, state)
    response = surface.fold(context, all_chunks)        # a whole answer is its stream, folded

A surface is pure: its state is frozen, and `dump` and `load` convert it to JSON and back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from tasks.errors import InvalidRequest, InvalidState
from tasks.protocol.base import JsonObject
from tasks.protocol.conversation import Conversation, count_tool_calls
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import Event

SURFACES = {
    "anthropic": "workers.surfaces.anthropic:ANTHROPIC",
    "generate": "workers.surfaces.vllm_generate:GENERATE",
    "openai_chat": "workers.surfaces.openai_chat:OPENAI_CHAT",
    "openai_completions": "workers.surfaces.openai_completions:OPENAI_COMPLETIONS",
    "openai_responses": "workers.surfaces.openai_responses:OPENAI_RESPONSES",
}


SAMPLING_FIELDS = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop_token_ids",
    "prompt_logprobs",
    "logprob_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "watermarking",
    "repetition_detection",
    "stream_interval",
    "routed_experts_prompt_start",
)
"""Request fields that are sampling parameters under the same name."""

OPTION_FIELDS = (
    "stream",
    "stream_options",
    "return_token_ids",
    "cache_salt",
    "priority",
    "kv_transfer_params",
    "ec_transfer_params",
)
"""Request fields that are copied into the engine's request."""


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What an answer depends on besides its request: the model, the time, and the result of rendering."""

    model: str
    """The model's name in the answer."""
    response_id: str
    created: int
    """Unix seconds."""
    prompt_token_ids: tuple[int, ...]
    tool_parser: bool = False
    reasoning_parser: bool = False
    tool_arguments: str = "stream"
    call_ids: str = "random"
    """The form of a call's id if the model gives none: "random" or "mistral"."""
    template_arguments: JsonObject = field(default_factory=dict)
    """The arguments that the prompt was rendered with: the request's, and the model's defaults for the others."""
    sampling: JsonObject = field(default_factory=dict)
    """The engine's sampling parameters, with the model's defaults filled in; empty if they are not known."""
    skip_special_tokens: bool = True
    """The default for requests that do not set it."""
    stop_token_ids: tuple[int, ...] = ()
    """The model's own, in addition to the request's."""
    system_fingerprint: str | None = None
    prompt_text: str | None = None


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """The events of one choice's next tokens.

    `events` holds parse events in order, at most one `Logprobs`, and a `Finish` last if the choice ended; its reason is
    OpenAI's, so `tool_calls` if the model stopped by itself after a complete call.
    `completion_tokens` and `reasoning_tokens` are the choice's totals so far.
    """

    index: int
    events: tuple[Event, ...] = ()
    token_ids: tuple[int, ...] = ()
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens that the engine had in its cache, if it reports them."""
    extra: JsonObject | None = None
    """What only the engine can provide: `prompt_logprobs`, `kv_transfer_params`, `metrics`."""


class Surface(Protocol):
    """A client protocol; `Any` is the type of its own request or state."""

    def read(self, body: JsonObject) -> Any:
        """The body as a validated request; raises InvalidRequest naming the field."""

    def converse(self, request: Any) -> Conversation:
        """The request as a conversation."""

    def describe(self, request: Any, facts: AnswerFacts) -> DerenderContext:
        """The derender context: what the answer depends on."""

    def start(self, context: DerenderContext) -> Any:
        """The state before the first token."""

    def step(self, context: DerenderContext, state: Any, delta: ChoiceDelta) -> tuple[Any, list[JsonObject]]:
        """The client's next chunks."""

    def finish(self, context: DerenderContext, state: Any) -> tuple[Any, list[JsonObject]]:
        """The client's last chunks, once all choices have finished."""

    def fold(self, context: DerenderContext, chunks: Iterable[JsonObject]) -> JsonObject:
        """The response, put together from all chunks of its stream."""

    def dump(self, state: Any) -> Any:
        """The state as JSON."""

    def load(self, data: Any, choices: int) -> Any:
        """Restore the state that `dump` returned for so many choices; raises InvalidState."""


@cache
def load_surface(name: str) -> Surface:
    """The surface of that name; raises InvalidRequest if there is none."""
    if name not in SURFACES:
        raise InvalidRequest(f"There is no surface {name!r}; use one of {', '.join(SURFACES)}.")
    module, attribute = SURFACES[name].split(":")
    surface: Surface = getattr(import_module(module), attribute)
    return surface


def invalid_state(surface: str) -> InvalidState:
    """The error for a saved state that the surface cannot restore."""
    return InvalidState(f"The {surface} surface's state is not valid: send the last stream_state back unchanged.")


def call_id_of(context: DerenderContext, choice: int, call: int) -> str:
    """An id for a call to which the model gave none; the same each time the answer is derendered."""
    digest = hashlib.sha256(f"{context.response_id}:{choice}:{call}".encode()).hexdigest()
    return digest[:9] if context.call_ids == "mistral" else f"chatcmpl-tool-{digest[:16]}"


def common_fields(request: Any, facts: AnswerFacts) -> JsonObject:
    """The context fields that chat and completion requests share: how tokens become text, and what to report."""
    options = request.stream_options
    include_usage = bool(options and options.include_usage)
    skip = request.skip_special_tokens
    return {
        "n": request.n or 1,
        "stops": request.stops,
        "include_stop": request.include_stop_str_in_output,
        "min_tokens": request.min_tokens,
        "stop_token_ids": tuple(dict.fromkeys([*(request.stop_token_ids or ()), *facts.stop_token_ids])),
        "ignore_eos": request.ignore_eos,
        "skip_special_tokens": facts.skip_special_tokens if skip is None else skip,
        "spaces_between_special_tokens": request.spaces_between_special_tokens,
        "tokens_as_ids": bool(request.return_tokens_as_token_ids),
        "return_token_ids": bool(request.return_token_ids),
        "prompt_token_ids": facts.prompt_token_ids if request.return_token_ids else None,
        "include_usage": include_usage,
        "continuous_usage": include_usage and bool(options and options.continuous_usage_stats),
        "system_fingerprint": facts.system_fingerprint,
    }


def parsing_fields(conversation: Conversation, facts: AnswerFacts, *, stream: bool) -> JsonObject:
    """The context fields that parsing depends on."""
    return {
        "parse": parse_context(conversation, facts),
        # In a whole answer, a call that was cut off must not look complete.
        "tool_arguments": "stream" if stream and facts.tool_arguments == "stream" else "complete",
        "call_ids": facts.call_ids,
        "tool_parser": facts.tool_parser,
        "reasoning_parser": facts.reasoning_parser,
    }


def parse_context(conversation: Conversation, facts: AnswerFacts) -> JsonObject:
    """vLLM's parse context: the part of the conversation that parsing the answer depends on."""
    return {
        "tools": None if conversation.tools is None else list(conversation.tools),
        "tool_choice": conversation.tool_choice,
        "parallel_tool_calls": conversation.parallel_tool_calls,
        "include_reasoning": conversation.include_reasoning,
        "chat_template_kwargs": facts.template_arguments,
        "history_tool_call_cnt": count_tool_calls(conversation),
    }
