"""How a chat template takes the calls of a history, found by rendering small conversations with it.

call_form_of(deepseek_v3_template)      # CallForm(arguments="text", no_content="none", text_beside="apart")

Templates differ in what they do with a call's arguments (write them as JSON, go through their items, or put them
between other text) and in what they ask of a message without content. Nothing in a template says so but what it writes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, get_args, get_type_hints

from tasks.protocol.conversation import JsonObject
from tasks.settings import MediaSettings
from workers.renderers.media import PromptMedia
from workers.renderers.messages import shape_messages
from workers.renderers.templates import CallForm, compile_template, content_format_of

_ARGUMENTS = {"probe_key": "probe-value"}
_NAME, _TEXT = "probe_call", "Probe text"
_CALL = {
    # Templates of Mistral's want ids of nine letters and digits.
    "id": "probe0001",
    "type": "function",
    "function": {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)},
}
_TOOL = {"type": "function", "function": {"name": "other", "description": "Does", "parameters": {"type": "object"}}}
_VARIABLES = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk", "sep", "cls", "mask")}
"""Templates put special tokens between other text, which fails if there are none."""


@lru_cache(maxsize=64)
def call_form_of(source: str) -> CallForm | None:
    """The form in which the template writes calls, the reference's first; None if it writes them in none."""
    forms = get_type_hints(CallForm)
    # Some templates write calls only where there are tools.
    for tools in (None, [_TOOL]):
        for arguments, no_content in product(get_args(forms["arguments"]), get_args(forms["no_content"])):
            form = CallForm(arguments, no_content)
            if _writes_call(_probe(source, form, "", tools), form):
                return replace(form, text_beside=_text_beside(source, form, tools))
    return None


def _text_beside(source: str, form: CallForm, tools: Any) -> Any:
    # A template that writes the calls and leaves the text out has chosen so.
    if _writes_call(_probe(source, form, _TEXT, tools), form):
        return "together"
    apart = replace(form, text_beside="apart")
    written = _probe(source, apart, _TEXT, tools)
    return "apart" if _writes_call(written, form) and _TEXT in written else "dropped"


def _writes_call(written: str, form: CallForm) -> bool:
    """Whether the call's name and arguments are there, the arguments neither as Python's text nor as a string's."""
    parts = [_NAME, json.dumps(_ARGUMENTS)] if form.arguments == "text" else [_NAME, *_ARGUMENTS, *_ARGUMENTS.values()]
    return all(part in written for part in parts) and str(_ARGUMENTS) not in written


def _probe(source: str, form: CallForm, text: str, tools: Any) -> str:
    """What the template writes for a call and its result, or nothing if it fails."""
    history: list[JsonObject] = [
        {"role": "user", "content": "Probe"},
        {"role": "assistant", "content": text, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": _CALL["id"], "name": _NAME, "content": "Probe result"},
    ]
    messages = shape_messages(history, content_format_of(source), PromptMedia(MediaSettings()), form)
    try:
        return compile_template(source).render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=False, **_VARIABLES
        )
    except Exception:  # noqa: BLE001  # a template's expression may raise anything; this form is not for it
        return ""
