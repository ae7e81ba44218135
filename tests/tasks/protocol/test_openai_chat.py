"""An invalid chat request is refused with the name of the wrong field; a valid one is accepted as sent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.errors import InvalidRequest
from tasks.protocol.base import invalid_request_from
from tasks.protocol.openai_chat import ChatCompletionRequest

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
NAMED = {"type": "function", "function": {"name": "look"}}


def request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "Hi"}], **fields})


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(ValidationError) as caught:
        request(**fields)
    return invalid_request_from(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages.0.content.0"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [5]}, "stop.0"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": "3"}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "maybe", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {}}, "tools": TOOLS}, "tool_choice.function.name"),
        ({"tool_choice": NAMED, "tools": TOOLS, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"thinking_token_budget": "8"}, "thinking_token_budget"),
        ({"logit_bias": {"5": "high"}}, "logit_bias.5"),
        ({"bad_words": [""]}, "bad_words"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)
    assert param in error.message


def test_one_error_says_how_many_other_fields_are_wrong() -> None:
    error = refused(temperature=9, top_p=9, n=0)
    assert error.param == "n"
    assert "2 more wrong fields" in error.message


def test_an_error_does_not_repeat_the_input() -> None:
    secret = "a word that nobody should see"
    assert secret not in refused(messages=[{"role": "user", "content": "x"}], temperature=secret).message


def test_tools_without_a_choice_mean_auto() -> None:
    assert request(tools=TOOLS).tool_choice == "auto"
    assert request(tools=TOOLS, tool_choice=None).tool_choice is None
    assert request().tool_choice == "none"


def test_nulls_and_unknown_fields_are_taken() -> None:
    taken = request(top_logprobs=None, stop=None, n=None, tools=None, stream_options=None, something_new=1)
    assert taken.stops == ()
    assert taken.model_extra == {"something_new": 1}


def test_the_newer_limit_wins() -> None:
    assert request(max_tokens=5).max_output_tokens == 5
    assert request(max_tokens=5, max_completion_tokens=7).max_output_tokens == 7


def test_reasoning_is_read_by_its_older_name() -> None:
    taken = request(messages=[{"role": "assistant", "content": "a", "reasoning_content": "because"}])
    assert taken.messages[0].reasoning == "because"
    assert "reasoning_content" not in taken.messages[0].model_dump(exclude_unset=True)


def test_the_module_needs_no_tokenizer() -> None:
    code = "import sys, tasks.protocol.openai_chat; print([m for m in sys.modules if m in set(sys.argv[1:])])"
    heavy = ["tokenizers", "transformers", "jinja2", "workers"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
