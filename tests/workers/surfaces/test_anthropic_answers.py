"""Parse events become stream events of Anthropic's Messages API, which the official client puts together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tasks.errors import InvalidState
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import CallArguments, CallEnd, CallStart, Finish, Reasoning, Text
from tests.contract.test_surface import answered
from tests.workers.derender.test_fold import CALL as CALL_TEXT
from tests.workers.derender.test_fold import END, HERMES, PROMPT, TOKENIZER, cut, unhurried
from tests.workers.derender.test_fold import streamed as streamed_tokens
from workers.derender import fold
from workers.surfaces.anthropic import ANTHROPIC, converse, quieten
from workers.surfaces.base import AnswerFacts, ChoiceDelta

FACTS = AnswerFacts(model="m", response_id="msg_1", created=7, prompt_token_ids=(1, 2, 3))
PARSED = replace(FACTS, tool_parser=True, reasoning_parser=True)
BODY: JsonObject = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
MESSAGE = TypeAdapter(Message)


def context(facts: AnswerFacts = FACTS, **fields: Any) -> DerenderContext:
    return ANTHROPIC.describe(ANTHROPIC.read(BODY | fields), facts)


def chunks_of(about: DerenderContext, *deltas: ChoiceDelta) -> list[JsonObject]:
    """All stream events, with the state saved and loaded between them; the official client accepts each."""
    chunks = answered(ANTHROPIC, about, list(deltas), through_json=True)
    for chunk in chunks:
        EVENT.validate_python(chunk, strict=True)
    return chunks


def message(about: DerenderContext, *deltas: ChoiceDelta) -> JsonObject:
    answer = ANTHROPIC.fold(about, chunks_of(about, *deltas))
    MESSAGE.validate_python(answer, strict=True)
    return answer


def accumulated(chunks: list[JsonObject]) -> JsonObject:
    """The message that the official client puts together from a stream, without null fields."""
    body = "".join(f"event: {chunk['type']}\ndata: {json.dumps(chunk)}\n\n" for chunk in chunks)
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers=headers, content=body))
    with (
        httpx2.Client(transport=transport) as http,
        Anthropic(api_key="-", base_url="http://yard", http_client=http) as client,
        client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]) as stream,
    ):
        return stream.get_final_message().to_dict(exclude_unset=False, exclude_none=True)


def without_nulls(answer: JsonObject) -> JsonObject:
    """The message without null fields."""
    return {name: value for name, value in answer.items() if value is not None}


CALL = (CallStart(0, "look"), CallArguments(0, '{"at":'), CallArguments(0, " 1}"), CallEnd(0))
TURN = (
    ChoiceDelta(0, (Reasoning("H"),), (1,), 1, 1),
    ChoiceDelta(0, (Reasoning("m."), Text("It "), Text("is")), (2, 3), 3, 2),
    ChoiceDelta(0, CALL, (4,), 4, 2, cached_tokens=2),
    ChoiceDelta(0, (CallStart(1, "look", "call_9"), CallArguments(1, "{}"), CallEnd(1)), (5,), 5, 2),
    ChoiceDelta(0, (Text("so."), Finish("tool_calls")), (6,), 6, 2),
)


def test_a_turn_is_sent_block_by_block() -> None:
    chunks = chunks_of(context(PARSED, stream=True, tools=TOOLS), *TURN)
    signature, made = chunks[4]["delta"]["signature"], chunks[9]["content_block"]["id"]
    assert len(signature) == 32
    assert made.startswith("chatcmpl-tool-")

    def start(index: int, **block: Any) -> JsonObject:
        return {"type": "content_block_start", "content_block": block, "index": index}

    def delta(index: int, kind: str, **what: str) -> JsonObject:
        return {"type": "content_block_delta", "delta": {"type": f"{kind}_delta", **what}, "index": index}

    def stop(index: int) -> JsonObject:
        return {"type": "content_block_stop", "index": index}

    head = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m"}
    ends = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 0}}
    assert chunks == [
        {"type": "message_start", "message": head | ends},
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking", thinking="H"),
        delta(0, "thinking", thinking="m."),
        delta(0, "signature", signature=signature),
        stop(0),
        start(1, type="text", text=""),
        delta(1, "text", text="It is"),
        stop(1),
        start(2, type="tool_use", id=made, name="look", input={}),
        delta(2, "input_json", partial_json='{"at": 1}'),
        stop(2),
        start(3, type="tool_use", id="call_9", name="look", input={}),
        delta(3, "input_json", partial_json="{}"),
        stop(3),
        start(4, type="text", text=""),
        delta(4, "text", text="so."),
        stop(4),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"input_tokens": 1, "output_tokens": 6, "cache_read_input_tokens": 2},
        },
        {"type": "message_stop"},
    ]


def test_a_message_is_its_stream_folded() -> None:
    answer = message(context(PARSED, tools=TOOLS), *TURN)
    signature, made = answer["content"][0]["signature"], answer["content"][2]["id"]
    assert answer == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": signature},
            {"type": "text", "text": "It is"},
            {"type": "tool_use", "id": made, "name": "look", "input": {"at": 1}},
            {"type": "tool_use", "id": "call_9", "name": "look", "input": {}},
            {"type": "text", "text": "so."},
        ],
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 6, "cache_read_input_tokens": 2},
    }


def test_the_official_client_puts_the_stream_together() -> None:
    about = context(PARSED, tools=TOOLS)
    assert accumulated(chunks_of(replace(about, stream=True), *TURN)) == without_nulls(message(about, *TURN))


def test_deriving_an_answer_again_gives_the_same() -> None:
    about = context(PARSED, stream=True)
    assert chunks_of(about, *TURN) == chunks_of(about, *TURN)
    other = replace(about, response_id="msg_2")
    ids = [chunks_of(a, *TURN)[9]["content_block"]["id"] for a in (about, other, replace(about, call_ids="mistral"))]
    assert len(set(ids)) == 3
    assert len(ids[2]) == 9


@pytest.mark.parametrize(
    ("events", "reason", "sequence", "kinds"),
    [
        ((Text("Hi"), Finish("stop")), "end_turn", None, ["text"]),
        ((Text("Hi"), Finish("stop", 7)), "end_turn", None, ["text"]),
        ((Text("Hi"), Finish("stop", "END")), "stop_sequence", "END", ["text"]),
        ((Text("Hi"), Finish("length")), "max_tokens", None, ["text"]),
        ((Reasoning("Hm"), Finish("length")), "max_tokens", None, ["thinking"]),
        ((*CALL, Finish("tool_calls")), "tool_use", None, ["tool_use"]),
        # One function was forced.
        ((*CALL, Finish("stop")), "tool_use", None, ["tool_use"]),
        ((*CALL, Finish("length")), "max_tokens", None, ["tool_use"]),
        ((*CALL, Finish("tool_calls", "END")), "tool_use", None, ["tool_use"]),
        # A call that a stop sequence or a limit cut off must not run.
        ((*CALL[:2], Finish("stop", "END")), "stop_sequence", "END", ["text"]),
        ((*CALL[:2], Finish("length")), "max_tokens", None, ["text"]),
        ((*CALL[:1], Finish("length")), "max_tokens", None, ["text"]),
        ((*CALL[:2], Text("}"), Finish("stop")), "end_turn", None, ["text"]),
        ((Text("\n"), *CALL, Text("\n"), Finish("tool_calls")), "tool_use", None, ["tool_use"]),
        ((Text("\n"), Finish("stop")), "end_turn", None, ["text"]),
        ((Finish("stop"),), "end_turn", None, ["text"]),
        ((Finish("abort"),), None, None, ["text"]),
    ],
)
def test_how_an_answer_ends(
    events: tuple[Any, ...], reason: str | None, sequence: str | None, kinds: list[str]
) -> None:
    about = context(PARSED, tools=TOOLS, stop_sequences=["END"])
    answer = message(about, ChoiceDelta(0, events, (1,), 1))
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    assert [block["type"] for block in answer["content"]] == kinds
    chunks = chunks_of(replace(about, stream=True), *(ChoiceDelta(0, (event,), (1,), 1) for event in events))
    opened, closed = (
        [chunk["index"] for chunk in chunks if chunk["type"] == f"content_block_{what}"] for what in ("start", "stop")
    )
    assert opened == closed == list(range(len(opened)))
    assert [chunk["type"] for chunk in chunks[-2:]] == ["message_delta", "message_stop"]
    assert accumulated(chunks)["stop_reason" if reason else "type"] == (reason or "message")


def test_a_stream_without_a_token_is_whole() -> None:
    about = context(stream=True)
    chunks = chunks_of(about)
    assert [chunk["type"] for chunk in chunks] == ["message_start", "message_delta", "message_stop"]
    assert ANTHROPIC.fold(about, chunks)["content"] == [{"type": "text", "text": ""}]


def test_hidden_reasoning_leaves_no_trace() -> None:
    about = context(PARSED)
    about = replace(about, parse=about.parse | {"include_reasoning": False})
    deltas = ChoiceDelta(0, (Text("H"), Reasoning("Secret"), Text("i"), Finish("stop")), (1, 2, 3), 3, 1)
    answer = message(about, deltas)
    assert answer["content"] == [{"type": "text", "text": "Hi"}]
    assert "Secret" not in json.dumps(chunks_of(replace(about, stream=True), deltas))


def test_what_only_the_engine_knows_reaches_the_whole_message() -> None:
    delta = ChoiceDelta(0, (Text("Hi"), Finish("stop")), (1,), 1, extra={"kv_transfer_params": {"a": 1}, "metrics": {}})
    assert message(context(), delta)["kv_transfer_params"] == {"a": 1}
    assert "kv_transfer_params" not in json.dumps(chunks_of(context(stream=True), delta))


def test_the_last_usage_counts_what_comes_after_the_end() -> None:
    about = context()
    usage = message(about, ChoiceDelta(0, (Finish("stop"),), (1,), 1), ChoiceDelta(0, (), (), 1, cached_tokens=3))[
        "usage"
    ]
    assert usage == {"input_tokens": 0, "output_tokens": 1, "cache_read_input_tokens": 3}


# ---- from tokens ------------------------------------------------------------------------------------------------

OUTPUT = [*TOKENIZER.encode(f"<think>\nHm é🙂.\n</think>\n\nSo:\n{CALL_TEXT}\n{CALL_TEXT}"), END]


def described(**fields: Any) -> DerenderContext:
    request = ANTHROPIC.read(BODY | {"tools": TOOLS} | fields)
    return fold.describe(HERMES, "anthropic", request, response_id="msg_1", created=7, prompt_token_ids=PROMPT)


@unhurried
@given(st.lists(st.integers(0, 9), max_size=len(OUTPUT) // 9), st.booleans())
def test_the_same_tokens_make_the_same_message_however_they_are_cut(sizes: list[int], stream: bool) -> None:
    expected = fold.respond(HERMES, described(), PROMPT, cut(OUTPUT, []))
    kinds = ["thinking", "text", "tool_use", "tool_use"]
    assert [block["type"] for block in expected["content"]] == kinds
    assert [block.get("input") for block in expected["content"][2:]] == [{"at": "é🙂"}] * 2
    about = described(stream=stream)
    chunks = list(streamed_tokens(HERMES, about, cut(OUTPUT, sizes)))
    assert ANTHROPIC.fold(about, chunks) == expected
    assert accumulated(chunks) == without_nulls(expected)


def test_one_shot_answers_have_whole_calls_only() -> None:
    half = OUTPUT[: -len(TOKENIZER.encode(CALL_TEXT)) // 2]
    answer = fold.respond(HERMES, described(), PROMPT, cut(half, [], finish_reason="length"))
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["stop_reason"] == "max_tokens"
    assert described(stream=True).tool_arguments == "stream"


def test_a_stop_sequence_is_named() -> None:
    about = described(stop_sequences=["END"])
    tokens = TOKENIZER.encode("</think>one END two")
    answer = fold.respond(HERMES, about, PROMPT, cut(tokens, [], finish_reason="length"))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
    assert answer["content"] == [{"type": "text", "text": "one "}]
    assert answer["usage"]["output_tokens"] == len(TOKENIZER.encode("</think>one END"))


# ---- requests and states ----------------------------------------------------------------------------------------


def test_an_answer_is_read_by_the_effort_of_its_prompt() -> None:
    request = ANTHROPIC.read(BODY | {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}})
    assert converse(quieten(request, "none")).reasoning_effort == "none"
    assert converse(quieten(request, "low")).reasoning_effort == "low"
    thinking = ANTHROPIC.read(BODY | {"output_config": {"effort": "high"}})
    assert converse(quieten(thinking, "low")).reasoning_effort == "high"


SOUND: JsonObject = {
    "started": True,
    "block": ["text", 2],
    "called": True,
    "tokens": [5, None],
    "stop": ["stop_sequence", "END"],
}


@pytest.mark.parametrize(
    "change",
    [
        {"started": 1},
        {"started": False},
        {"block": ["image", 2]},
        {"block": ["text", -1]},
        {"block": ["text"]},
        {"block": ["tool_use", 2]},
        {"called": None},
        {"tokens": [True, None]},
        {"tokens": [5, -1]},
        {"tokens": 5},
        {"stop": ["length", None]},
        {"stop": ["stop_sequence", None]},
        {"stop": ["end_turn", "END"]},
    ],
)
def test_a_state_that_does_not_add_up_is_refused(change: JsonObject) -> None:
    assert ANTHROPIC.dump(ANTHROPIC.load(SOUND, 1)) == SOUND
    with pytest.raises(InvalidState):
        ANTHROPIC.load(SOUND | change, 1)
    with pytest.raises(InvalidState):
        ANTHROPIC.load(SOUND, 2)
