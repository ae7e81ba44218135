"""Derender routes' bodies to answers; the state that a client carries is bounded, and a manipulated one is harmless."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import InvalidRequest, InvalidState, TokenyardError
from tasks.protocol.base import JsonObject
from tests.workers.derender.test_fold import CALL, END, TOKENIZER, TOOLS, profile, unhurried
from workers.derender.answers import derender_request

PROFILE = profile("hermes", "qwen3")
REQUEST: JsonObject = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
TEXT = f"<think>Hm, é🙂.</think>I look.{CALL}"
IDS = [*TOKENIZER.encode(TEXT), END]
BODIES: dict[str, tuple[str, JsonObject]] = {
    "openai_chat": ("chat_request", REQUEST),
    "openai_completions": ("completion_request", {"prompt": "Hi"}),
    "openai_responses": (
        "responses_request",
        {"input": "Hi", "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}]},
    ),
    "anthropic": (
        "messages_request",
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        },
    ),
}


def answer(surface: str, body: JsonObject) -> JsonObject:
    return derender_request(PROFILE, surface, json.loads(json.dumps(body)), created=1)


def whole(surface: str, *choices: JsonObject, **more: Any) -> JsonObject:
    field, request = BODIES[surface]
    response = {"request_id": "generate-tokens-id-1", "choices": list(choices), **more.pop("response", {})}
    if surface == "openai_completions":
        return answer(surface, {"generate_responses": [response], field: request, **more})
    return answer(surface, {"generate_response": response, "prompt_token_ids": [], field: request, **more})


def stream(surface: str, ids: list[int], index: int = 0) -> list[JsonObject]:
    """All answers, with one token per call, each from a state that has been through JSON."""
    field, request = BODIES[surface]
    answers: list[JsonObject] = []
    for at, token_id in enumerate(ids):
        choice = {"index": index, "token_ids": [token_id], "finish_reason": "stop" if at == len(ids) - 1 else None}
        body: JsonObject = {"stream": True, "generate_chunk": {"request_id": "id-1", "choices": [choice]}}
        body |= {"stream_state": answers[-1]["stream_state"]} if answers else {"prompt_token_ids": [], field: request}
        answers.append(answer(surface, body))
    return answers


@pytest.mark.parametrize("surface", BODIES)
def test_the_state_is_as_large_at_the_end_as_at_the_beginning(surface: str) -> None:
    thought = [*TOKENIZER.encode("<think>" + "Hm é🙂. " * 200 + "</think>"), *IDS]
    sizes = [len(json.dumps(step["stream_state"])) for step in stream(surface, thought)]
    tools = len(json.dumps(BODIES[surface][1].get("tools", [])))
    assert max(sizes) < 2_048 + 2 * tools and max(sizes[-50:]) < max(sizes[:50]) + 300


def test_a_streamed_chat_says_what_the_whole_one_says() -> None:
    message = whole("openai_chat", {"index": 0, "token_ids": IDS, "finish_reason": "stop"})["choices"][0]["message"]
    deltas = [step["chunk"]["choices"][0]["delta"] for step in stream("openai_chat", IDS)]
    assert "".join(delta["content"] or "" for delta in deltas) == message["content"] == "I look."
    assert "".join(delta["reasoning"] or "" for delta in deltas) == message["reasoning"] == "Hm, é🙂."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    (made,) = message["tool_calls"]
    assert calls[0]["id"] == made["id"] and calls[0]["function"]["name"] == "look"
    assert "".join(call["function"].get("arguments", "") for call in calls) == made["function"]["arguments"]
    assert len([call for call in calls if call["function"].get("arguments")]) > 3, "arguments come as they are written"


@pytest.mark.parametrize(
    ("surface", "last"), [("openai_responses", "response.completed"), ("anthropic", "message_stop")]
)
def test_a_protocol_of_events_ends_with_its_last_event(surface: str, last: str) -> None:
    events = [event["type"] for step in stream(surface, IDS) for event in step["chunks"]]
    assert events[-1] == last and events.count(last) == 1


def test_choices_keep_their_numbers_and_have_calls_of_their_own() -> None:
    choices = [{"index": i, "token_ids": IDS, "finish_reason": "stop"} for i in (2, 0, 1)]
    reply = whole("openai_chat", *choices)["choices"]
    assert [choice["index"] for choice in reply] == [2, 0, 1]
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in reply}) == 3
    third = stream("openai_chat", IDS, index=2)[-1]["chunk"]["choices"][0]
    assert third["index"] == 2 and third["finish_reason"] == "tool_calls"


def test_no_output_is_an_empty_answer() -> None:
    for token_ids in cast("list[list[int] | None]", [[], None]):
        choice = {"index": 0, "token_ids": token_ids, "finish_reason": "abort"}
        reply = whole("openai_chat", choice)["choices"][0]
        assert not reply["message"]["content"] and reply["finish_reason"] == "abort"
        assert whole("openai_completions", choice)["choices"][0]["text"] == ""


def test_several_prompts_make_one_completion() -> None:
    parts = [TOKENIZER.encode("é🙂"), TOKENIZER.encode("yes"), TOKENIZER.encode("no")]
    choices = [{"index": i, "token_ids": ids, "finish_reason": "length"} for i, ids in enumerate(parts)]
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}
    responses = [
        {"request_id": "generate-tokens-cmpl-1-0", "choices": choices[:2], "usage": usage, "metrics": {"a": 1}},
        {"request_id": "cmpl-1-1", "choices": [{**choices[2], "index": 0}], "usage": usage, "metrics": {"a": 2}},
    ]
    reply = answer("openai_completions", {"generate_responses": responses, "prompt_tokens": [4, 5]})
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [(0, "é🙂"), (1, "yes"), (2, "no")]
    counts = sum(map(len, parts))
    assert reply["usage"]["prompt_tokens"] == 9 and reply["usage"]["completion_tokens"] == counts
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 4 and reply["metrics"] is None


def test_usage_comes_where_the_engine_reports_it_and_a_finish_without_tokens_flushes() -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 7,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    first = {
        "stream": True,
        "generate_chunk": {"choices": [], "usage": usage},
        "prompt_token_ids": [],
        "prompt_tokens": 5,
    }
    reply = answer("openai_chat", {**first, "chat_request": {**REQUEST, "stop": "XYZ"}})
    assert reply["chunk"]["choices"] == [] and reply["chunk"]["usage"]["total_tokens"] == 12
    assert reply["chunk"]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    held = {"choices": [{"index": 1, "token_ids": TOKENIZER.encode("</think>Hi XY")}]}
    reply = answer("openai_chat", {"stream": True, "generate_chunk": held, "stream_state": reply["stream_state"]})
    (choice,) = reply["chunk"]["choices"]
    assert choice["delta"]["role"] == "assistant" and choice["delta"]["content"] == "Hi " and choice["index"] == 1
    ended = {"choices": [{"index": 1, "token_ids": [], "finish_reason": "stop"}]}
    reply = answer("openai_chat", {"stream": True, "generate_chunk": ended, "stream_state": reply["stream_state"]})
    (choice,) = reply["chunk"]["choices"]
    assert (choice["delta"]["content"], choice["delta"]["role"], choice["finish_reason"]) == ("XY", None, "stop")


def test_stop_strings_end_a_stream() -> None:
    request = {**REQUEST, "stop": ["look"]}
    ids = TOKENIZER.encode("</think>I look at it")
    state, text, ends = None, "", []
    for token_id in ids:
        body: JsonObject = {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": [token_id]}]}}
        body |= {"stream_state": state} if state else {"prompt_token_ids": [], "chat_request": request}
        reply = answer("openai_chat", body)
        state = reply["stream_state"]
        (choice,) = reply["chunk"]["choices"]
        text += choice["delta"]["content"] or ""
        ends += [(choice["finish_reason"], choice["stop_reason"])] if choice["finish_reason"] else []
    assert text == "I " and ends == [("stop", "look")]


def test_log_probabilities_are_cut_resolved_and_placed() -> None:
    ids = TOKENIZER.encode("é🙂")
    top = [{"token_id": i, "logprob": -i / 100, "rank": i} for i in range(5)]
    content = [{"token_id": i, "logprob": -0.5, "rank": 1, "top_logprobs": top} for i in ids]
    choice = {"index": 0, "token_ids": ids, "finish_reason": "length", "logprobs": {"content": content}}
    request = {"prompt": "Hi", "logprobs": 1}
    reply = answer("openai_completions", {"generate_responses": [{"choices": [choice]}], "completion_request": request})
    columns = reply["choices"][0]["logprobs"]
    assert "".join(columns["tokens"]) == "é🙂" and columns["text_offset"] == [0, 0, 1, 1, 1, 1]
    assert all(len(candidates) <= 2 for candidates in columns["top_logprobs"])
    offsets, state = [], None
    for place, token_id in enumerate(ids):
        part = {"index": 0, "token_ids": [token_id], "logprobs": {"content": [content[place]]}}
        body: JsonObject = {"stream": True, "generate_chunk": {"choices": [part]}}
        body |= {"stream_state": state} if state else {"completion_request": request}
        reply = answer("openai_completions", body)
        state = reply["stream_state"]
        offsets += reply["chunk"]["choices"][0]["logprobs"]["text_offset"]
    assert offsets == columns["text_offset"]
    many = {**choice, "logprobs": {"content": [{**content[0], "top_logprobs": top * 5}]}}
    with pytest.raises(InvalidRequest) as refused:
        whole("openai_chat", many)
    assert refused.value.param == "generate_response.choices.0.logprobs"


STATES = {surface: stream(surface, IDS[:40])[-1]["stream_state"] for surface in BODIES}
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([[]]),
    st.floats(),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    items: list[tuple[Any, Any]] = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


@unhurried
@given(st.data(), st.sampled_from(sorted(BODIES)))
def test_a_state_that_was_tampered_with_is_refused_or_read(data: st.DataObject, surface: str) -> None:
    state = json.loads(json.dumps(STATES[surface]))
    *outer, last = data.draw(st.sampled_from([place for place in places(state) if place]))
    parent = state
    for key in outer:
        parent = parent[key]
    parent[last] = data.draw(odd)
    event = {"choices": [{"index": 0, "token_ids": IDS[40:], "finish_reason": "stop"}]}
    try:
        derender_request(PROFILE, surface, {"stream": True, "generate_chunk": event, "stream_state": state}, created=1)
    except TokenyardError as error:
        assert isinstance(error, InvalidState | InvalidRequest)
        assert error.param in ("stream_state", "generate_chunk")
