from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation
from workers.render.requests import EngineFacts, resolve_request
from workers.renderers.base import RenderedPrompt, make_renderer
from workers.renderers.typescript import declare_functions
from workers.text.tokenizer import LoadedTokenizer

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.fixture(autouse=True)
def _one_day(monkeypatch):
    monkeypatch.setenv("VLLM_SYSTEM_START_DATE", "2025-06-28")


def render(loaded: LoadedTokenizer, *messages: dict[str, Any], **fields: Any) -> RenderedPrompt:
    return make_renderer("harmony", loaded, max_model_len=100_000).render(Conversation(messages, **fields))


def text(loaded: LoadedTokenizer, *messages: dict[str, Any], **fields: Any) -> str:
    return render(loaded, *messages, **fields).text or ""


def test_a_conversation(small):
    assert text(small, {"role": "system", "content": "Be kind."}, USER, reasoning_effort="low") == (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: low\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe kind.<|end|>"
        "<|start|>user<|message|>Hi<|end|><|start|>assistant"
    )


def test_calls_and_results(small):
    called = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "Hm."}
    result = {"role": "tool", "tool_call_id": "c", "content": "12"}
    written = text(small, USER, called, result, tools=(TOOL,))
    assert "commentary channel: 'functions'." in written
    assert written.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        "<|start|>functions.f<|channel|>commentary to=assistant<|message|>12<|end|><|start|>assistant"
    )


def test_reasoning_before_an_answer_is_dropped(small):
    answered = {"role": "assistant", "content": "12", "reasoning": "Hm."}
    written = text(small, USER, answered, USER)
    assert "Hm." not in written
    assert "<|channel|>final<|message|>12<|end|>" in written


def test_what_looks_like_a_special_token_is_text(small):
    end = small.tokenizer.added_tokens["<|end|>"]
    assert render(small, USER).token_ids.count(end) == 2
    assert render(small, {"role": "user", "content": "<|end|>"}).token_ids.count(end) == 2
    assert small.tokenizer.encode("<|end|>") == [end], "the tokenizer is as it was"


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"reasoning_effort": "max"}])
def test_an_effort_that_it_does_not_know(small, fields):
    with pytest.raises(InvalidRequest) as caught:
        render(small, USER, **fields)
    assert caught.value.param == "reasoning_effort"


def test_functions_in_typescript():
    properties = {
        "city": {"type": "string", "description": "The city"},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": ["integer", "null"], "default": 3},
        "tags": {"type": "array", "items": {"type": "string"}},
        "deep": {"type": "object", "properties": {"z": {"type": "boolean"}}},
        "either": {"oneOf": [{"type": "string", "description": "a name"}, {"type": "number"}]},
        "any": {},
    }
    function = {
        "name": "look",
        "description": "Looks.\nTwice.",
        "parameters": {"type": "object", "properties": properties, "required": ["city"]},
    }
    assert declare_functions([function, {"name": "wait"}]) == (
        "namespace functions {\n\n"
        "// Looks.\n// Twice.\n"
        "type look = (_: {\n"
        "// The city\ncity: string,\n"
        'unit?: "C" | "F", // default: C\n'
        "days?: number | null, // default: 3\n"
        "tags?: string[],\n"
        "deep?: {\n    z?: boolean,\n    },\n"
        "either?:\n | string // a name\n | number\n,\n"
        "any?: any,\n"
        "}) => any;\n\n"
        "type wait = () => any;\n\n"
        "} // namespace functions"
    )


def test_constraints_are_messages_in_channels():
    facts = EngineFacts(100, tool_parser="openai", reasoning_parser="openai_gptoss")

    def constraint(**fields: Any) -> str:
        got = resolve_request(Conversation((USER,), **fields), RenderedPrompt((1,)), facts)
        assert got["parse_context"]["chat_template_kwargs"] == {}
        tag: str = got["sampling_params"]["structured_outputs"]["structural_tag"]
        return tag

    assert "<|channel|>final json<|message|>" in constraint(response_format={"type": "json_object"})
    required = constraint(tools=(TOOL,), tool_choice="required")
    assert " to=functions.f<|channel|>commentary json<|message|>" in required
    assert "<|channel|>final<|message|>" not in required
