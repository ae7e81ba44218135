from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import (
    Conversation,
    Tokenization,
    conversation_from_json,
    conversation_to_json,
    count_tool_calls,
)

FULL = Conversation(
    messages=(
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "g"}}],
        },
    ),
    tools=({"type": "function", "function": {"name": "f"}},),
    tool_choice={"type": "function", "function": {"name": "f"}},
    parallel_tool_calls=False,
    include_reasoning=False,
    template="{{ messages }}",
    template_arguments={"enable_thinking": False},
    add_generation_prompt=False,
    continue_final_message=True,
    documents=({"title": "t", "text": "x"},),
    reasoning_effort="low",
    response_format={"type": "json_object"},
    structured_outputs={"choice": ["a", "b"]},
    sampling={"temperature": 0.0},
    max_output_tokens=5,
    max_output_tokens_param="max_completion_tokens",
    tokenization=Tokenization(add_special_tokens=True, truncate_to=-1, truncation_side="left", return_offsets=True),
    options={"stream": True},
)


def test_a_conversation_survives_json():
    assert conversation_from_json(json.loads(json.dumps(conversation_to_json(FULL)))) == FULL


def test_defaults_are_left_out():
    plain = Conversation(messages=({"role": "user", "content": "hi"},))
    assert conversation_to_json(plain) == {"messages": [{"role": "user", "content": "hi"}]}
    assert conversation_from_json(conversation_to_json(plain)) == plain


def test_no_tools_and_an_empty_list_of_tools_stay_different():
    empty = Conversation(messages=(), tools=())
    assert conversation_from_json(json.loads(json.dumps(conversation_to_json(empty)))).tools == ()


def test_the_history_s_tool_calls_are_counted():
    assert count_tool_calls(FULL) == 2


@pytest.mark.parametrize(
    ("messages", "tools", "param"),
    [
        ([7], [], "messages.0"),
        ([{"content": "no role"}], [], "messages.0.role"),
        ([{"role": ["user"]}], [], "messages.0.role"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": -1}], [], "messages.1.content"),
        ([{"role": "user", "content": {"text": "a"}}], [], "messages.0.content"),
        ([{"role": "user", "content": ["a", None]}], [], "messages.0.content.1"),
        ([{"role": "assistant", "tool_calls": "look"}], [], "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": [None]}], [], "messages.0.tool_calls.0"),
        ([{"role": "assistant", "tool_calls": [{"function": []}]}], [], "messages.0.tool_calls.0.function"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], [], "messages.0.tool_calls.0.function.name"),
        ([], ["look"], "tools.0"),
        ([], [{"function": [None]}], "tools.0.function"),
        ([], [{"function": {"name": "f"}}, {"function": {"name": 1}}], "tools.1.function.name"),
        ([], [{"function": {"name": "f", "parameters": "none"}}], "tools.0.function.parameters"),
    ],
)
def test_a_conversation_has_the_shape_that_templates_read(messages: Any, tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Conversation(messages=tuple(messages), tools=tuple(tools))
    assert caught.value.param == param and caught.value.message.startswith(f"{param} must be ")
