"""DeepSeek V3.2, which has no chat template: its prompts are written in code.

<｜begin▁of▁sentence｜>You are helpful.<｜User｜>Weather?<｜Assistant｜></think>

<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls><｜end▁of▁sentence｜>

<function_results>
<result>12 °C</result>
</function_results>

</think>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation, JsonObject
from workers.renderers.base import TextRenderer, given, template_arguments
from workers.renderers.media import PromptMedia
from workers.renderers.messages import shape_messages
from workers.renderers.tools import template_tools

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"

_TOOLS = """## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
%s
</functions>
"""  # the model was trained on exactly this text


class DeepSeekV32Renderer(TextRenderer):
    """Thinks if `thinking` or `enable_thinking` is true; a new user message drops the reasoning before it."""

    def write(self, conversation: Conversation, media: PromptMedia) -> str:
        arguments = given(template_arguments(conversation, self._settings.default_template_arguments))
        thinking = bool(arguments.get("thinking") or arguments.get("enable_thinking"))
        messages = shape_messages(conversation.messages, "string", media)
        if conversation.tools:
            messages.insert(0, {"role": "system", "tools": template_tools(conversation.tools)})
        if thinking and messages and messages[-1]["role"] == "user":
            messages = without_old_reasoning(messages)
        question = last_question(messages)
        return BEGIN + "".join(_write(messages, index, question, thinking=thinking) for index in range(len(messages)))


def last_question(messages: Sequence[JsonObject]) -> int:
    """The index of the last user or developer message; -1 if there is none."""
    return max((i for i, message in enumerate(messages) if message["role"] in ("user", "developer")), default=-1)


def without_old_reasoning(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Drop the reasoning and the developer messages that come before the last question."""
    question = last_question(messages)
    out = []
    for index, message in enumerate(messages):
        if index >= question or message["role"] not in ("assistant", "developer"):
            out.append(message)
        elif message["role"] == "assistant":
            out.append({name: value for name, value in message.items() if name != "reasoning"})
    return out


def write_parameters(arguments: Mapping[str, Any]) -> str:
    """A call's arguments, one parameter per line: strings as they are, other values as JSON."""
    return "\n".join(
        f'<｜DSML｜parameter name="{name}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else to_json(value)}</｜DSML｜parameter>"
        for name, value in arguments.items()
    )


def write_calls(calls: Sequence[JsonObject], block: str) -> str:
    """The block of tool calls, after an empty line; empty if there are no calls."""
    if not calls:
        return ""
    functions = [call["function"] for call in calls]
    invokes = "\n".join(
        f'<｜DSML｜invoke name="{function["name"]}">\n{write_parameters(function["arguments"])}\n</｜DSML｜invoke>'
        for function in functions
    )
    return f"\n\n<｜DSML｜{block}>\n{invokes}\n</｜DSML｜{block}>"


def write_schemas(tools: Sequence[JsonObject]) -> str:
    """The tools' functions, one JSON object per line."""
    return "\n".join(to_json(tool["function"]) for tool in tools)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write(messages: Sequence[JsonObject], index: int, question: int, *, thinking: bool) -> str:
    message = messages[index]
    content = message.get("content") or ""
    tools = _TOOLS % write_schemas(message["tools"]) if message.get("tools") else ""
    opening = THINK if thinking and index >= question else END_THINK
    match message["role"]:
        case "system":
            return content + (f"\n\n{tools}" if tools else "")
        case "user":
            return f"{USER}{content}{ASSISTANT}{opening}"
        case "developer" if content:
            before = f"\n\n{tools}" if tools else ""
            return f"{USER}{before}\n\n# The user's message is: {content}{ASSISTANT}{opening}"
        case "developer":
            raise InvalidRequest("a developer message has no content", param="messages")
        case "tool":
            return _result(messages, index, content, opening)
        case "assistant":
            calls = message.get("tool_calls") or ()
            reasoning = message.get("reasoning")
            if not (thinking and index > question):
                thought = ""
            elif reasoning or calls:
                thought = f"{reasoning or ''}{END_THINK}"
            else:
                raise InvalidRequest(
                    "an assistant message after the last user message has neither reasoning nor tool calls: this model "
                    "needs one of them there when it thinks",
                    param="messages",
                )
            return f"{thought}{content}{write_calls(calls, 'function_calls')}{END}"
        case role:
            raise InvalidRequest(f"this model has no format for a message with role {role!r}", param="messages")


def _result(messages: Sequence[JsonObject], index: int, content: str, opening: str) -> str:
    caller = next((i for i in range(index - 1, -1, -1) if messages[i]["role"] != "tool"), -1)
    calls = messages[caller].get("tool_calls") if caller >= 0 and messages[caller]["role"] == "assistant" else None
    order = index - caller
    if not calls or len(calls) < order:
        raise InvalidRequest(
            "a tool message has no matching tool call in the assistant message before it", param="messages"
        )
    before = "\n\n<function_results>" if order == 1 else ""
    after = f"\n</function_results>\n\n{opening}" if order == len(calls) else ""
    return f"{before}\n<result>{content}</result>{after}"
