"""Renders conversations with a model's Jinja chat template."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation, JsonObject
from workers.renderers.base import TextRenderer, given, template_arguments
from workers.renderers.forms import call_form_of
from workers.renderers.media import PromptMedia
from workers.renderers.messages import developer_as_system, shape_messages
from workers.renderers.templates import (
    CallForm,
    compile_template,
    content_format_of,
    knows_developer_role,
    takes_late_system,
)
from workers.renderers.tools import template_tools

_CONTINUE_HERE = "\ue000continue-here\ue000"
"""Marks the end of the final message in the rendered text; private-use characters, so no message has it."""


class JinjaRenderer(TextRenderer):
    """Renders with the tokenizer's chat templates, or with the one in the model's settings."""

    @property
    def takes_late_system(self) -> bool:
        try:
            return all(takes_late_system(self._source(None, with_tools=with_tools)) for with_tools in (False, True))
        except InvalidRequest:
            return False

    def write(self, conversation: Conversation, media: PromptMedia) -> str:
        """The conversation as the chat template writes it; raises InvalidRequest with the template's own reason."""
        arguments = given(template_arguments(conversation, self._settings.default_template_arguments))
        tools = None if conversation.tools is None else template_tools(conversation.tools)
        tools = arguments.pop("tools", tools)
        chosen = conversation.template or arguments.get("chat_template")
        source = self._source(chosen, with_tools=tools is not None)
        messages = shape_messages(conversation.messages, content_format_of(source), media, _form(source, conversation))
        if not knows_developer_role(source):
            messages = developer_as_system(messages)
        return self._apply(source, messages, tools, arguments)

    def _apply(self, source: str, messages: list[JsonObject], tools: Any, arguments: JsonObject) -> str:
        variables = {**self._tokenizer.info.special_tokens, **arguments}
        for name in ("messages", "chat_template", "tokenize"):
            variables.pop(name, None)
        documents = variables.pop("documents", None)
        add_generation_prompt = variables.pop("add_generation_prompt", False)
        continued = variables.pop("continue_final_message", False)
        if continued and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message continues the last message, add_generation_prompt begins a new one: set one",
                param="continue_final_message",
            )
        final = _mark_end(messages) if continued else None
        try:
            text = compile_template(source).render(
                messages=messages,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        except TemplateError as error:
            raise InvalidRequest(str(error)) from error
        except Exception as error:  # a template's expression may raise anything, and its input is to blame
            raise InvalidRequest(f"the chat template failed: {error}") from error
        return text if final is None else _cut_at_mark(text, final)

    def _source(self, chosen: str | None, *, with_tools: bool) -> str:
        template = chosen or self._settings.chat_template
        if template is not None:
            return self._templates.get(template, template)
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            raise InvalidRequest(
                "this model has no chat template: set chat_template in its settings, or use /v1/completions"
            )
        return self._templates["default"]


def _form(source: str, conversation: Conversation) -> CallForm:
    """How the template takes calls; it is not asked for a conversation that has none."""
    if not any(message.get("tool_calls") for message in conversation.messages):
        return CallForm()
    return call_form_of(source) or CallForm()


def _mark_end(messages: list[JsonObject]) -> str:
    """Marks where the last message's text ends, and returns that text."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = f"{content}{_CONTINUE_HERE} "
        return content
    for part in reversed(content or ()):
        if "text" in part:
            text: str = part["text"]
            part["text"] = f"{text}{_CONTINUE_HERE} "
            return text
    raise InvalidRequest("the final message has no text to continue", param="continue_final_message")


def _cut_at_mark(text: str, final: str) -> str:
    end = text.rfind(_CONTINUE_HERE)
    if end < 0 or final.strip() not in text:
        raise InvalidRequest(
            "the chat template changes or hides the final message, so the message cannot be continued",
            param="continue_final_message",
        )
    if text.startswith(" ", end + len(_CONTINUE_HERE)):
        return text[:end]
    # The template trimmed the message: without the mark it would have trimmed the text before it.
    return text[:end].rstrip()
