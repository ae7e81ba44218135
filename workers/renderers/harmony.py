"""gpt-oss, whose prompts in harmony format are written in code.

    <|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.
    Knowledge cutoff: 2024-06
    Current date: 2025-06-28

    Reasoning: medium

    # Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|><|start|>user
    <|message|>Weather?<|end|><|start|>assistant

(on one line from `<|start|>` to `<|message|>`). Text from clients never becomes a special token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation, JsonObject
from workers.renderers.base import RenderedPrompt, TextRenderer, check_length, check_limits
from workers.renderers.media import MEDIA_KINDS, PromptMedia
from workers.renderers.tools import template_tools
from workers.renderers.typescript import declare_functions

_EFFORTS = ("high", "medium", "low")
_DATE = "VLLM_SYSTEM_START_DATE"
"""The environment variable that pins the date in prompts; vLLM reads the same one."""
_SYSTEM = """You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: {date}

Reasoning: {effort}

# Valid channels: analysis, commentary, final. Channel must be included for every message.{tools}"""
_TOOLS_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."
_OPENING = "<|start|>assistant"


@dataclass(frozen=True, slots=True)
class _Message:
    """`<|start|>{header}<|message|>{parts}{end}`; `channel` is set for assistant messages.

    Each part is tokenized separately, because the client sent it as a separate part.
    """

    header: str
    parts: tuple[str, ...]
    channel: str | None = None
    end: str = "<|end|>"


class HarmonyRenderer(TextRenderer):
    """Ignores template arguments, truncation and offsets."""

    def write(self, conversation: Conversation, media: PromptMedia) -> str:
        return _joined(_messages(conversation))

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """Render a conversation; raises InvalidRequest."""
        check_limits(conversation, self._settings.max_model_len)
        messages = _messages(conversation)
        text = _joined(messages)
        if any(len(message.parts) > 1 or "<|" in message.parts[0] for message in messages):
            token_ids = [token_id for message in messages for token_id in self._encode(message)]
            token_ids += self._tokenizer.encode(_OPENING)
        else:
            token_ids = self._tokenizer.encode(text)
        check_length(len(token_ids), self._settings.max_model_len)
        return RenderedPrompt(tuple(token_ids), text)

    def _encode(self, message: _Message) -> Iterable[int]:
        yield from self._tokenizer.encode(f"<|start|>{message.header}<|message|>")
        for part in message.parts:
            yield from self._tokenizer.encode_as_text(part)
        yield from self._tokenizer.encode(message.end)


def _joined(messages: Iterable[_Message]) -> str:
    return "".join(f"<|start|>{m.header}<|message|>{''.join(m.parts)}{m.end}" for m in messages) + _OPENING


def _messages(conversation: Conversation) -> list[_Message]:
    effort = conversation.reasoning_effort or "medium"
    if effort not in _EFFORTS:
        raise InvalidRequest(
            f"reasoning_effort is {effort!r}; this model takes {', '.join(_EFFORTS)}", param="reasoning_effort"
        )
    tools = template_tools(conversation.tools or ())
    date = os.environ.get(_DATE) or datetime.now().strftime("%Y-%m-%d")
    system = _SYSTEM.format(date=date, effort=effort, tools=_TOOLS_CHANNEL if tools else "")
    turns = list(conversation.messages)
    instructions = ""
    if turns and turns[0]["role"] in ("system", "developer"):
        instructions = "".join(_parts(turns.pop(0).get("content")))
    messages = [_Message("system", (system,))]
    if instructions or tools:
        messages.append(_Message("developer", (_developer(instructions, tools),)))
    names = {call.get("id"): call["function"]["name"] for turn in turns for call in turn.get("tool_calls") or ()}
    messages += [message for turn in turns for message in _turn(turn, names)]
    answered = max((i for i, m in enumerate(messages) if m.channel == "final"), default=-1)
    return [m for i, m in enumerate(messages) if m.channel != "analysis" or i > answered]


def _developer(instructions: str, tools: Sequence[JsonObject]) -> str:
    sections = [f"# Instructions\n\n{instructions}"] if instructions else []
    if tools:
        sections.append(f"# Tools\n\n## functions\n\n{declare_functions(tool['function'] for tool in tools)}")
    return "\n\n".join(sections)


def _turn(turn: JsonObject, names: dict[Any, str]) -> Iterable[_Message]:
    parts = _parts(turn.get("content"))
    text = "".join(parts)
    match turn["role"]:
        case "assistant":
            calls = turn.get("tool_calls") or ()
            reasoning = turn.get("reasoning")
            if calls and text:
                yield _assistant("commentary", (text,))
            if reasoning:
                yield _assistant("analysis", (reasoning,))
            for call in calls:
                yield _call(call["function"])
            if parts[0] and not calls:
                yield _assistant("final", parts)
        case "tool":
            name = names.get(turn.get("tool_call_id"), "")
            yield _Message(f"functions.{name}<|channel|>commentary to=assistant", parts)
        case "system" | "developer":
            if turn.get("content") is not None:
                yield _Message("developer", (_developer(text, ()),))
        case "user":
            yield _Message("user", parts)
        case role:
            raise InvalidRequest(f"this model has no format for a message with role {role!r}", param="messages")


def _assistant(channel: str, parts: tuple[str, ...]) -> _Message:
    return _Message(f"assistant<|channel|>{channel}", parts, channel)


def _call(function: JsonObject) -> _Message:
    arguments = function.get("arguments") or ""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _Message(
        f"assistant to=functions.{function['name']}<|channel|>commentary json", (text,), "commentary", "<|call|>"
    )


def _parts(content: Any) -> tuple[str, ...]:
    if not content or isinstance(content, str):
        return (content or "",)
    if media := [part for part in content if isinstance(part, dict) and part.get("type") in MEDIA_KINDS]:
        raise InvalidRequest(
            f"this model takes only text: remove the content part of type {media[0]['type']!r}", param="messages"
        )
    return tuple(part if isinstance(part, str) else part.get("text") or "" for part in content)
