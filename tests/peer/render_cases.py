"""Requests to render, by name: what clients send to chat models, and what they should not."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]

USER = {"role": "user", "content": "Weather in Zürich? 12345 你好 😀"}
SYSTEM = {"role": "system", "content": "You are helpful."}
ANSWER = {"role": "assistant", "content": "Sure."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": ["integer", "null"]},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
BARE = {"type": "function", "function": {"name": "noop"}}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 3, "deep": {"a": [1, null]}}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"t": 12}'}
TWO_CALLS = {
    "role": "assistant",
    "content": "Both.",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rom"}'}},
        {"id": "b", "type": "function", "function": {"name": "noop", "arguments": ""}},
    ],
}
TWO_RESULTS = (
    {"role": "tool", "tool_call_id": "b", "content": "done"},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "r1"}, {"type": "text", "text": "r2"}]},
)
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
LAST = {"role": "assistant", "content": "It is \n"}


def text(role: str, *parts: str) -> Body:
    return {"role": role, "content": [{"type": "text", "text": part} for part in parts]}


def tools(count: int) -> list[Body]:
    return [
        {
            "type": "function",
            "function": {"name": f"tool_{i}", "description": f"Does {i}", "parameters": {"type": "object"}},
        }
        for i in range(count)
    ]


CHATS: dict[str, Body] = {
    "plain": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER, ANSWER, USER]},
    "parts": {"messages": [text("system", "be", "kind"), text("user", "a", "b")]},
    "tools": {"messages": [SYSTEM, USER], "tools": [WEATHER, BARE]},
    "tools not to be called": {"messages": [USER], "tools": [WEATHER], "tool_choice": "none"},
    "tools that must be called": {"messages": [USER], "tools": [WEATHER, BARE], "tool_choice": "required"},
    "a tool that must be called": {
        "messages": [USER],
        "tools": [STRICT, BARE],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
    },
    "strict tools": {"messages": [USER], "tools": [STRICT, BARE], "parallel_tool_calls": False},
    "strict tools and a schema": {"messages": [USER], "tools": [STRICT], "response_format": SCHEMA},
    "history of calls": {"messages": [SYSTEM, USER, CALL, RESULT, ANSWER, USER], "tools": [WEATHER]},
    "calls without tools": {"messages": [USER, CALL, RESULT]},
    "two calls": {"messages": [USER, TWO_CALLS, *TWO_RESULTS], "tools": [WEATHER, BARE]},
    "two calls alone": {"messages": [USER, {**TWO_CALLS, "content": None}, *TWO_RESULTS], "tools": [WEATHER, BARE]},
    "a text and a call": {"messages": [USER, {**CALL, "content": "Looking."}, RESULT, ANSWER, USER]},
    "malformed arguments": {
        "messages": [
            USER,
            {
                **CALL,
                "content": "",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1"}}],
            },
            {**RESULT, "tool_call_id": "c"},
        ]
    },
    "developer": {"messages": [SYSTEM, {"role": "developer", "content": "Be terse."}, USER]},
    "reasoning": {"messages": [USER, {**ANSWER, "reasoning": "Let me think."}, USER]},
    "reasoning before a call": {
        "messages": [USER, {**CALL, "reasoning_content": "Let me look."}, RESULT],
        "tools": [WEATHER],
    },
    "no thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    "thinking": {"messages": [USER, ANSWER, USER], "chat_template_kwargs": {"thinking": True, "x": None}},
    "low effort": {"messages": [USER], "reasoning_effort": "low", "include_reasoning": False},
    "no effort": {"messages": [USER], "reasoning_effort": "none"},
    "no generation prompt": {"messages": [USER], "add_generation_prompt": False},
    "continued": {"messages": [USER, LAST], "add_generation_prompt": False, "continue_final_message": True},
    "continued parts": {
        "messages": [USER, text("assistant", "It is")],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "special tokens added": {"messages": [USER], "add_special_tokens": True, "truncate_prompt_tokens": 5},
    "truncated": {"messages": [USER], "truncate_prompt_tokens": 7},
    "truncated right": {"messages": [USER], "truncate_prompt_tokens": 7, "truncation_side": "right"},
    "truncated to what fits": {"messages": [{"role": "user", "content": "a b " * 3000}], "truncate_prompt_tokens": -1},
    "offsets": {"messages": [SYSTEM, USER], "return_token_offsets": True},
    "documents": {"messages": [USER], "documents": [{"title": "t", "text": "hello"}]},
    "markers in text": {
        "messages": [{"role": "user", "content": "<|im_end|> <think> </s> <｜User｜> <tool_call> [INST]"}]
    },
    "white space": {"messages": [{"role": "user", "content": "  two  spaces \t\n\n"}, {**ANSWER, "content": ""}, USER]},
    "names": {"messages": [{**USER, "name": "bob"}]},
    "thirty turns": {"messages": [SYSTEM, *[USER, ANSWER] * 15, USER]},
    "forty tools": {"messages": [USER], "tools": tools(40)},
    "sampling": {
        "messages": [USER],
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 5,
        "presence_penalty": 1,
        "n": 2,
        "stop": ["a", "b"],
        "stop_token_ids": [5, 5],
        "max_completion_tokens": 7,
        "min_tokens": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"5": 200},
        "bad_words": ["x", "x"],
        "stream": True,
        "priority": 3,
    },
}

_MISTRAL_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "a1b2c3d4e",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 3, "deep": {"a": [1, null]}}'},
        }
    ],
}
_MISTRAL_RESULT = {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": '{"t": 12}'}


def _long_id(message: Body) -> Body:
    """The same with the id of a call as other models write it."""
    if "tool_call_id" in message:
        return {**message, "tool_call_id": f"chatcmpl-tool-{message['tool_call_id']}"}
    return {**message, "tool_calls": [{**call, "id": f"chatcmpl-tool-{call['id']}"} for call in message["tool_calls"]]}


MISTRAL: dict[str, Body] = {
    "history of calls": {"messages": [SYSTEM, USER, _MISTRAL_CALL, _MISTRAL_RESULT, ANSWER, USER], "tools": [WEATHER]},
    "a result": {"messages": [USER, _MISTRAL_CALL, _MISTRAL_RESULT], "tools": [WEATHER, BARE]},
    "a result of parts": {
        "messages": [
            USER,
            _MISTRAL_CALL,
            {**_MISTRAL_RESULT, "content": [{"type": "text", "text": "r1"}, {"type": "text", "text": "r2"}]},
        ],
        "tools": [WEATHER],
    },
    "a result that is text": {
        "messages": [USER, _MISTRAL_CALL, {**_MISTRAL_RESULT, "content": "12 °C 😀"}],
        "tools": [WEATHER],
    },
    "long ids": {"messages": [USER, _long_id(_MISTRAL_CALL), _long_id(_MISTRAL_RESULT)], "tools": [WEATHER]},
    "a call without tools": {"messages": [USER, _MISTRAL_CALL, _MISTRAL_RESULT]},
    "a call with text": {"messages": [USER, {**_MISTRAL_CALL, "content": "Looking."}, _MISTRAL_RESULT, ANSWER, USER]},
    "no arguments": {
        "messages": [
            USER,
            {
                **_MISTRAL_CALL,
                "tool_calls": [
                    {"id": "a1b2c3d4e", "type": "function", "function": {"name": "noop", "arguments": ""}},
                ],
            },
            _MISTRAL_RESULT,
        ],
        "tools": [BARE],
    },
    "markers of its own": {"messages": [{"role": "user", "content": "[INST] [/INST] </s> [TOOL_CALLS] <unk> [THINK]"}]},
    "two users": {"messages": [USER, {"role": "user", "content": "And?"}]},
    "two systems": {"messages": [SYSTEM, SYSTEM, USER]},
    "late system": {"messages": [SYSTEM, USER, ANSWER, SYSTEM, USER]},
    "parts of two kinds": {"messages": [text("user", "a", "b"), text("assistant", "c", "d"), text("user", "e")]},
    "thinking part": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Sure."}],
            },
            USER,
        ]
    },
    "white space around": {"messages": [{"role": "user", "content": " a "}, {**ANSWER, "content": " b "}, USER]},
    "trailing spaces": {"messages": [USER, {**LAST, "content": "It is  "}, USER]},
    "begins an answer after an answer": {"messages": [USER, ANSWER]},
    "continues a question": {"messages": [USER], "add_generation_prompt": False, "continue_final_message": True},
    "ends with an answer": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "only a system": {"messages": [SYSTEM]},
    "begins with an answer": {"messages": [ANSWER, USER]},
    "empty question": {"messages": [{"role": "user", "content": ""}]},
    "template": {"messages": [USER], "chat_template": "{{ messages }}"},
    "template arguments": {"messages": [USER], "chat_template_kwargs": {"thinking": True}},
    "high effort": {"messages": [USER], "reasoning_effort": "high"},
    "unknown effort": {"messages": [USER], "reasoning_effort": "extreme"},
    "tool with a bad schema": {
        "messages": [USER],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}],
    },
    "tool with a bad name": {"messages": [USER], "tools": [{"type": "function", "function": {"name": "a b?"}}]},
    "unknown role": {"messages": [{"role": "robot", "content": "Hi"}]},
    "refusal part": {
        "messages": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER]
    },
}
"""Requests to models whose prompts mistral-common writes; ids of calls have nine characters there."""

SAMPLING: dict[str, Body] = {
    "greedy": {"temperature": 0, "top_p": 0.5, "top_k": 5},
    "cold": {"temperature": 0.001},
    "seed of minus one": {"seed": -1},
    "one stop": {"stop": "x", "include_stop_str_in_output": True},
    "max tokens": {"max_tokens": 10},
    "echo": {"echo": True, "logprobs": True, "top_logprobs": 2},
    "prompt logprobs": {"prompt_logprobs": 2},
    "logprobs of ids": {"logprobs": True, "logprob_token_ids": [1, 2]},
    "ignore eos": {"ignore_eos": True, "skip_special_tokens": False},
    "spaces": {"spaces_between_special_tokens": False},
    "allowed ids": {"allowed_token_ids": [1, 2, 3]},
    "thinking budget": {"thinking_token_budget": 100},
    "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
    "json object": {"response_format": {"type": "json_object"}},
    "json schema": {"response_format": SCHEMA},
    "text": {"response_format": {"type": "text"}},
    "regex": {"structured_outputs": {"regex": "a+"}},
    "choice": {"structured_outputs": {"choice": ["a", "b"]}},
    "tag": {"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}},
    "choice or tool": {"structured_outputs": {"choice": ["a", "b"]}, "tools": [STRICT]},
    "regex or tool": {"structured_outputs": {"regex": "a+"}, "tools": [STRICT]},
    "json or tool": {"response_format": {"type": "json_object"}, "tools": [STRICT]},
    "schema but must call": {"response_format": SCHEMA, "tools": [WEATHER], "tool_choice": "required"},
    "one loose call": {"tools": [WEATHER], "parallel_tool_calls": False},
    "options": {"return_token_ids": True, "cache_salt": "abc", "kv_transfer_params": {"a": 1}, "vllm_xargs": {"z": 2}},
    "repetition": {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 3}},
    "watermark": {"watermarking": True, "user": "u"},
}

BAD: dict[str, Body] = {
    "no messages": {"messages": []},
    "messages of another type": {"messages": "hi"},
    "no role": {"messages": [{"content": "hi"}]},
    "part without type": {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
    "unknown part": {"messages": [{"role": "user", "content": [{"type": "hologram", "hologram": 1}]}]},
    "image": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
    },
    "custom call": {
        "messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "custom"}]}]
    },
    "temperature": {"temperature": -1},
    "temperature too high": {"temperature": 2.1},
    "temperature of another type": {"temperature": "hot"},
    "top_p": {"top_p": 0},
    "top_p too high": {"top_p": 1.5},
    "top_k": {"top_k": -2},
    "min_p": {"min_p": 2},
    "presence penalty": {"presence_penalty": 3},
    "frequency penalty": {"frequency_penalty": -3},
    "repetition penalty": {"repetition_penalty": 0},
    "n": {"n": 0},
    "n of another type": {"n": "two"},
    "greedy choices": {"temperature": 0, "n": 2},
    "max tokens": {"max_tokens": 0},
    "max tokens beyond the model": {"max_tokens": 4000},
    "max completion tokens beyond the model": {"max_completion_tokens": 4000},
    "min tokens": {"min_tokens": -1},
    "min tokens beyond max": {"min_tokens": 9, "max_tokens": 5},
    "top_logprobs without logprobs": {"top_logprobs": 2},
    "top_logprobs": {"logprobs": True, "top_logprobs": -2},
    "top_logprobs of another type": {"logprobs": True, "top_logprobs": "two"},
    "prompt_logprobs": {"prompt_logprobs": -2},
    "prompt_logprobs streamed": {"prompt_logprobs": 1, "stream": True},
    "logprob ids without logprobs": {"logprob_token_ids": [1]},
    "empty stop": {"stop": [""]},
    "empty bad word": {"bad_words": [""]},
    "bias": {"logit_bias": {"a": 1}},
    "stop ids": {"stop_token_ids": ["a"]},
    "stream options without stream": {"stream_options": {"include_usage": True}},
    "seed": {"seed": 2**64},
    "schema missing": {"response_format": {"type": "json_schema"}},
    "unknown format": {"response_format": {"type": "yaml"}},
    "two constraints": {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    "format and constraint": {"structured_outputs": {"regex": "a+"}, "response_format": SCHEMA},
    "no tools": {"tools": []},
    "choice without tools": {"tool_choice": "required"},
    "unknown choice": {"tools": [WEATHER], "tool_choice": "maybe"},
    "unknown tool": {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
    "tool without name": {"tools": [{"type": "function", "function": {"description": "x"}}]},
    "template": {"chat_template": "{{ messages }}"},
    "template among the arguments": {"chat_template_kwargs": {"chat_template": "{{ messages }}"}},
    "continue and begin": {"messages": [USER, ANSWER], "continue_final_message": True},
    "continue nothing": {
        "messages": [USER, {**ANSWER, "content": None, "tool_calls": CALL["tool_calls"]}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "truncation": {"truncate_prompt_tokens": -2},
    "truncation beyond the model": {"truncate_prompt_tokens": 4000},
    "truncation to nothing": {"truncate_prompt_tokens": 0},
    "truncation side": {"truncation_side": "top"},
    "long prompt": {"messages": [{"role": "user", "content": "a b " * 3000}]},
    "endless prompt": {"messages": [{"role": "user", "content": "é" * 600_000}]},
    "effort": {"reasoning_effort": "extreme"},
    "salt": {"cache_salt": ""},
    "beam search": {"use_beam_search": True},
    "documents": {"documents": "none"},
    "stream interval": {"stream_interval": 0},
    "thinking budget": {"thinking_token_budget": -5},
}

COMPLETIONS: dict[str, Body] = {
    "text": {"prompt": "Once upon a time in Zürich 你好"},
    "texts": {"prompt": ["a", "b c"], "max_tokens": 5},
    "ids": {"prompt": [5, 6, 7]},
    "lists of ids": {"prompt": [[5, 6], [7]]},
    "no special tokens": {"prompt": "a b", "add_special_tokens": False},
    "offsets": {"prompt": "Zürich is far", "return_token_offsets": True},
    "truncated": {"prompt": "one two three four five", "truncate_prompt_tokens": 3},
    "truncated left": {"prompt": "one two three four five", "truncate_prompt_tokens": 3, "truncation_side": "left"},
    "truncated ids": {"prompt": [5, 6, 7, 8], "truncate_prompt_tokens": 2},
    "truncated to what fits": {"prompt": "a b " * 3000, "truncate_prompt_tokens": -1},
    "echo": {"prompt": "a", "echo": True, "logprobs": 2},
    "echo alone": {"prompt": "a", "echo": True, "max_tokens": 0},
    "no limit": {"prompt": "a", "max_tokens": None},
    "sampling": {"prompt": "a", "temperature": 0.3, "top_p": 0.5, "n": 2, "stop": ["x"], "logprobs": 0, "seed": 1},
    "schema": {"prompt": "a", "response_format": SCHEMA},
    "streamed": {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}, "cache_salt": "s"},
    "no prompt": {},
    "empty prompt": {"prompt": ""},
    "mixed": {"prompt": ["a", 1]},
    "suffix": {"prompt": "a", "suffix": "b"},
    "too long": {"prompt": [5] * 3000},
    "too much": {"prompt": "a", "max_tokens": 4000},
    "beam search": {"prompt": "a", "use_beam_search": True},
}

MESSAGES: dict[str, Body] = {
    "plain": {"messages": [{"role": "user", "content": "Weather in Zürich?"}]},
    "system": {"system": "Be kind.", "messages": [{"role": "user", "content": "Hi"}]},
    "system blocks": {
        "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be kind."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    },
    "late system": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho"},
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "And?"},
        ]
    },
    "tools": {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"properties": {"a": {"type": "string"}}}}],
    },
    "tool use": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "Zürich"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "12"}]},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    },
    "one tool": {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f"},
    },
    "no thinking": {"messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}},
    "thinking": {
        "messages": [{"role": "user", "content": "Hi"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 1500,
    },
    "budget beyond the limit": {
        "messages": [{"role": "user", "content": "Hi"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "effort and schema": {
        "messages": [{"role": "user", "content": "Hi"}],
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
    "sampling": {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "top_k": 5,
        "stop_sequences": ["x"],
        "stream": True,
    },
    "unknown role": {"messages": [{"role": "robot", "content": "Hi"}]},
    "small budget": {
        "messages": [{"role": "user", "content": "Hi"}],
        "thinking": {"type": "enabled", "budget_tokens": 5},
    },
    "choice without a name": {"messages": [{"role": "user", "content": "Hi"}], "tool_choice": {"type": "tool"}},
}

RESPONSES: dict[str, Body] = {
    "text": {"input": "Weather in Zürich?"},
    "instructions": {"input": "Hi", "instructions": "Be kind.", "max_output_tokens": 9},
    "items": {
        "input": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "assistant", "content": "Ho"},
            {"type": "message", "role": "user", "content": "And?"},
        ]
    },
    "calls": {
        "input": [
            {"role": "user", "content": "Hi"},
            {
                "type": "reasoning",
                "id": "r",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Looking."}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "12"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
    },
    "must call": {
        "input": "Hi",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    "schema": {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}}},
    "effort": {"input": "Hi", "reasoning": {"effort": "low"}},
    "continued": {
        "input": [
            {"role": "user", "content": "Hi"},
            {
                "type": "message",
                "role": "assistant",
                "status": "incomplete",
                "content": [{"type": "output_text", "text": "It is"}],
            },
        ]
    },
    "truncated": {"input": "a b " * 3000, "truncation": "auto"},
    "sampling": {
        "input": "Hi",
        "temperature": 0.5,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        "stream": True,
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "earlier response": {"input": "Hi", "previous_response_id": "resp_1"},
    "prompt": {"input": "Hi", "prompt": {"id": "p"}},
    "too long": {"input": "a b " * 3000},
    "no input": {},
}

_LONG = {"role": "user", "content": "one two Zürich 12 你好\n" * 2700}
LONG: dict[str, Body] = {
    "thirty thousand tokens": {"messages": [SYSTEM, _LONG]},
    "thirty thousand tokens and forty tools": {"messages": [_LONG], "tools": tools(40)},
    "more output than there is room": {"messages": [_LONG], "max_tokens": 32_000},
    "truncated": {"messages": [_LONG], "truncate_prompt_tokens": 20_000},
    "a long history": {"messages": [SYSTEM, *[{**USER, "content": USER["content"] * 40}, ANSWER] * 30, USER]},
    "too long": {"messages": [_LONG, ANSWER, _LONG]},
}
"""For a model of 32,768 tokens."""

_TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}{{ mood }}"
TRUSTED: dict[str, Body] = {
    "defaults": {"messages": [USER]},
    "defaults and tools": {"messages": [USER], "tools": [WEATHER]},
    "a default overruled": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": True}},
    "a default overruled by the effort": {"messages": [USER], "reasoning_effort": "high"},
    "a template": {"messages": [SYSTEM, USER], "chat_template": _TEMPLATE},
    "a template and its arguments": {
        "messages": [USER],
        "chat_template": _TEMPLATE,
        "chat_template_kwargs": {"mood": "gay", "enable_thinking": True},
    },
    "a template of parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "chat_template": "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}",
    },
    "a template among the arguments": {"messages": [USER], "chat_template_kwargs": {"chat_template": _TEMPLATE}},
    "a template that fails": {"messages": [USER], "chat_template": "{{ raise_exception('no') }}"},
    "a template that is none": {"messages": [USER], "chat_template": "{% for %}"},
}
"""For a server that takes templates from requests, and whose default is not to think."""

TUNED: dict[str, Body] = {
    "defaults": {"messages": [USER]},
    "own temperature": {"messages": [USER], "temperature": 0.1, "top_k": 0},
    "greedy": {"messages": [USER], "temperature": 0},
    "more tokens": {"messages": [USER], "max_tokens": 100},
    "fewer tokens": {"messages": [USER], "max_completion_tokens": 10},
    "own penalty": {"messages": [USER], "repetition_penalty": 1.0},
}
"""For a model whose generation config sets temperature, top_k, repetition penalty and most tokens."""
