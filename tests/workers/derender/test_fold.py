"""Token chunks become the same answer however they are cut, wherever the state is saved, and the counts are right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tasks.errors import EngineFailed, InvalidRequest, InvalidState
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.tokens import CandidateLogprob, PositionLogprobs, TokenChunk
from tasks.settings import ModelSettings
from workers import parsing
from workers.derender import fold
from workers.models.catalog import ModelProfile
from workers.renderers.base import Renderer
from workers.surfaces.openai_chat import OPENAI_CHAT
from workers.text.tokenizer import Tokenizer as TextTokenizer
from workers.text.tokenizer import TokenizerInfo

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
SPECIAL = ["<|end|>", "<|turn|>"]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "é🙂"}}\n</tool_call>'
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def byte_tokenizer() -> TextTokenizer:
    """A tokenizer with a token for every byte, and the markers and special tokens as added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, special=False) for text in MARKERS])
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return TextTokenizer(backend, TokenizerInfo("bytes", special_tokens={"eos_token": SPECIAL[0]}))


TOKENIZER = byte_tokenizer()
END = TOKENIZER.id_of("<|end|>") or 0
TURN = TOKENIZER.id_of("<|turn|>") or 0


def profile(tool_parser: str | None = None, reasoning_parser: str | None = None) -> ModelProfile:
    return ModelProfile(
        name="m",
        settings=ModelSettings(name="m", tokenizer="none", tool_parser=tool_parser, reasoning_parser=reasoning_parser),
        tokenizer=TOKENIZER,
        renderer=cast(Renderer, None),
        parser=parsing.bind(parsing.load_format(tool_parser, reasoning_parser), TOKENIZER.added_tokens),
        fingerprint=f"print-of-{tool_parser}-{reasoning_parser}",
        max_model_len=1 << 20,
        generation_defaults={},
        eos_token_ids=(END, TURN),
    )


PLAIN = profile()
HERMES = profile("hermes", "qwen3")
PROMPT = TOKENIZER.encode("Hi")


def context_of(model: ModelProfile = PLAIN, **fields: Any) -> DerenderContext:
    request = OPENAI_CHAT.read({"messages": [{"role": "user", "content": "Hi"}], **fields})
    return fold.describe(model, "openai_chat", request, response_id="chatcmpl-1", created=7, prompt_token_ids=PROMPT)


def cut(token_ids: Sequence[int], sizes: Sequence[int], *, index: int = 0, **last: Any) -> list[TokenChunk]:
    """The ids in chunks of these sizes, and the rest in one chunk that has the fields of `last`."""
    chunks, at = [], 0
    for size in sizes:
        chunks.append(TokenChunk(index, tuple(token_ids[at : at + size])))
        at += size
    return [*chunks, TokenChunk(index, tuple(token_ids[at:]), **{"finish_reason": "stop", **last})]


def streamed(
    model: ModelProfile, context: DerenderContext, chunks: Sequence[TokenChunk], *, through_json: bool = True
) -> Iterator[JsonObject]:
    """The client's chunks, with the state saved and loaded before each step."""
    state = fold.start(model, context, PROMPT)
    for chunk in chunks:
        if through_json:
            data = json.loads(json.dumps(fold.dump(context, state)))
            state = fold.load(model, context, data)
        state, out, _ = fold.step(model, context, state, chunk)
        yield from out
    yield from fold.finish(model, context, state).chunks


def folded(model: ModelProfile, context: DerenderContext, chunks: Sequence[TokenChunk]) -> JsonObject:
    return OPENAI_CHAT.fold(context, streamed(model, context, chunks))


def answered(model: ModelProfile, context: DerenderContext, chunks: Sequence[TokenChunk]) -> JsonObject:
    return fold.respond(model, context, PROMPT, chunks)


def message(answer: JsonObject) -> Any:
    return answer["choices"][0]["message"]


# ---- text, stops and ends ----------------------------------------------------------------------------------------


def test_a_text_and_its_counts() -> None:
    answer = answered(PLAIN, context_of(), cut([*TOKENIZER.encode("Zürich 🙂"), END], [3, 1, 2]))
    assert message(answer)["content"] == "Zürich 🙂"
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert answer["usage"]["completion_tokens"] == len("Zürich 🙂".encode()) + 1
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)
    assert answer["id"] == "chatcmpl-1"


def test_half_a_character_waits_for_its_other_half() -> None:
    ids = TOKENIZER.encode("ü")
    chunks = list(streamed(PLAIN, context_of(stream=True), cut(ids, [1])))
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "ü"]


@pytest.mark.parametrize("sizes", [[], [1, 1, 1, 1, 1, 1, 1], [4], [7]])
def test_a_stop_string_ends_the_text_and_the_count_where_it_is_complete(sizes: list[int]) -> None:
    ids = TOKENIZER.encode("one END two")
    context = context_of(stop=["END"], return_token_ids=True)
    choice = folded(PLAIN, context, cut(ids, sizes, finish_reason="length"))["choices"][0]
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
    assert choice["token_ids"] == ids[:7]
    answer = answered(PLAIN, context, cut(ids, sizes, finish_reason="length"))
    assert answer["usage"]["completion_tokens"] == 7


def test_the_engine_is_stopped_where_it_did_not_see_the_stop_string() -> None:
    context = context_of(stop="END", stream=True)
    state = fold.start(PLAIN, context, PROMPT)
    state, _, stopped = fold.step(PLAIN, context, state, TokenChunk(0, tuple(TOKENIZER.encode("one EN"))))
    assert (stopped, state.done) == (False, False)
    state, chunks, stopped = fold.step(PLAIN, context, state, TokenChunk(0, tuple(TOKENIZER.encode("D, two"))))
    assert (stopped, state.done) == (True, True)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    # The engine may have gone on for a moment.
    after, chunks, stopped = fold.step(PLAIN, context, state, TokenChunk(0, (65,), finish_reason="abort"))
    assert (after, chunks, stopped) == (state, [], False)


def test_the_engine_is_not_stopped_again_where_it_saw_the_stop_string() -> None:
    context = context_of(stop="END", stream=True)
    state = fold.start(PLAIN, context, PROMPT)
    chunk = TokenChunk(0, tuple(TOKENIZER.encode("one END")), finish_reason="stop", stop_reason="END")
    assert fold.step(PLAIN, context, state, chunk).stopped is False


def test_a_stop_string_stays_where_it_is_wanted() -> None:
    context = context_of(stop="END", include_stop_str_in_output=True)
    assert message(folded(PLAIN, context, cut(TOKENIZER.encode("one END two"), [])))["content"] == "one END"


def test_a_stop_string_does_not_count_within_the_least_tokens() -> None:
    context = context_of(stop="b", min_tokens=3, max_tokens=9)
    answer = folded(PLAIN, context, cut(TOKENIZER.encode("abcabc"), [2]))
    assert message(answer)["content"] == "abca"


@pytest.mark.parametrize(
    ("fields", "last", "stop_reason", "text"),
    [
        ({}, END, None, "a"),
        ({}, TURN, TURN, "a"),
        ({"stop_token_ids": [66]}, 66, 66, "a"),
        ({"include_stop_str_in_output": True, "stop_token_ids": [66]}, 66, 66, "a" + TOKENIZER.decode([66])),
        ({"ignore_eos": True}, 66, None, "a" + TOKENIZER.decode([66])),
        ({"ignore_eos": True, "skip_special_tokens": False}, END, None, "a<|end|>"),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_the_token_that_stops_is_no_text(
    fields: JsonObject, last: int, stop_reason: int | None, text: str, apart: bool
) -> None:
    ids = [*TOKENIZER.encode("a"), last]
    fields_of_last: JsonObject = {"stop_reason": stop_reason} if apart else {}
    answer = folded(PLAIN, context_of(**fields), cut(ids, [2] if apart else [], **fields_of_last))
    assert message(answer)["content"] == text
    assert answer["choices"][0]["stop_reason"] == stop_reason
    assert answer["usage"]["completion_tokens"] == 2


def test_a_stop_token_in_the_middle_is_text_once_another_token_follows() -> None:
    context = context_of(stop_token_ids=[66])
    ids = [*TOKENIZER.encode("a"), 66, *TOKENIZER.encode("z")]
    assert message(folded(PLAIN, context, cut(ids, [2])))["content"] == TOKENIZER.decode(ids)


@pytest.mark.parametrize("reason", ["length", "abort", "repetition"])
def test_other_reasons_are_passed_on(reason: str) -> None:
    choice = answered(PLAIN, context_of(), cut(TOKENIZER.encode("a"), [1], finish_reason=reason))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a", reason)


def test_nothing_at_all_is_an_answer_too() -> None:
    answer = answered(PLAIN, context_of(), [TokenChunk(0, (), finish_reason="abort")])
    assert (message(answer)["content"], answer["choices"][0]["finish_reason"]) == ("", "abort")
    assert answer["usage"]["completion_tokens"] == 0
    assert answered(PLAIN, context_of(), [])["choices"][0]["finish_reason"] == "abort"


def test_an_engine_that_failed_or_answers_another_request_is_an_error() -> None:
    for chunk in (TokenChunk(0, (65,), finish_reason="error"), TokenChunk(1, (65,))):
        with pytest.raises(EngineFailed):
            answered(PLAIN, context_of(), [chunk])


# ---- markup ------------------------------------------------------------------------------------------------------


def test_reasoning_and_calls_and_their_counts() -> None:
    text = f"<think>Let me look.</think>{CALL}"
    answer = folded(HERMES, context_of(HERMES, tools=TOOLS), cut([*TOKENIZER.encode(text), END], [5, 9, 30]))
    call = message(answer)["tool_calls"][0]
    assert message(answer)["reasoning"] == "Let me look."
    assert message(answer)["content"] is None
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"at": "é🙂"})
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("Let me look.")}


def test_hidden_reasoning_is_counted() -> None:
    ids = [*TOKENIZER.encode("<think>Hm 🙂</think>Yes."), END]
    answer = folded(HERMES, context_of(HERMES, include_reasoning=False), cut(ids, [4]))
    assert (message(answer)["reasoning"], message(answer)["content"]) == (None, "Yes.")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("Hm 🙂".encode())}


def test_a_call_that_was_cut_off_is_none() -> None:
    ids = TOKENIZER.encode(f"So. {CALL}")[:-20]
    choice = answered(HERMES, context_of(HERMES, tools=TOOLS), cut(ids, [6], finish_reason="length"))["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"


def test_tools_need_a_parser() -> None:
    for choice in ("auto", "required", {"type": "function", "function": {"name": "look"}}):
        with pytest.raises(InvalidRequest) as caught:
            context_of(PLAIN, tools=TOOLS, tool_choice=choice)
        assert caught.value.param == "tool_choice"
    assert context_of(PLAIN, tools=TOOLS, tool_choice="none")


def test_long_chunks_and_single_tokens_count_alike() -> None:
    text = f"<think>{'Let me look. ' * 20}</think>{'So. ' * 30}{CALL}{'And END then. ' * 9}"
    ids = TOKENIZER.encode(text)
    for fields in ({}, {"stop": "END"}, {"stop": "look. Let", "include_reasoning": False}):
        context = context_of(HERMES, tools=TOOLS, **fields)
        whole = answered(HERMES, context, cut(ids, []))
        assert answered(HERMES, context, cut(ids, [1] * len(ids))) == whole
    # The stop string in the reasoning was a part of it.
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("Let me look. Let")}


# ---- laws --------------------------------------------------------------------------------------------------------


@st.composite
def outputs(draw: st.DrawFn) -> list[int]:
    """Token ids of anything that the model might write."""
    parts = ["a", " END", "EN", "é🙂", "\n", CALL, *MARKERS, '{"name": "look"', "<tool"]
    return TOKENIZER.encode("".join(draw(st.lists(st.sampled_from(parts), max_size=7))))


@unhurried
@given(st.data())
def test_the_answer_does_not_depend_on_the_chunks(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from([PLAIN, HERMES]))
    fields = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "stop": st.sampled_from([["END"], ["🙂", "a\n"]]),
                **({"tools": st.just(TOOLS)} if model is HERMES else {}),
                "include_reasoning": st.booleans(),
                "stream": st.just(True),
                "return_token_ids": st.just(True),
                "min_tokens": st.integers(0, 5),
            },
        )
    )
    context = context_of(model, **fields)
    ids = data.draw(outputs())
    reason = data.draw(st.sampled_from(["stop", "length"]))
    ids += [END] if reason == "stop" else []
    sizes = data.draw(st.lists(st.integers(0, 9), max_size=9))
    whole = OPENAI_CHAT.fold(context, streamed(model, context, cut(ids, [], finish_reason=reason), through_json=False))
    assert folded(model, context, cut(ids, sizes, finish_reason=reason)) == whole
    assert folded(model, context, cut(ids, [1] * len(ids), finish_reason=reason)) == whole


@unhurried
@given(outputs(), outputs(), st.data())
def test_interleaved_choices_do_not_touch_each_other(first: list[int], second: list[int], data: st.DataObject) -> None:
    context = context_of(HERMES, n=2, tools=TOOLS, stop="END")
    waiting = [cut(first, [2, 3, 5], index=0), cut(second, [1, 4, 2], index=1)]
    mixed = []
    while any(waiting):
        index = data.draw(st.sampled_from([i for i in (0, 1) if waiting[i]]))
        mixed.append(waiting[index].pop(0))
    answer = answered(HERMES, context, mixed)
    alone = [answered(HERMES, context_of(HERMES, tools=TOOLS, stop="END"), cut(ids, [])) for ids in (first, second)]
    for mine, single in zip(answer["choices"], alone, strict=True):
        ours, theirs = mine["message"], single["choices"][0]["message"]
        assert (ours["content"], ours["reasoning"]) == (theirs["content"], theirs["reasoning"])
        calls = [[call["function"] for call in answer.get("tool_calls", [])] for answer in (ours, theirs)]
        assert calls[0] == calls[1]
    assert answer["usage"]["completion_tokens"] == sum(single["usage"]["completion_tokens"] for single in alone)


def test_the_state_does_not_grow() -> None:
    context = context_of(HERMES, tools=TOOLS, stop="END", stream=True, logprobs=True)
    state = fold.start(HERMES, context, PROMPT)
    sizes = []
    for _ in range(30):
        state, _, _ = fold.step(HERMES, context, state, TokenChunk(0, tuple(TOKENIZER.encode("word é " * 20))))
        sizes.append(len(json.dumps(fold.dump(context, state))))
    assert max(sizes) < 1500
    assert sizes[-1] - sizes[1] < 20


# ---- log-probabilities, usage, and state -------------------------------------------------------------------------


def candidate(token_id: int, logprob: float = -0.5) -> CandidateLogprob:
    return CandidateLogprob(token_id, logprob, 1)


def test_log_probabilities_name_whole_characters_where_they_are_complete() -> None:
    ids = TOKENIZER.encode("aü")
    other = TOKENIZER.encode("b")[0]
    positions = tuple(PositionLogprobs(candidate(i), (candidate(i), candidate(other, float("-inf")))) for i in ids)
    context = context_of(logprobs=True, top_logprobs=2)
    chunks = [
        TokenChunk(0, tuple(ids[:2]), positions[:2]),
        TokenChunk(0, tuple(ids[2:]), positions[2:], finish_reason="length"),
    ]
    content = folded(PLAIN, context, chunks)["choices"][0]["logprobs"]["content"]
    assert [(p["token"], p["bytes"]) for p in content] == [("a", [97]), ("", []), ("ü", list("ü".encode()))]
    assert content[0]["top_logprobs"][1] == {"token": "b", "logprob": -9999.0, "bytes": [98]}


def test_log_probabilities_end_with_the_text() -> None:
    ids = TOKENIZER.encode("a END b")
    positions = tuple(PositionLogprobs(candidate(i)) for i in ids)
    answer = answered(PLAIN, context_of(logprobs=True, stop="END"), [TokenChunk(0, tuple(ids), positions, "stop")])
    assert len(answer["choices"][0]["logprobs"]["content"]) == len("a END") == answer["usage"]["completion_tokens"]


def test_cached_tokens_may_come_last_and_are_never_more_than_the_prompt() -> None:
    context = context_of(stop="END")
    chunks = [
        TokenChunk(0, tuple(TOKENIZER.encode("a END b"))),
        TokenChunk(0, (), finish_reason="abort", cached_tokens=1000, prompt_tokens=1004),
    ]
    usage = answered(PLAIN, context, chunks)["usage"]
    assert usage["prompt_tokens"] == len(PROMPT) == usage["prompt_tokens_details"]["cached_tokens"]


def test_what_only_the_engine_knows_is_passed_on() -> None:
    chunk = TokenChunk(0, (65,), finish_reason="length", extra={"prompt_logprobs": [None], "metrics": {"a": 1}})
    answer = answered(PLAIN, context_of(), [chunk])
    assert (answer["prompt_logprobs"], answer["metrics"]) == ([None], {"a": 1})


def test_a_state_that_does_not_add_up_is_refused() -> None:
    context = context_of(HERMES, tools=TOOLS)
    good = fold.dump(context, fold.start(HERMES, context, PROMPT))
    assert fold.load(HERMES, context, good)
    text = good["text"][0]
    broken: list[Any] = [
        None,
        "state",
        {**good, "v": 2},
        {**good, "fingerprint": "other"},
        {**good, "text": []},
        {**good, "text": [text, text]},
        {**good, "text": [{**text, "counts": [-1, 0, 0]}]},
        {**good, "text": [{**text, "recent": [1] * 99}]},
        {**good, "text": [5]},
        {**good, "stop": [None]},
        {**good, "parse": [{}]},
        {**good, "surface": None},
    ]
    for data in broken:
        with pytest.raises(InvalidState):
            fold.load(HERMES, context, data)
    with pytest.raises(InvalidState):
        fold.load(PLAIN, context, good)
    with pytest.raises(InvalidState):
        fold.load(HERMES, replace(context, n=2), good)
