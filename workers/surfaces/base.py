"""What every client protocol is: requests to conversations, events to chunks, chunks to a response.

    surface = load_surface("openai_chat")
    request = surface.read(body)
    conversation = surface.converse(request)            # the renderer's input
    context = surface.describe(request, facts)          # what its answer depends on
    state = surface.start(context)
    state, chunks = surface.step(context, state, delta)
    state, chunks = surface.finish(context, state)
    response = surface.fold(context, all_chunks)        # a one-shot answer is its stream, folded

A surface is pure: its state is frozen and survives JSON through `dump` and `load`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from tasks.errors import InvalidRequest
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
"""Request fields that go into the engine's request as they are."""


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What an answer depends on beside its request: who answers, when, and what came out of rendering."""

    model: str
    """The name that the answer gives."""
    response_id: str
    created: int
    """Unix seconds."""
    prompt_token_ids: tuple[int, ...]
    tool_parser: bool = False
    reasoning_parser: bool = False
    tool_arguments: str = "stream"
    call_ids: str = "random"
    """How ids of calls look that come without one: "random" or "mistral"."""
    template_arguments: JsonObject = field(default_factory=dict)
    """What the prompt was rendered with: the request's arguments, and the model's defaults under them."""
    sampling: JsonObject = field(default_factory=dict)
    """The engine's sampling parameters, with the model's defaults in their places; empty where they are not known."""
    skip_special_tokens: bool = True
    """For requests that leave it open."""
    stop_token_ids: tuple[int, ...] = ()
    """The model's own, beside the request's."""
    system_fingerprint: str | None = None
    prompt_text: str | None = None


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What the next tokens of one choice meant.

    `events` holds parse events in order, at most one `Logprobs`, and a `Finish` last where the choice ended; its reason
    is OpenAI's, so `tool_calls` where the model stopped by itself after a whole call.
    `completion_tokens` and `reasoning_tokens` are the choice's totals so far.
    """

    index: int
    events: tuple[Event, ...] = ()
    token_ids: tuple[int, ...] = ()
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens that the engine had in its cache, where it says so."""
    extra: JsonObject | None = None
    """What only the engine knows: `prompt_logprobs`, `kv_transfer_params`, `metrics`."""


class Surface(Protocol):
    """A client protocol; `Any` stands for its own request and state."""

    def read(self, body: JsonObject) -> Any:
        """The body as a validated request; raises InvalidRequest naming the field."""

    def converse(self, request: Any) -> Conversation:
        """What the request asks of the model."""

    def describe(self, request: Any, facts: AnswerFacts) -> DerenderContext:
        """What the answer's form depends on."""

    def start(self, context: DerenderContext) -> Any:
        """The state before the first token."""

    def step(self, context: DerenderContext, state: Any, delta: ChoiceDelta) -> tuple[Any, list[JsonObject]]:
        """The client's next chunks."""

    def finish(self, context: DerenderContext, state: Any) -> tuple[Any, list[JsonObject]]:
        """The client's last chunks, once all choices have finished."""

    def fold(self, context: DerenderContext, chunks: Iterable[JsonObject]) -> JsonObject:
        """The response that all chunks of a stream make together."""

    def dump(self, state: Any) -> Any:
        """The state as JSON."""

    def load(self, data: Any, choices: int) -> Any:
        """Restores what `dump` gave for so many choices; raises InvalidState."""


@cache
def load_surface(name: str) -> Surface:
    """The surface of that name; raises InvalidRequest if there is none."""
    if name not in SURFACES:
        raise InvalidRequest(f"There is no surface {name!r}")
    module, attribute = SURFACES[name].split(":")
    surface: Surface = getattr(import_module(module), attribute)
    return surface


def call_id_of(context: DerenderContext, choice: int, call: int) -> str:
    """An id for a call that came without one; the same whenever the answer is made again."""
    digest = hashlib.sha256(f"{context.response_id}:{choice}:{call}".encode()).hexdigest()
    return digest[:9] if context.call_ids == "mistral" else f"chatcmpl-tool-{digest[:16]}"


def reading_fields(request: Any, facts: AnswerFacts) -> JsonObject:
    """Of a context, what a chat and a completion ask for under the same names: how their tokens become text."""
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
    """Of a context, what reasoning and calls are read by."""
    return {
        "parse": parse_context(conversation, facts),
        # A call that was cut off must not look whole in an answer that comes at once.
        "tool_arguments": "stream" if stream and facts.tool_arguments == "stream" else "complete",
        "call_ids": facts.call_ids,
        "tool_parser": facts.tool_parser,
        "reasoning_parser": facts.reasoning_parser,
    }


def parse_context(conversation: Conversation, facts: AnswerFacts) -> JsonObject:
    """What reading the answer depends on of its conversation: vLLM's parse context."""
    return {
        "tools": None if conversation.tools is None else list(conversation.tools),
        "tool_choice": conversation.tool_choice,
        "parallel_tool_calls": conversation.parallel_tool_calls,
        "include_reasoning": conversation.include_reasoning,
        "chat_template_kwargs": facts.template_arguments,
        "history_tool_call_cnt": count_tool_calls(conversation),
    }
