"""A client's body to requests for an engine: prompt token ids, and the other fields of a GenerateRequest.

    prepared = prepare(profile, "openai_chat", body)
    prepared.prompts[0].token_ids, prepared.prompts[0].fields      # ((151644, 872, ...), {"sampling_params": {...}, ...})

A chat, a response or a message makes one prompt; a plain completion makes one for each text or list of token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.protocol.base import JsonObject
from tasks.protocol.conversation import Conversation, count_tool_calls
from workers import parsing
from workers.models.catalog import ModelProfile
from workers.parsing.spec import REASONING
from workers.render.requests import EngineFacts, resolve_completion, resolve_request
from workers.renderers.base import RenderedPrompt, quiet_effort, template_arguments
from workers.surfaces import anthropic, openai_completions, openai_responses
from workers.surfaces.openai_chat import OPENAI_CHAT

_quiet_efforts: dict[str, str] = {}
"""Results of `quiet_effort` by profile fingerprint; each takes several renderings."""


@dataclass(frozen=True, slots=True)
class EnginePrompt:
    """One request for an engine: its token ids, and all other fields of the GenerateRequest except its id and model."""

    token_ids: tuple[int, ...]
    fields: JsonObject
    text: str | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A client's validated request, and the requests for an engine that it makes."""

    request: Any
    prompts: Sequence[EnginePrompt]


def prepare(profile: ModelProfile, surface: str, body: JsonObject) -> Prepared:
    """Render a body of one of the surfaces in `PREPARERS`; raises InvalidRequest naming the field."""
    return PREPARERS[surface](profile, body)


def generate_request(profile: ModelProfile, prompt: EnginePrompt, request_id: str) -> JsonObject:
    """The GenerateRequest that a render route answers with."""
    return {"request_id": request_id, "token_ids": list(prompt.token_ids), "model": profile.name, **prompt.fields}


def _facts(profile: ModelProfile) -> EngineFacts:
    return EngineFacts(
        max_model_len=profile.max_model_len,
        max_output_tokens=profile.settings.max_output_tokens,
        generation_defaults=profile.generation_defaults,
        default_template_arguments=profile.settings.default_template_arguments,
        tool_parser=profile.settings.tool_parser,
        reasoning_parser=profile.settings.reasoning_parser,
        forced=profile.parser.format.forced,
        suffix=profile.parser.suffix,
    )


def _prompt(profile: ModelProfile, conversation: Conversation, *, with_context: bool = True) -> EnginePrompt:
    rendered = profile.renderer.render(conversation)
    ended = _reasoning_ended(profile, conversation, rendered)
    fields = resolve_request(conversation, rendered, _facts(profile), reasoning_ended=ended)
    if not with_context:
        fields = {name: value for name, value in fields.items() if name not in ("parse_context", "reasoning_ended")}
    return EnginePrompt(rendered.token_ids, fields, rendered.text)


def _reasoning_ended(profile: ModelProfile, conversation: Conversation, rendered: RenderedPrompt) -> bool | None:
    """Whether the prompt itself closed the reasoning; None for a model that has none."""
    if profile.settings.reasoning_parser is None:
        return None
    arguments = template_arguments(conversation, profile.settings.default_template_arguments)
    context = parsing.ParseContext(template_arguments=arguments, history_tool_call_count=count_tool_calls(conversation))
    return parsing.start(profile.parser, context, rendered.token_ids).mode != REASONING


def _chat(profile: ModelProfile, body: JsonObject) -> Prepared:
    request = OPENAI_CHAT.read(body)
    return Prepared(request, [_prompt(profile, OPENAI_CHAT.converse(request))])


def _completion(profile: ModelProfile, body: JsonObject) -> Prepared:
    request = openai_completions.read(body)
    prompts = []
    for prompt in openai_completions.prompts_of(request):
        rendered = profile.renderer.render_prompt(prompt)
        fields = resolve_completion(prompt, rendered, _facts(profile))
        prompts.append(EnginePrompt(rendered.token_ids, fields, rendered.text))
    return Prepared(request, prompts)


def _response(profile: ModelProfile, body: JsonObject) -> Prepared:
    request = openai_responses.read(body)
    return Prepared(request, [_prompt(profile, openai_responses.converse(request), with_context=False)])


def _message(profile: ModelProfile, body: JsonObject) -> Prepared:
    request = anthropic.read(body)
    if profile.fingerprint not in _quiet_efforts:
        _quiet_efforts[profile.fingerprint] = quiet_effort(profile.renderer)
    # The derender stage gets this request: it must read the answer with the effort that the prompt was rendered with.
    request = anthropic.quieten(request, _quiet_efforts[profile.fingerprint])
    conversation = anthropic.converse(request, system_first=not profile.renderer.takes_late_system)
    return Prepared(request, [_prompt(profile, conversation)])


PREPARERS: dict[str, Callable[[ModelProfile, JsonObject], Prepared]] = {
    "openai_chat": _chat,
    "openai_completions": _completion,
    "openai_responses": _response,
    "anthropic": _message,
}
