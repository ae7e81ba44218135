"""Parse events become stream events of OpenAI's Responses API, which the official client puts together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tasks.errors import InvalidState
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
from tests.workers.derender.test_fold import HERMES, PROMPT, TOKENIZER, cut
from workers.derender import fold
from workers.surfaces.base import AnswerFacts, ChoiceDelta
from workers.surfaces.openai_responses import OPENAI_RESPONSES
from workers.surfaces.openai_responses_answers import Completer

FACTS = AnswerFacts(model="m", response_id="resp_1", created=7, prompt_token_ids=(1, 2, 3))
PARSED = replace(FACTS, tool_parser=True, reasoning_parser=True)
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}]
INCLUDE: JsonObject = {"include": ["message.output_text.logprobs"]}

EVENTS = {
    get_args(event.model_fields["type"].annotation)[0]: TypeAdapter(event)
    for event in get_args(get_args(ResponseStreamEvent)[0])
}
"""The official client's type for each stream event."""
RESPONSE = TypeAdapter(Response)


def context(facts: AnswerFacts = FACTS, **fields: Any) -> DerenderContext:
    return OPENAI_RESPONSES.describe(OPENAI_RESPONSES.read({"model": "m", "input": "Hi", **fields}), facts)


def chunks_of(about: DerenderContext, *deltas: ChoiceDelta) -> list[JsonObject]:
    """All stream events as they leave the surface, with the state saved and loaded before each step."""
    state, out = OPENAI_RESPONSES.start(about), []

    def through_json(state: Any) -> Any:
        return OPENAI_RESPONSES.load(json.loads(json.dumps(OPENAI_RESPONSES.dump(state))), 1)

    for delta in deltas:
        state, chunks = OPENAI_RESPONSES.step(about, through_json(state), delta)
        out += chunks
    return out + OPENAI_RESPONSES.finish(about, through_json(state))[1]


def streamed(about: DerenderContext, *deltas: ChoiceDelta) -> list[JsonObject]:
    """All stream events as the client gets them; the official client accepts each, with and without texts."""
    about = replace(about, stream=True)
    bare = chunks_of(about, *deltas)
    completer = Completer()
    complete = [completer.add(chunk) for chunk in bare]
    for chunk in bare + complete:
        EVENTS[chunk["type"]].validate_python(chunk, strict=True)
    assert [chunk["sequence_number"] for chunk in complete] == list(range(len(complete)))
    return complete


def response(about: DerenderContext, *deltas: ChoiceDelta) -> JsonObject:
    about = replace(about, stream=False)
    answer = OPENAI_RESPONSES.fold(about, chunks_of(about, *deltas))
    RESPONSE.validate_python(answer)
    return answer


def types(chunks: Iterable[JsonObject]) -> list[str]:
    return [chunk["type"].removeprefix("response.") for chunk in chunks]


def accumulated(chunks: list[JsonObject]) -> Response:
    """The response that the official client puts together from a stream."""
    body = "".join(f"event: {chunk['type']}\ndata: {json.dumps(chunk)}\n\n" for chunk in chunks)
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers=headers, content=body))
    with (
        httpx2.Client(transport=transport) as http,
        OpenAI(api_key="-", base_url="http://yard/v1", http_client=http) as client,
        client.responses.stream(model="m", input="Hi") as stream,
    ):
        return stream.get_final_response()


CALL = (CallStart(0, "look"), CallArguments(0, '{"at":'), CallArguments(0, " 1}"), CallEnd(0))
TURN = (
    ChoiceDelta(0, (Reasoning("H"),), (1,), 1, 1),
    ChoiceDelta(0, (Reasoning("m."), Text("It "), Text("is")), (2, 3), 3, 2),
    ChoiceDelta(0, CALL, (4,), 4, 2, cached_tokens=2),
    ChoiceDelta(0, (CallStart(1, "look", "call_9"), CallArguments(1, "{}"), CallEnd(1)), (5,), 5, 2),
    ChoiceDelta(0, (Text("so."), Finish("tool_calls")), (6,), 6, 2),
)


def test_a_turn_is_sent_item_by_item() -> None:
    chunks = streamed(context(PARSED, tools=TOOLS), *TURN)
    assert types(chunks) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    done = [chunk for chunk in chunks if chunk["type"] == "response.output_item.done"]
    assert [chunk["output_index"] for chunk in done] == [0, 1, 2, 3, 4]
    assert [chunk["item"] for chunk in done] == chunks[-1]["response"]["output"]
    assert [chunk.get("text", chunk.get("arguments")) for chunk in chunks if "item_id" in chunk][3:4] == ["Hm."]


def test_a_response_is_its_stream_folded() -> None:
    answer = response(context(PARSED, tools=TOOLS, temperature=0.5), *TURN)
    identity: dict[str, list[str]] = {"rs": [], "msg": [], "fc": []}
    for item in answer["output"]:
        identity[item["id"].split("_")[0]].append(item.pop("id"))
    assert len({*identity["rs"], *identity["msg"], *identity["fc"]}) == 5
    made = answer["output"][2].pop("call_id")
    assert made.startswith("chatcmpl-tool-")
    part: JsonObject = {"type": "output_text", "annotations": [], "logprobs": None}
    message = {"type": "message", "role": "assistant", "status": "completed"}
    called = {"type": "function_call", "name": "look", "status": "completed"}
    assert answer["output"] == [
        {
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "encrypted_content": None,
        },
        {**message, "content": [{**part, "text": "It is"}]},
        {**called, "arguments": '{"at": 1}'},
        {**called, "call_id": "call_9", "arguments": "{}"},
        {**message, "content": [{**part, "text": "so."}]},
    ]
    assert answer["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {
            "cached_tokens": 2,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": 6,
        "output_tokens_details": {
            "reasoning_tokens": 2,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": 9,
    }
    head = {name: answer[name] for name in ("id", "object", "created_at", "model", "status", "tools", "temperature")}
    assert head == {
        "id": "resp_1",
        "object": "response",
        "created_at": 7,
        "model": "m",
        "status": "completed",
        "tools": TOOLS,
        "temperature": 0.5,
    }


def test_the_official_client_puts_the_stream_together() -> None:
    about = context(PARSED, tools=TOOLS)
    final = accumulated(streamed(about, *TURN))
    assert final.output_text == "It isso."
    answer = RESPONSE.validate_python(response(about, *TURN))
    for ours, theirs in zip(answer.output, final.output, strict=True):
        assert (ours.type, ours.id) == (theirs.type, theirs.id)
        if ours.type == "function_call" and theirs.type == "function_call":
            assert (ours.call_id, ours.arguments) == (theirs.call_id, theirs.arguments)
    assert final.usage == answer.usage


def test_an_answer_made_again_is_the_same() -> None:
    about = context(PARSED, tools=TOOLS)
    assert streamed(about, *TURN) == streamed(about, *TURN)
    other = streamed(replace(about, response_id="resp_2"), *TURN)
    assert {c.get("item_id") for c in other}.isdisjoint(
        {c["item_id"] for c in streamed(about, *TURN) if "item_id" in c}
    )
    short = response(replace(about, call_ids="mistral"), *TURN)["output"][2]["call_id"]
    assert len(short) == 9


def test_the_state_s_events_leave_out_what_they_would_repeat() -> None:
    about = context(PARSED, stream=True, tools=TOOLS)
    chunks = chunks_of(about, *TURN)
    assert {chunk.get("text", "") for chunk in chunks} == {""}
    assert {chunk.get("arguments", "") for chunk in chunks} == {""}
    assert chunks[-1]["response"]["output"] == []


@pytest.mark.parametrize(
    ("events", "last", "statuses", "reason"),
    [
        ((Text("a"), Finish("stop")), "completed", ["completed"], None),
        ((Text("a"), Finish("length")), "incomplete", ["incomplete"], "max_output_tokens"),
        ((Text("a"), Finish("abort")), "failed", ["incomplete"], None),
        ((Reasoning("a"), Finish("length")), "incomplete", ["incomplete"], "max_output_tokens"),
        ((Text("a"), *CALL[:2], Finish("length")), "incomplete", ["completed", "incomplete"], "max_output_tokens"),
        ((*CALL, Finish("length")), "incomplete", ["completed"], "max_output_tokens"),
        ((*CALL[:2], Text("a"), Finish("stop")), "completed", ["incomplete", "completed"], None),
        ((*CALL[:2], Finish("stop")), "completed", ["incomplete"], None),
        ((Finish("stop"),), "completed", [], None),
        ((Text(""), Reasoning(""), Finish("length")), "incomplete", [], "max_output_tokens"),
    ],
)
def test_how_an_answer_ends(events: tuple[Any, ...], last: str, statuses: list[str], reason: str | None) -> None:
    about = context(PARSED, tools=TOOLS)
    chunks = streamed(about, ChoiceDelta(0, events, (1,), 1))
    answer = chunks[-1]["response"]
    assert types(chunks)[-1] == answer["status"] == last
    assert [item["status"] for item in answer["output"]] == statuses
    assert answer["incomplete_details"] == (reason and {"reason": reason})
    assert (answer["error"] is not None) == (last == "failed")
    assert response(about, ChoiceDelta(0, events, (1,), 1)) == answer


def test_a_stream_without_a_token_is_whole() -> None:
    assert types(streamed(context())) == ["created", "in_progress", "failed"]


def test_hidden_reasoning_takes_log_probabilities_with_it() -> None:
    about = context(PARSED, include_reasoning=False, **INCLUDE)
    deltas = (
        ChoiceDelta(0, (Reasoning("Hm"), Logprobs((POSITION,))), (5,), 1, 1),
        ChoiceDelta(0, (Text("Hi"), Logprobs((POSITION,)), Finish("stop")), (5,), 2, 1),
    )
    assert "Hm" not in json.dumps([streamed(about, *deltas), response(about, *deltas)])
    (message,) = response(about, *deltas)["output"]
    assert message["content"][0] == {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": None}
    assert response(about, *deltas)["usage"]["output_tokens_details"]["reasoning_tokens"] == 1


POSITION = TokenLogprobs(
    TopLogprob(5, "a", -0.5, (97,)), (TopLogprob(5, "a", -0.5, (97,)), TopLogprob(6, "é", -1.5, (195, 169)))
)
SHOWN = {"token": "a", "bytes": [97], "logprob": -0.5}
OTHER = {"token": "é", "bytes": [195, 169], "logprob": -1.5}


def test_log_probabilities_come_with_the_text() -> None:
    deltas = (
        ChoiceDelta(0, (Text("a"), Logprobs((POSITION,))), (5,), 1),
        ChoiceDelta(0, (Logprobs((POSITION,)),), (5,), 2),
        ChoiceDelta(0, (Text("a"), Logprobs((POSITION,)), Text("b")), (5,), 3),
        ChoiceDelta(0, (Logprobs((POSITION,)), Finish("stop")), (5,), 4),
    )
    about = context(top_logprobs=1, **INCLUDE)
    one = {**SHOWN, "top_logprobs": [SHOWN]}
    chunks = streamed(about, *deltas)
    sent = [(c["delta"], c["logprobs"]) for c in chunks if c["type"] == "response.output_text.delta"]
    assert sent == [("a", [one]), ("", [one]), ("ab", [one]), ("", [one])]
    for answer in (chunks[-1]["response"], response(about, *deltas)):
        assert answer["output"][0]["content"][0]["logprobs"] == [one] * 4
        assert answer["top_logprobs"] == 1
    every = response(context(top_logprobs=-1, **INCLUDE), *deltas)["output"][0]["content"][0]["logprobs"][0]
    assert every["top_logprobs"] == [SHOWN, OTHER]
    assert response(context(top_logprobs=2), *deltas)["output"][0]["content"][0]["logprobs"] is None


def test_an_answer_at_once_has_the_log_probabilities_of_all_tokens() -> None:
    about = context(PARSED, **INCLUDE)
    one = {**SHOWN, "top_logprobs": []}
    split = (
        ChoiceDelta(0, (Reasoning("Hm"), Logprobs((POSITION,))), (5,), 1),
        ChoiceDelta(0, (Text("a"), Logprobs((POSITION,)), Finish("stop")), (5,), 2),
    )
    (whole,) = (
        ChoiceDelta(0, (Reasoning("Hm"), Text("a"), Logprobs((POSITION, POSITION)), Finish("stop")), (5, 5), 2),
    )
    for deltas in (split, (whole,)):
        assert response(about, *deltas)["output"][1]["content"][0]["logprobs"] == [one, one]


def test_the_response_repeats_its_request() -> None:
    sent = {
        "instructions": "Be kind.",
        "metadata": {"a": "b"},
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "look"},
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
        "user": "u",
        "truncation": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "parallel_tool_calls": False,
    }
    answer = response(context(PARSED, **sent, prompt_cache_retention="in-memory", output=["mine"]), *TURN[:1])
    assert {name: answer[name] for name in sent} == sent
    assert answer["prompt_cache_retention"] == "in_memory"
    assert answer["output"] != ["mine"]
    plain = response(context(), *TURN[:1])
    assert (plain["tool_choice"], plain["temperature"], plain["max_output_tokens"]) == ("none", 1.0, None)
    settled = replace(FACTS, sampling={"temperature": 0.6, "top_p": 0.9, "max_tokens": 40, "seed": 1})
    answer = response(context(settled), *TURN[:1])
    assert (answer["temperature"], answer["top_p"], answer["max_output_tokens"]) == (0.6, 0.9, 40)


def test_what_only_the_engine_knows_reaches_the_response() -> None:
    delta = ChoiceDelta(0, (Text("a"), Finish("stop")), extra={"kv_transfer_params": {"k": 1}, "prompt_logprobs": [1]})
    answer = response(context(kv_transfer_params={"mine": 1}), delta)
    assert answer["kv_transfer_params"] == {"k": 1}
    assert "prompt_logprobs" not in answer
    assert response(context(kv_transfer_params={"mine": 1}), TURN[0])["kv_transfer_params"] is None


def test_a_stream_that_breaks_off_ends_as_failed() -> None:
    about = replace(context(PARSED, tools=TOOLS), stream=True)
    completer = Completer()
    sent = [completer.add(chunk) for chunk in chunks_of(about, *TURN)[:16]]
    failed = completer.fail("The engine died.")
    EVENTS["response.failed"].validate_python(failed, strict=True)
    assert failed["sequence_number"] == 16
    answer = failed["response"]
    assert (answer["status"], answer["error"]["message"]) == ("failed", "The engine died.")
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert types(sent)[-1] == "output_item.added"


WRITTEN = TOKENIZER.encode(
    '<think>Hm 🙂</think>It is é. <tool_call>\n{"name": "look", "arguments": {"at": "é🙂"}}\n</tool_call> So.'
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=12))
def test_the_same_tokens_make_the_same_response_however_they_are_cut(sizes: list[int]) -> None:
    request = OPENAI_RESPONSES.read({"input": "Hi", "tools": TOOLS})
    about = fold.describe(HERMES, "openai_responses", request, response_id="resp_1", created=7, prompt_token_ids=PROMPT)
    answer = fold.respond(HERMES, about, PROMPT, cut(WRITTEN, sizes))
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call", "message"]
    assert answer == fold.respond(HERMES, about, PROMPT, cut(WRITTEN, []))
    about = replace(about, stream=True, tool_arguments="stream")
    state, completer = fold.start(HERMES, about, PROMPT), Completer()
    for chunk in cut(WRITTEN, sizes):
        state = fold.load(HERMES, about, json.loads(json.dumps(fold.dump(about, state))))
        state, events, _ = fold.step(HERMES, about, state, chunk)
        for event in events:
            completer.add(event)
    (last,) = [completer.add(event) for event in fold.finish(HERMES, about, state).chunks]
    assert last["response"] == answer


def test_one_shot_answers_have_whole_calls_only() -> None:
    assert context(PARSED, stream=True).tool_arguments == "stream"
    assert context(PARSED).tool_arguments == "complete"
    assert context(replace(PARSED, tool_arguments="complete"), stream=True).tool_arguments == "complete"


@pytest.mark.parametrize(
    "change",
    [
        {"sent": [1]},
        {"sent": [1, -1]},
        {"sent": [True, 1]},
        {"open": ["essay", 0, "", ""]},
        {"open": ["message"]},
        {"open": ["function_call", 0, 5, ""]},
        {"open": ["function_call", -1, "f", "c"]},
        {"open": ["message", 0, "", ""], "sent": [2, 0]},
        {"counts": None},
        {"cached": "2"},
        {"reason": 5},
        {"engine": None},
        {"engine": {"output": []}},
    ],
)
def test_a_state_that_does_not_add_up_is_refused(change: JsonObject) -> None:
    about = context(stream=True)
    state, _ = OPENAI_RESPONSES.step(about, OPENAI_RESPONSES.start(about), TURN[0])
    data = OPENAI_RESPONSES.dump(state)
    assert OPENAI_RESPONSES.load(data, 1) == state
    with pytest.raises(InvalidState):
        OPENAI_RESPONSES.load({**data, **change}, 1)
    with pytest.raises(InvalidState):
        OPENAI_RESPONSES.load(data, 2)
