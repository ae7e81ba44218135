from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation
from workers.surfaces.anthropic import converse, read

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {}}}


def talk(*messages: dict[str, Any], system_first: bool = False, **fields: Any) -> Conversation:
    body = {"model": "m", "max_tokens": 9, "messages": list(messages or (USER,)), **fields}
    return converse(read(body), system_first=system_first)


def test_blocks_become_chat_messages():
    conversation = talk(
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Let me ", "signature": "s"},
                {"type": "thinking", "thinking": "look."},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "12"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    )
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert conversation.messages == (
        USER,
        {"role": "assistant", "reasoning": "Let me look.", "tool_calls": [call], "content": "Looking."},
        {"role": "tool", "tool_call_id": "t1", "content": "12"},
        {"role": "user", "content": "And?"},
    )


def test_system_blocks_are_one_text_without_the_billing_line():
    blocks = [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be "}]
    late = {"role": "system", "content": "kind."}
    assert talk(USER, late, system=blocks).messages == ({"role": "system", "content": "Be "}, USER, late)
    assert talk(USER, late, system=blocks, system_first=True).messages == (
        {"role": "system", "content": "Be kind."},
        USER,
    )


def test_tools_and_the_choice_among_them():
    conversation = talk(tools=[TOOL])
    assert conversation.tools == (
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"properties": {}, "type": "object"}},
        },
    )
    assert conversation.tool_choice == "auto"
    assert talk().tool_choice is None
    assert talk(tools=[TOOL], tool_choice={"type": "any"}).tool_choice == "required"
    named = talk(tools=[TOOL], tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True})
    assert named.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert named.parallel_tool_calls is False


def test_the_conversation_may_add_and_remove_tools():
    def change(kind: str, **tool: Any) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    added = change("tool_addition", type="tool_definition", definition={**TOOL, "name": "g"})
    removed = change("tool_removal", type="tool_reference", name="f")
    conversation = talk(USER, added, removed, tools=[TOOL])
    assert [tool["function"]["name"] for tool in conversation.tools or ()] == ["g"]
    with pytest.raises(InvalidRequest):
        talk(USER, change("tool_removal", type="tool_reference", name="h"), tools=[TOOL])


def test_thinking_and_effort():
    assert talk(thinking={"type": "disabled"}).reasoning_effort == "none"
    assert talk(output_config={"effort": "high"}).reasoning_effort == "high"
    assert talk(thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=3000).sampling == {
        "thinking_token_budget": 2000
    }


def test_limits_stops_and_streams():
    conversation = talk(stop_sequences=["x"], temperature=0.5, stream=True)
    assert conversation.max_output_tokens == 9
    assert conversation.sampling == {"temperature": 0.5, "stop": ["x"]}
    assert conversation.options == {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"model": ""}, "model"),
    ],
)
def test_what_is_wrong_is_named(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        talk(**fields)
    assert param in (caught.value.param or "")
