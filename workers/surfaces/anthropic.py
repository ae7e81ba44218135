"""Anthropic's Messages API, as vLLM's own server implements it: requests to conversations, and the surface.

{"model": "m", "max_tokens": 256, "system": "Be kind.", "messages": [{"role": "user", "content": "Weather?"}],
 "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"}}

{"id": "msg_01h...", "type": "message", "role": "assistant", "content": [
  {"type": "thinking", "thinking": "Let me look.", "signature": "9f2c..."},
  {"type": "tool_use", "id": "chatcmpl-tool-9f...", "name": "get_weather", "input": {"city": "Oslo"}}],
 "model": "m", "stop_reason": "tool_use", "stop_sequence": null,
 "usage": {"input_tokens": 9, "output_tokens": 21, "cache_read_input_tokens": 0}}

`anthropic_answers` makes the stream's events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.anthropic import ContentBlock, Message, MessagesRequest, OutputConfig, Tool
from tasks.protocol.base import JsonObject, read_wire
from tasks.protocol.conversation import Conversation
from tasks.protocol.derender_context import DerenderContext
from workers.surfaces.anthropic_answers import (
    MessageState,
    delta_chunks,
    dump_state,
    final_chunks,
    fold_events,
    load_state,
)
from workers.surfaces.base import AnswerFacts, ChoiceDelta, invalid_state, parsing_fields

_BILLING_HEADER = "x-anthropic-billing-header"
"""The beginning of a block that one client changes with every request, which would defeat prefix caching."""
_OPTIONS = ("cache_salt", "kv_transfer_params", "ec_transfer_params")


def read(body: JsonObject) -> MessagesRequest:
    """The body as a validated request; raises InvalidRequest naming the field."""
    return read_wire(MessagesRequest, body)


def quieten(request: MessagesRequest, effort: str) -> MessagesRequest:
    """The request for a model that takes `effort` to mean "do not think"; it replaces `thinking` that is disabled."""
    if effort == "none" or request.thinking is None or request.thinking.type != "disabled":
        return request
    config = (request.output_config or OutputConfig()).model_copy(update={"effort": effort})
    return request.model_copy(update={"thinking": None, "output_config": config})


def converse(request: MessagesRequest, *, system_first: bool = False) -> Conversation:
    """The request as a conversation.

    `system_first` joins all system messages into one at the top, for templates that accept no other.
    """
    tools = _tools(request)
    choice, parallel = _choice(request, has_tools=tools is not None)
    return Conversation(
        messages=tuple(_messages(request, system_first=system_first)),
        tools=None if tools is None else tuple(map(_function, tools)),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        template_arguments=request.chat_template_kwargs or {},
        reasoning_effort=_effort(request),
        response_format=_format(request),
        sampling=_sampling(request),
        max_output_tokens=request.max_tokens,
        max_output_tokens_param="max_tokens",
        options=_options(request),
    )


class AnthropicMessages:
    """The surface. It is stateless, and its requests have one choice."""

    def read(self, body: JsonObject) -> MessagesRequest:
        """The body as a validated request; raises InvalidRequest naming the field."""
        return read(body)

    def converse(self, request: MessagesRequest) -> Conversation:
        """The request as a conversation."""
        return converse(request)

    def describe(self, request: MessagesRequest, facts: AnswerFacts) -> DerenderContext:
        """The derender context: what the answer depends on. Reasoning is always shown, whatever `thinking` says."""
        conversation = converse(request)
        return DerenderContext(
            surface="anthropic",
            model=facts.model,
            response_id=facts.response_id,
            created=facts.created,
            prompt_tokens=len(facts.prompt_token_ids),
            stream=bool(request.stream),
            stops=tuple(request.stop_sequences or ()),
            stop_token_ids=facts.stop_token_ids,
            skip_special_tokens=facts.skip_special_tokens,
            **parsing_fields(conversation, facts, stream=bool(request.stream)),
        )

    def start(self, context: DerenderContext) -> MessageState:
        """The state before the first token."""
        return MessageState()

    def step(
        self, context: DerenderContext, state: MessageState, delta: ChoiceDelta
    ) -> tuple[MessageState, list[JsonObject]]:
        """The client's next stream events."""
        return delta_chunks(context, state, delta)

    def finish(self, context: DerenderContext, state: MessageState) -> tuple[MessageState, list[JsonObject]]:
        """The stream events that end the message."""
        return final_chunks(context, state)

    def fold(self, context: DerenderContext, chunks: Iterable[JsonObject]) -> JsonObject:
        """The message, put together from all events of its stream."""
        return fold_events(chunks)

    def dump(self, state: MessageState) -> JsonObject:
        """The state as JSON."""
        return dump_state(state)

    def load(self, data: Any, choices: int) -> MessageState:
        """Restore the state that `dump` returned for one choice; raises InvalidState."""
        if choices != 1:
            raise invalid_state("anthropic")
        return load_state(data)


ANTHROPIC = AnthropicMessages()


def _messages(request: MessagesRequest, *, system_first: bool) -> Iterable[JsonObject]:
    system = _texts(request.system)
    if system_first:
        system += [text for m in request.messages if m.role == "system" for text in _texts(m.content)]
    if system:
        yield {"role": "system", "content": "".join(system)}
    for message in request.messages:
        if message.role != "system":
            yield from _turn(message)
        elif not system_first and (texts := _texts(message.content)):
            yield {"role": "system", "content": "".join(texts)}


def _texts(content: str | list[ContentBlock] | None) -> list[str]:
    if content is None:
        return []
    texts = [content] if isinstance(content, str) else [b.text for b in content if b.type == "text" and b.text]
    return [text for text in texts if text and not text.startswith(_BILLING_HEADER)]


def _turn(message: Message) -> Iterable[JsonObject]:
    """One message; a user's tool results come before it, as separate messages."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    parts: list[JsonObject] = []
    calls: list[JsonObject] = []
    thoughts: list[str] = []
    for block in message.content:
        match block.type:
            case "text" if block.text:
                parts.append({"type": "text", "text": block.text})
            case "image" if block.source:
                parts.append({"type": "image_url", "image_url": {"url": _url(block.source)}})
            case "thinking" if block.thinking is not None:
                thoughts.append(block.thinking)
            case "tool_use":
                calls.append(_call(block))
            case "tool_result" if message.role == "user":
                yield from _result(block)
            case "tool_result":
                parts.append({"type": "text", "text": f"Tool result: {block.content or ''}"})
    out: JsonObject = {"role": message.role}
    if thoughts:
        out["reasoning"] = "".join(thoughts)
    if calls:
        out["tool_calls"] = calls
    if parts:
        out["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    if message.role == "assistant" or parts:
        yield out


def _call(block: ContentBlock) -> JsonObject:
    arguments = json.dumps(block.input or {})
    return {
        "id": block.id or "call_0",
        "type": "function",
        "function": {"name": block.name or "", "arguments": arguments},
    }


def _result(block: ContentBlock) -> Iterable[JsonObject]:
    text, listed = (block.content, []) if isinstance(block.content, str) else (None, block.content or [])
    items: list[JsonObject] = listed if text is None else [{"type": "text", "text": text}]
    texts = [item.get("text", "") for item in items if item.get("type") == "text"]
    images = [_url(item.get("source", {})) for item in items if item.get("type") == "image"]
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    answer = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    yield {**answer, "content": "\n".join(texts)}
    if images:
        yield {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in images]}
    if any(names):
        yield {**answer, "content": [{"type": "tool_reference", "name": name} for name in names if name]}


def _url(source: JsonObject) -> str:
    if source.get("type") == "url":
        return str(source.get("url", ""))
    return f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"


def _tools(request: MessagesRequest) -> list[Tool] | None:
    """The tools after the conversation's additions and removals."""
    changes = [b for m in request.messages for b in m.blocks if b.type in ("tool_addition", "tool_removal")]
    if not changes:
        return request.tools
    tools = {tool.name: tool for tool in request.tools or ()}
    removed: set[str] = set()
    for block in changes:
        change = block.tool
        assert change is not None
        name = change.definition.name if change.definition is not None else change.name or ""
        if change.definition is not None:
            tools[name] = change.definition
        elif name not in tools:
            raise InvalidRequest(
                f"{block.type} names the tool {name!r}, which is not defined: add it to tools", param="messages"
            )
        elif block.type == "tool_addition":
            tools[name] = tools[name].model_copy(update={"defer_loading": None})
        if block.type == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _function(tool: Tool) -> JsonObject:
    function: JsonObject = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    for name in ("strict", "defer_loading"):
        if (value := getattr(tool, name)) is not None:
            function[name] = value
    return {"type": "function", "function": function}


def _choice(request: MessagesRequest, *, has_tools: bool) -> tuple[Any, bool]:
    choice = request.tool_choice
    if choice is None:
        return "auto" if has_tools else None, True
    named = {"type": "function", "function": {"name": choice.name}}
    meant = {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice.type]
    return meant, not choice.disable_parallel_tool_use


def _effort(request: MessagesRequest) -> str | None:
    if request.thinking is not None and request.thinking.type == "disabled":
        return "none"
    return request.output_config.effort if request.output_config is not None else None


def _format(request: MessagesRequest) -> JsonObject | None:
    wanted = request.output_config.format if request.output_config is not None else None
    if wanted is None or not wanted.json_schema:
        return None
    return {"type": "json_schema", "json_schema": {"name": wanted.type, "schema": wanted.json_schema}}


def _sampling(request: MessagesRequest) -> JsonObject:
    names = ("temperature", "top_p", "top_k", "watermarking")
    sampling = {name: value for name in names if (value := getattr(request, name)) is not None}
    if request.stop_sequences:
        sampling["stop"] = request.stop_sequences
    if request.thinking is not None and request.thinking.type == "enabled":
        sampling["thinking_token_budget"] = request.thinking.budget_tokens
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    return sampling


def _options(request: MessagesRequest) -> JsonObject:
    options = {name: value for name in _OPTIONS if (value := getattr(request, name)) is not None}
    if request.stream:
        options |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return options
