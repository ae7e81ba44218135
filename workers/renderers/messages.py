"""Converts messages from what clients send to what chat templates read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import JsonObject
from workers.renderers.media import MEDIA_KINDS, PromptMedia
from workers.renderers.templates import CallForm, ContentFormat

_TEXT_OF = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Types of text parts, and the key that holds their text."""

_PART_FIELDS = frozenset(
    ("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio")
    + ("name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url")
)
"""Fields of content parts that client libraries define; other fields are passed on to the template."""

_BILLING_HEADER = "x-anthropic-billing-header"
"""One client begins its system prompt with this line; it differs in every request and would defeat prefix caches."""


def shape_messages(
    messages: Iterable[Mapping[str, Any]],
    content_format: ContentFormat,
    media: PromptMedia,
    call_form: CallForm = CallForm(),  # noqa: B008  # frozen
) -> list[JsonObject]:
    """Convert content and calls to the forms that the template takes; media are added to `media`.

    Raises InvalidRequest for content parts that are unknown or that the model does not take, and for malformed tool
    calls.
    """
    shaped: list[JsonObject] = []
    for message in messages:
        out = _message(message, content_format, media, call_form)
        shaped += _calls_formed(out, call_form) if "tool_calls" in out else [out]
    return shaped


def _message(
    message: Mapping[str, Any], content_format: ContentFormat, media: PromptMedia, call_form: CallForm
) -> JsonObject:
    role = message["role"]
    content = message.get("content")
    parts: list[Any] = [] if content is None else [content] if isinstance(content, str) else list(content)
    if role == "system":
        parts = [rest for part in parts if (rest := _without_billing_header(part)) is not None]
    shaped = [shaped for part in parts if (shaped := _part(part, media)) is not None]
    out: JsonObject = {"role": role}
    if content_format == "openai":
        out["content"] = shaped
    else:
        text = "\n".join(text for part in shaped if (text := _plain(part)))
        modalities = [part["type"] for part in shaped if part["type"] in ("image", "audio", "video")]
        out["content"] = media.write_placeholders(text, modalities) if modalities else text
    match role:
        case "assistant":
            if message.get("tool_calls"):
                out["tool_calls"] = [_tool_call(call, call_form) for call in message["tool_calls"]]
            if (reasoning := message.get("reasoning")) is not None:
                out["reasoning"] = out["reasoning_content"] = reasoning
        case "tool":
            if "tool_call_id" in message:
                out["tool_call_id"] = message["tool_call_id"]
            if content_format == "openai" and all(part["type"] == "text" for part in shaped):
                out["content"] = "\n".join(part["text"] for part in shaped)
        case "developer":
            out["tools"] = message.get("tools")
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            out[name] = message[name]
    return out


def _calls_formed(message: JsonObject, form: CallForm) -> list[JsonObject]:
    """A message with calls as the template takes it: two messages where text and calls cannot stand in one."""
    content = message["content"]
    # A list with one empty part is no content either.
    has_text = content if isinstance(content, str) else any(part.get("text", part) for part in content)
    if has_text and form.text_beside == "together":
        return [message]
    if has_text and form.text_beside == "apart":
        text = {name: value for name, value in message.items() if name != "tool_calls"}
        return [
            text,
            *_calls_formed({"role": message["role"], "content": "", "tool_calls": message["tool_calls"]}, form),
        ]
    calls = {name: value for name, value in message.items() if name != "content" or form.no_content != "absent"}
    if "content" in calls:
        calls["content"] = None if form.no_content == "none" else content[:0]
    return [calls]


def _plain(part: JsonObject) -> str:
    text: str = part.get("text") or part.get("name") or ""
    return text


def _part(part: Any, media: PromptMedia) -> JsonObject | None:
    """One part as `{"type": "text", "text": ...}`, a tool reference or `{"type": "image"}`; None if it is empty."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        if not MEDIA_KINDS.isdisjoint(part):
            return _medium(part, media)
        if "tool_reference" in part:
            return {"type": "tool_reference", "name": part.get("name")}
    if not isinstance(kind, str):
        raise InvalidRequest("a content part has no type: give it one, such as 'text'", param="type")
    if kind in _TEXT_OF:
        text = part.get(_TEXT_OF[kind])
        if text is None and kind in ("text", "refusal"):
            return None
        if not isinstance(text, str):
            raise InvalidRequest(
                f"a content part of type {kind!r} needs its text in {_TEXT_OF[kind]!r}", param="messages"
            )
        return {"type": "text", "text": text} | {k: v for k, v in part.items() if k not in _PART_FIELDS}
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name")}
    if kind in MEDIA_KINDS:
        return _medium(part, media)
    raise InvalidRequest(f"content parts of type {kind!r} are not supported", param="type")


def _medium(part: JsonObject, media: PromptMedia) -> JsonObject:
    return {"type": media.add(part)} | {k: v for k, v in part.items() if k not in _PART_FIELDS}


def _without_billing_header(part: Any) -> Any:
    text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else None
    if not (isinstance(text, str) and text.startswith(_BILLING_HEADER)):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(part, str) else {**part, "text": rest}


def _tool_call(call: Any, form: CallForm) -> JsonObject:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise InvalidRequest(
            "tool calls in messages must be of type 'function' and have a function object", param="tool_calls"
        )
    arguments = function.get("arguments")
    formed = _arguments_text(arguments) if form.arguments == "text" else _arguments(arguments)
    return {**call, "function": {**function, "arguments": formed}}


def _arguments(arguments: Any) -> JsonObject:
    """The call's arguments as an object; {} if malformed, because one bad turn must not fail all later requests."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {}


def _arguments_text(arguments: Any) -> str:
    """The call's arguments as the model wrote them, be they JSON or not; {} if it wrote none."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return json.dumps(_arguments(arguments), ensure_ascii=False)


def developer_as_system(messages: list[JsonObject]) -> list[JsonObject]:
    """Turn developer messages into system messages, for templates without a developer role.

    If that puts a system message anywhere but first, all system messages are joined into one at the top.
    """
    if not any(message["role"] == "developer" for message in messages):
        return messages
    messages = [_as_system(message) if message["role"] == "developer" else message for message in messages]
    if all(message["role"] != "system" for message in messages[1:]):
        return messages
    texts = [text for message in messages if message["role"] == "system" and (text := _joined(message["content"]))]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _as_system(message: JsonObject) -> JsonObject:
    return {name: value for name, value in message.items() if name != "tools"} | {"role": "system"}


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
