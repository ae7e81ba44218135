from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.settings import MediaSettings
from workers.renderers.media import PromptMedia
from workers.renderers.messages import developer_as_system, shape_messages
from workers.renderers.templates import ContentFormat

TEXT = {"type": "text", "text": "a"}


def content(parts: Any, content_format: ContentFormat = "string", role: str = "user") -> Any:
    return shape_messages([{"role": role, "content": parts}], content_format, PromptMedia(MediaSettings()))[0][
        "content"
    ]


def test_content_takes_the_template_s_format():
    assert content("hi") == "hi"
    assert content("hi", "openai") == [{"type": "text", "text": "hi"}]
    assert content([TEXT, "b", {"type": "input_text", "text": "c"}]) == "a\nb\nc"
    assert content([TEXT, "b"], "openai") == [TEXT, {"type": "text", "text": "b"}]
    assert content(None) == ""
    assert content(None, "openai") == []
    assert content([{"type": "text", "text": ""}, TEXT]) == "a"
    assert content([{"type": "text", "text": None}, TEXT]) == "a"


def test_fields_that_no_library_knows_reach_the_template():
    part = {**TEXT, "cache_control": {"type": "ephemeral"}, "uuid": None}
    assert content([part], "openai") == [{**TEXT, "cache_control": {"type": "ephemeral"}}]


def test_a_refusal_and_thinking_are_text():
    assert content([{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}]) == "no\nhm"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"image_url": "http://x/y.png"},
        {"type": "hologram"},
        {"text": "a"},
        {"type": 3},
    ],
)
def test_parts_that_are_no_text_are_refused(part):
    with pytest.raises(InvalidRequest):
        content([part])


@pytest.mark.parametrize(
    ("sent", "expected"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}), ("[1]", {}), ("{", {}), ("3", {})],
)
def test_tool_call_arguments_become_objects(sent, expected):
    call: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": sent}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    (shaped,) = shape_messages([message], "string", PromptMedia(MediaSettings()))
    assert shaped["tool_calls"][0]["function"] == {"name": "f", "arguments": expected}
    assert call["function"]["arguments"] == sent, "the request is left alone"


@pytest.mark.parametrize("call", [3, {"type": "custom", "function": {}}, {"id": "c"}])
def test_a_malformed_tool_call_is_refused(call):
    with pytest.raises(InvalidRequest) as caught:
        shape_messages(
            [{"role": "assistant", "content": "", "tool_calls": [call]}], "string", PromptMedia(MediaSettings())
        )
    assert caught.value.param == "tool_calls"


def test_an_empty_list_of_tool_calls_is_none():
    assert (
        "tool_calls"
        not in shape_messages(
            [{"role": "assistant", "content": "", "tool_calls": []}], "string", PromptMedia(MediaSettings())
        )[0]
    )


def test_reasoning_is_found_under_both_names():
    (shaped,) = shape_messages(
        [{"role": "assistant", "content": "b", "reasoning": "r"}], "string", PromptMedia(MediaSettings())
    )
    assert (shaped["reasoning"], shaped["reasoning_content"]) == ("r", "r")


def test_tool_results_are_text_unless_they_are_more():
    assert content([TEXT, TEXT], "openai", role="tool") == "a\na"
    reference = {"type": "tool_reference", "name": "f"}
    assert content([TEXT, reference], "openai", role="tool") == [TEXT, reference]


def test_a_billing_line_does_not_reach_the_prompt():
    assert content("x-anthropic-billing-header: cch=1\nBe kind.", role="system") == "Be kind."
    assert content("x-anthropic-billing-header: cch=1", role="system") == ""
    assert content("x-anthropic-billing-header: cch=1", role="user") != ""


def test_developer_messages_join_the_system_s():
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "q"}]
    assert developer_as_system(messages) is messages
    assert developer_as_system([*messages, {"role": "developer", "content": "b", "tools": None}]) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "q"},
    ]
    assert developer_as_system([{"role": "developer", "content": "b", "tools": None}]) == [
        {"role": "system", "content": "b"}
    ]
