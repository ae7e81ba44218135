"""DeepSeek V4, which has no chat template: its prompts are written in code.

<｜begin▁of▁sentence｜>You are helpful.<｜User｜>Weather?<｜Assistant｜><think>…</think>

<｜DSML｜tool_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>12 °C</tool_result><｜Assistant｜><think>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation, JsonObject
from workers.renderers.base import TextRenderer, given, template_arguments
from workers.renderers.deepseek_v32 import (
    ASSISTANT,
    BEGIN,
    END,
    END_THINK,
    THINK,
    USER,
    last_question,
    without_old_reasoning,
    write_calls,
    write_schemas,
)
from workers.renderers.media import PromptMedia
from workers.renderers.messages import shape_messages
from workers.renderers.tools import template_tools

_REMINDER = "<｜latest_reminder｜>"
_TASKS = ("action", "query", "authority", "domain", "title", "read_url")

_TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

%s

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""  # the model was trained on exactly this text

_EFFORTS = {
    "low": "",
    "high": (
        "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
        "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root "
        "cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
        "scenarios.\n"
        "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
        "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
    ),
    "max": (
        "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
        "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
        "decompose the problem into its most fundamental components, trace every causal chain to its root, and "
        "resolve the underlying cause rather than any surface symptom.\n"
        "Do not stop reasoning until you have independently verified the solution from multiple angles and are "
        "certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
    ),
}


class DeepSeekV4Renderer(TextRenderer):
    """Thinks unless `thinking` or `enable_thinking` is false; keeps earlier reasoning if there are tools."""

    def write(self, conversation: Conversation, media: PromptMedia) -> str:
        arguments = given(template_arguments(conversation, self._settings.default_template_arguments))
        switches = [arguments[name] for name in ("thinking", "enable_thinking") if name in arguments]
        thinking = any(switches) if switches else True
        effort = arguments.get("reasoning_effort")
        if effort == "none":
            thinking = False
        messages = shape_messages(conversation.messages, "openai", media)
        messages = [{**message, "content": _flat(message["content"])} for message in messages]
        if conversation.tools:
            messages = _with_tools(messages, template_tools(conversation.tools))
        messages = _with_results_as_user(messages)
        forget = bool(arguments.get("drop_thinking", True)) and not any(message.get("tools") for message in messages)
        if thinking and forget:
            messages = without_old_reasoning(messages)
        question = last_question(messages)
        written = [
            _write(messages, index, question, thinking=thinking, forget=forget) for index in range(len(messages))
        ]
        return BEGIN + (_EFFORTS[_level(effort)] if thinking and messages else "") + "".join(written)


def _level(effort: Any) -> str:
    if effort in ("low", "minimal", "medium"):
        return "low"
    return "max" if effort == "max" else "high"


def _flat(content: Any) -> str:
    return content if isinstance(content, str) else "\n\n".join(part["text"] for part in content)


def _with_tools(messages: list[JsonObject], tools: list[JsonObject]) -> list[JsonObject]:
    first = next((i for i, message in enumerate(messages) if message["role"] == "system"), None)
    if first is None:
        return [{"role": "system", "content": "", "tools": tools}, *messages]
    return [{**message, "tools": tools} if i == first else message for i, message in enumerate(messages)]


def _with_results_as_user(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Move tool results into user messages, those of one turn in the order of their calls."""
    out: list[JsonObject] = []
    order: dict[str, int] = {}
    for message in messages:
        last = out[-1] if out and "blocks" in out[-1] else None
        if message["role"] == "tool":
            block = (message.get("tool_call_id") or "", f"<tool_result>{message['content']}</tool_result>")
            if last is None:
                out.append({"role": "user", "blocks": [block]})
            else:
                last["blocks"].append(block)
            continue
        if message["role"] != "user":
            out.append(message)
        elif last is None or last.get("task") is not None:
            task = {"task": message["task"]} if "task" in message else {}
            out.append({"role": "user", "blocks": [(None, message["content"])], **task})
        else:
            last["blocks"].append((None, message["content"]))
    for message in out:
        if message.get("tool_calls"):
            order = {call["id"]: i for i, call in enumerate(message["tool_calls"]) if call.get("id")}
        elif "blocks" in message:
            message["content"] = "\n\n".join(text for _, text in _sorted(message["blocks"], order))
    return out


def _sorted(blocks: list[tuple[str | None, str]], order: dict[str, int]) -> list[tuple[str | None, str]]:
    results = iter(sorted((b for b in blocks if b[0] is not None), key=lambda b: order.get(b[0] or "", 0)))
    return [block if block[0] is None else next(results) for block in blocks]


def _write(messages: Sequence[JsonObject], index: int, question: int, *, thinking: bool, forget: bool) -> str:
    message = messages[index]
    role, content = message["role"], message.get("content") or ""
    tools = "\n\n" + _TOOLS % write_schemas(message["tools"]) if message.get("tools") else ""
    follows = messages[index + 1]["role"] if index + 1 < len(messages) else None
    match role:
        case "system":
            text = content + tools
        case "user":
            text = USER + content
        case "developer" if content:
            text = USER + content + tools
        case "developer":
            raise InvalidRequest("a developer message has no content", param="messages")
        case "latest_reminder":
            text = _REMINDER + content
        case "assistant":
            answers_task = index > 0 and messages[index - 1].get("task") is not None
            shown = thinking and not answers_task and (not forget or index > question)
            thought = f"{message.get('reasoning') or ''}{END_THINK}" if shown else ""
            text = f"{thought}{content}{write_calls(message.get('tool_calls') or (), 'tool_calls')}{END}"
        case _:
            raise InvalidRequest(f"this model has no format for a message with role {role!r}", param="messages")
    if follows not in (None, "assistant", "latest_reminder"):
        return text
    return text + _opening(message, role, follows, thinking=thinking, now=not forget or index >= question)


def _opening(message: JsonObject, role: str, follows: str | None, *, thinking: bool, now: bool) -> str:
    task = message.get("task")
    if task is not None:
        if task not in _TASKS:
            raise InvalidRequest(
                f"a message has the unknown task {task!r}; known are {', '.join(_TASKS)}", param="messages"
            )
        before = ASSISTANT + (THINK if thinking else END_THINK) if task == "action" else ""
        return f"{before}<｜{task}｜>"
    if role in ("user", "developer") or (role == "system" and follows != "latest_reminder"):
        return ASSISTANT + (THINK if thinking and now else END_THINK)
    return ""
