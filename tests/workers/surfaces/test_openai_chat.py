"""Chat requests become conversations, and parse events become the chunks that vLLM's own chat server sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from tasks.errors import InvalidRequest, InvalidState
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Finish,
    Logprobs,
    Reasoning,
    Text,
    TokenLogprobs,
    TopLogprob,
)
from tasks.protocol.openai_chat import ChatChunk, ChatCompletion
from workers.surfaces.base import AnswerFacts, ChoiceDelta
from workers.surfaces.openai_chat import OPENAI_CHAT

FACTS = AnswerFacts(model="m", response_id="chatcmpl-1", created=7, prompt_token_ids=(1, 2, 3))
PARSED = replace(FACTS, tool_parser=True, reasoning_parser=True)
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def body(**fields: Any) -> JsonObject:
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}


CHUNK = TypeAdapter(ChatChunk)
ANSWER = TypeAdapter(ChatCompletion)


def context(facts: AnswerFacts = FACTS, **fields: Any) -> DerenderContext:
    return OPENAI_CHAT.describe(OPENAI_CHAT.read(body(**fields)), facts)


def chunks_of(about: DerenderContext, *deltas: ChoiceDelta) -> list[JsonObject]:
    """All chunks, with the state saved and loaded before each step."""
    state, out = OPENAI_CHAT.start(about), []
    for delta in deltas:
        state, chunks = OPENAI_CHAT.step(about, OPENAI_CHAT.load(OPENAI_CHAT.dump(state), about.n), delta)
        out += chunks
    _, last = OPENAI_CHAT.finish(about, OPENAI_CHAT.load(OPENAI_CHAT.dump(state), about.n))
    for chunk in out + last if about.stream else []:
        # Dumping leaves out keys that vLLM's type does not have.
        assert CHUNK.dump_python(CHUNK.validate_python(chunk, strict=True)) == chunk
    return out + last


def response(about: DerenderContext, *deltas: ChoiceDelta) -> JsonObject:
    answer = OPENAI_CHAT.fold(about, chunks_of(about, *deltas))
    assert ANSWER.dump_python(ANSWER.validate_python(answer, strict=True)) == answer
    return answer


def deltas_of(chunks: list[JsonObject]) -> list[JsonObject]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def test_a_plain_stream() -> None:
    about = context(stream=True)
    chunks = chunks_of(
        about,
        ChoiceDelta(0, (Text("It "),), (5,), 1),
        ChoiceDelta(0, (Text("is."), Finish("stop")), (6, 7), 3),
    )
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    assert chunks == [
        head
        | {
            "choices": [
                {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            ],
            "prompt_token_ids": None,
            "prompt_text": None,
        },
        head
        | {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "It "},
                    "logprobs": None,
                    "finish_reason": None,
                    "token_ids": None,
                }
            ],
            "kv_transfer_params": None,
        },
        head
        | {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "is."},
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                    "token_ids": None,
                    "weight_versions": None,
                }
            ],
            "kv_transfer_params": None,
        },
    ]


def test_a_response_is_its_stream_folded() -> None:
    answer = response(
        context(),
        ChoiceDelta(0, (Text("It "),), (5,), 1),
        ChoiceDelta(0, (Text("is."), Finish("stop", "END")), (6, 7), 3, cached_tokens=2),
    )
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "It is.",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": "END",
                "token_ids": None,
                "routed_experts": None,
                "weight_versions": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 6,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 2, "created_cache_tokens": None, "multimodal_tokens": None},
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def test_calls_stream_their_name_and_then_their_arguments() -> None:
    about = context(PARSED, stream=True, tools=TOOLS)
    chunks = chunks_of(
        about,
        ChoiceDelta(0, (Reasoning("Hm."),), (1,), 1, 1),
        ChoiceDelta(0, (CallStart(0, "look"),), (2,), 2, 1),
        ChoiceDelta(0, (CallArguments(0, '{"a":'), CallArguments(0, "1}"), CallEnd(0)), (3,), 3, 1),
        ChoiceDelta(0, (CallStart(1, "look", "call_9"), CallArguments(1, "{}"), CallEnd(1)), (3,), 3, 1),
        ChoiceDelta(0, (Finish("tool_calls"),), (4,), 4, 1),
    )
    made = chunks[2]["choices"][0]["delta"]["tool_calls"][0]["id"]
    assert made.startswith("chatcmpl-tool-")
    assert len(made) == len("chatcmpl-tool-") + 16
    assert deltas_of(chunks)[1:] == [
        {"reasoning": "Hm."},
        {"tool_calls": [{"index": 0, "id": made, "type": "function", "function": {"name": "look"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_9", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ]
        },
        {},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_answer_made_again_has_the_same_ids() -> None:
    about = context(PARSED, stream=True, tools=TOOLS, n=2)
    deltas = [ChoiceDelta(index, (CallStart(0, "look"), CallEnd(0), Finish("stop"))) for index in (0, 1)]
    first, again = chunks_of(about, *deltas), chunks_of(about, *deltas)
    assert first == again
    ids = [call["id"] for delta in deltas_of(first) for call in delta.get("tool_calls", [])]
    assert len(set(ids)) == 2
    short = deltas_of(chunks_of(replace(about, call_ids="mistral"), *deltas))[-1]["tool_calls"][0]["id"]
    assert len(short) == 9


CALL = (CallStart(0, "look"), CallArguments(0, "{}"), CallEnd(0))


@pytest.mark.parametrize(
    ("fields", "events", "finish", "content"),
    [
        ({"tools": TOOLS}, (*CALL, Finish("tool_calls")), "tool_calls", None),
        ({"tools": TOOLS}, (Text("\n"), *CALL, Finish("tool_calls")), "tool_calls", None),
        ({"tools": TOOLS}, (Text("So:"), *CALL, Finish("tool_calls")), "tool_calls", "So:"),
        ({"tools": TOOLS}, (*CALL, Finish("length")), "length", None),
        ({"tools": TOOLS}, (Text("Hi"), Finish("stop")), "stop", "Hi"),
        ({"tools": TOOLS, "tool_choice": "required"}, (*CALL, Finish("tool_calls")), "tool_calls", ""),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "look"}}},
            (*CALL, Finish("stop")),
            "stop",
            "",
        ),
        ({}, (Reasoning("Hm"), Finish("length")), "length", None),
        ({}, (Finish("abort"),), "abort", None),
    ],
)
def test_finish_reason_and_content(
    fields: JsonObject, events: tuple[Any, ...], finish: str, content: str | None
) -> None:
    choice = response(context(PARSED, **fields), ChoiceDelta(0, events))["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == (finish, content)
    assert len(choice["message"].get("tool_calls", [])) == sum(isinstance(event, CallEnd) for event in events)


def test_hidden_reasoning_takes_ids_and_log_probabilities_with_it() -> None:
    position = TokenLogprobs(TopLogprob(5, "Hm", -0.5, (72, 109)), ())
    deltas = ChoiceDelta(0, (Reasoning("Hm"), Text("Hi"), Logprobs((position,)), Finish("stop")), (5,), 1, 1)
    wants: JsonObject = {"include_reasoning": False, "logprobs": True, "return_token_ids": True}
    answer = response(context(PARSED, **wants), deltas)
    choice = answer["choices"][0]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == (None, "Hi")
    assert (choice["logprobs"], choice["token_ids"]) == (None, None)
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


def test_log_probabilities_are_cut_to_the_wanted_candidates() -> None:
    top = tuple(TopLogprob(i, token, -float(i), tuple(token.encode())) for i, token in enumerate("ab"))
    delta = ChoiceDelta(0, (Text("a"), Logprobs((TokenLogprobs(top[0], top),)), Finish("stop")), (0,), 1)

    def positions(**fields: Any) -> Any:
        return response(context(logprobs=True, **fields), delta)["choices"][0]["logprobs"]["content"]

    assert positions(top_logprobs=1) == [
        {
            "token": "a",
            "logprob": -0.0,
            "bytes": [97],
            "top_logprobs": [{"token": "a", "logprob": -0.0, "bytes": [97]}],
        }
    ]
    assert positions()[0]["top_logprobs"] == []
    assert len(positions(top_logprobs=-1)[0]["top_logprobs"]) == 2
    as_ids = positions(top_logprobs=2, return_tokens_as_token_ids=True)[0]
    assert (as_ids["token"], as_ids["bytes"]) == ("token_id:0", [97])
    assert [c["token"] for c in as_ids["top_logprobs"]] == ["token_id:0", "token_id:1"]


def test_usage_at_the_end_and_all_along() -> None:
    about = context(PARSED, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    chunks = chunks_of(
        about,
        ChoiceDelta(0, (Reasoning("a"),), (1,), 1, 1),
        ChoiceDelta(0, (Text("b"), Finish("length")), (2,), 2, 1, cached_tokens=0),
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 2]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def test_choices_of_one_request_stay_apart() -> None:
    about = context(n=2)
    answer = response(
        about,
        ChoiceDelta(1, (Text("b"),), (1,), 1),
        ChoiceDelta(0, (Text("a"), Finish("stop")), (1,), 1),
        ChoiceDelta(1, (Text("b"), Finish("length")), (1,), 2),
    )
    assert [c["message"]["content"] for c in answer["choices"]] == ["a", "bb"]
    assert answer["usage"]["completion_tokens"] == 3


def test_token_ids_come_back_on_request() -> None:
    answer = response(context(return_token_ids=True), ChoiceDelta(0, (Text("a"), Finish("stop")), (8, 9), 2))
    assert answer["prompt_token_ids"] == [1, 2, 3]
    assert answer["choices"][0]["token_ids"] == [8, 9]


def test_echo_goes_before_the_answer() -> None:
    messages = [{"role": "user", "content": "Say"}, {"role": "assistant", "content": "Well, "}]
    wants: JsonObject = {
        "messages": messages,
        "echo": True,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    answer = response(context(**wants), ChoiceDelta(0, (Text("yes."), Finish("stop")), (1,), 1))
    assert answer["choices"][0]["message"]["content"] == "Well, yes."


def test_a_conversation_carries_just_what_was_sent() -> None:
    conversation = OPENAI_CHAT.converse(
        OPENAI_CHAT.read(
            body(
                temperature=0,
                stop="END",
                logprobs=True,
                max_completion_tokens=9,
                tools=TOOLS,
                chat_template_kwargs={"enable_thinking": False},
                stream=True,
                vllm_xargs={"x": 1},
            )
        )
    )
    assert conversation.messages == ({"role": "user", "content": "Hi"},)
    assert conversation.tools == tuple(TOOLS)
    assert conversation.tool_choice == "auto"
    assert conversation.sampling == {"temperature": 0.0, "stop": ["END"], "logprobs": 0, "extra_args": {"x": 1}}
    assert (conversation.max_output_tokens, conversation.max_output_tokens_param) == (9, "max_completion_tokens")
    assert conversation.template_arguments == {"enable_thinking": False}
    assert conversation.options == {"stream": True}


def test_one_shot_answers_have_whole_calls_only() -> None:
    assert context(PARSED, stream=True).tool_arguments == "stream"
    assert context(PARSED).tool_arguments == "complete"
    assert context(replace(PARSED, tool_arguments="complete"), stream=True).tool_arguments == "complete"


def test_a_wrong_body_or_state_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        OPENAI_CHAT.read({"messages": 5})
    assert caught.value.param == "messages"
    for data in (None, {}, {"choices": [[-1, 0]], "started": True, "cached": None}, {"choices": 5}):
        with pytest.raises(InvalidState):
            OPENAI_CHAT.load(data, 1)
