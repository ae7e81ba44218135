from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation
from workers.surfaces.openai_responses import converse, read

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "12"}


def talk(given: Any = "Hi", **fields: Any) -> Conversation:
    return converse(read({"model": "m", "input": given, **fields}))


def test_text_is_a_user_s_message_after_the_instructions():
    assert talk(instructions="Be kind.").messages == (
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    )


def test_one_turn_s_items_are_one_message():
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]}
    thought = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    messages = talk(
        [{"role": "user", "content": "Hi"}, thought, message, CALL, {**CALL, "call_id": "c2"}, OUTPUT]
    ).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    turn = messages[1]
    assert (turn["reasoning"], turn["content"]) == ("Hm.", "Looking.")
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert messages[2] == {"role": "tool", "content": "12", "tool_call_id": "c1"}


def test_a_second_text_is_a_second_message():
    message = {"role": "assistant", "content": "a"}
    assert len(talk([message, message]).messages) == 2


def test_flat_tools_become_chat_tools():
    tools = [{"type": "function", "name": "f", "parameters": {}, "strict": True}, {"type": "web_search"}]
    conversation = talk(tools=tools, tool_choice={"type": "function", "name": "f"})
    assert conversation.tools == ({"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}},)
    assert conversation.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert (talk().tools, talk().tool_choice) == (None, "none")


def test_an_unfinished_message_is_continued():
    partial = {"type": "message", "role": "assistant", "status": "incomplete", "content": "It is"}
    conversation = talk([{"role": "user", "content": "Hi"}, partial])
    assert (conversation.continue_final_message, conversation.add_generation_prompt) == (True, False)
    assert talk().add_generation_prompt


def test_formats_effort_and_truncation():
    form = {"type": "json_schema", "name": "s", "schema": {"type": "object"}}
    conversation = talk(text={"format": form}, reasoning={"effort": "low"}, truncation="auto", max_output_tokens=5)
    assert conversation.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": {"type": "object"}},
    }
    assert conversation.reasoning_effort == "low"
    assert conversation.tokenization.truncate_to == -1
    assert (conversation.max_output_tokens, conversation.max_output_tokens_param) == (5, "max_output_tokens")


def test_logprobs_are_given_where_they_are_included():
    assert "logprobs" not in talk(top_logprobs=2).sampling
    assert talk(top_logprobs=2, include=["message.output_text.logprobs"]).sampling == {"logprobs": 2}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}, "structured_outputs"),
        ({"given": [{"type": "hologram"}]}, "input"),
        ({"given": [{"type": "reasoning", "encrypted_content": "x"}]}, "input"),
        ({"tools": [{"type": "function"}]}, "tools"),
    ],
)
def test_what_is_wrong_is_named(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        talk(**fields)
    assert (caught.value.param or "").startswith(param)
