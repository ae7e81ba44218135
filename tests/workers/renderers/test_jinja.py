from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import ContextLengthExceeded, InvalidRequest
from tasks.protocol.conversation import Conversation, Prompt, Tokenization
from tests.workers.conftest import TEMPLATE
from workers.renderers.base import Renderer, make_renderer, template_arguments
from workers.text.tokenizer import LoadedTokenizer

USER = {"role": "user", "content": "Hi"}
PROMPT = "<|im_start|>user\nHi<|end|>\n<|im_start|>assistant\n"


def renderer(loaded: LoadedTokenizer, **settings: Any) -> Renderer:
    return make_renderer("jinja", loaded, **{"max_model_len": 500, **settings})


def text(
    loaded: LoadedTokenizer, *messages: dict[str, Any], settings: dict[str, Any] | None = None, **fields: Any
) -> Any:
    return renderer(loaded, **(settings or {})).render(Conversation(messages or (USER,), **fields)).text


def test_a_conversation_becomes_token_ids(small):
    rendered = renderer(small).render(Conversation((USER,)))
    assert rendered.text == PROMPT
    assert list(rendered.token_ids) == small.tokenizer.encode(PROMPT)
    assert rendered.token_ids[0] == small.tokenizer.added_tokens["<|im_start|>"]


def test_tools_are_written_with_the_keys_that_models_know(small):
    tools = ({"function": {"parameters": {"type": "object"}, "name": "f", "other": 1}, "type": "function"},)
    assert text(small, tools=tools).startswith(
        '<tools>{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}'
    )


def test_a_template_for_tools_is_taken_where_there_is_one(loaded):
    tools = ({"type": "function", "function": {"name": "f"}},)
    assert text(loaded, tools=tools).startswith("T<tools>")
    assert text(loaded) == PROMPT


def test_arguments_of_the_request_win_over_the_model_s(small):
    settings = {"default_template_arguments": {"enable_thinking": False}}
    assert text(small, settings=settings).endswith("<think></think>")
    assert text(small, settings=settings, template_arguments={"enable_thinking": True}) == PROMPT
    assert text(small, settings=settings, template_arguments={"enable_thinking": None}).endswith("<think></think>")


def test_an_effort_of_reasoning_switches_thinking():
    def arguments(**fields: Any) -> dict[str, Any]:
        return template_arguments(Conversation((USER,), **fields), {"add_generation_prompt": False})

    assert arguments() == {"add_generation_prompt": True, "continue_final_message": False}
    assert arguments(reasoning_effort="low")["enable_thinking"] is True
    assert arguments(reasoning_effort="none")["enable_thinking"] is False
    assert arguments(reasoning_effort="none", template_arguments={"enable_thinking": True})["enable_thinking"] is True


def test_the_final_message_is_continued(small):
    start = {"role": "assistant", "content": "It is "}
    fields: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert text(small, USER, start, **fields) == "<|im_start|>user\nHi<|end|>\n<|im_start|>assistant\nIt is "
    trimming = LoadedTokenizer(
        small.tokenizer, {"default": TEMPLATE.replace("message.content }}", "message.content | trim }}")}
    )
    assert text(trimming, USER, start, **fields).endswith("assistant\nIt is")


def test_a_final_message_that_the_template_hides_cannot_be_continued(small):
    hiding = LoadedTokenizer(small.tokenizer, {"default": "{{ messages | length }}"})
    with pytest.raises(InvalidRequest):
        text(hiding, USER, add_generation_prompt=False, continue_final_message=True)


def test_continuing_and_beginning_exclude_each_other(small):
    with pytest.raises(InvalidRequest):
        text(small, USER, continue_final_message=True)


def test_a_request_s_template_is_taken_only_on_trust(small):
    mine = "{{ messages[0].content }}!"
    for fields in ({"template": mine}, {"template_arguments": {"chat_template": mine}}):
        with pytest.raises(InvalidRequest) as caught:
            text(small, **fields)
        assert caught.value.param == "chat_template"
        assert text(small, settings={"trust_request_chat_template": True}, **fields) == "Hi!"


def test_the_model_s_own_template_may_be_replaced(small):
    assert text(small, settings={"chat_template": "{{ eos_token }}"}) == "<|end|>"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('only two roles') }}", "^only two roles$"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{% only", "unknown tag 'only'"),
    ],
)
def test_what_a_template_refuses_is_the_request_s_fault(small, template, reason):
    with pytest.raises(InvalidRequest, match=reason):
        text(small, settings={"chat_template": template})


def test_a_model_without_a_template(small):
    with pytest.raises(InvalidRequest, match="no chat template"):
        text(LoadedTokenizer(small.tokenizer, {}))


def test_an_unknown_renderer(small):
    with pytest.raises(ValueError, match="no renderer"):
        make_renderer("nobody", small, max_model_len=1)


class TestLimits:
    def ids(self, loaded: LoadedTokenizer, fields: dict[str, Any], **tokenization: Any) -> list[int]:
        conversation = Conversation((USER,), tokenization=Tokenization(**tokenization), **fields)
        return list(renderer(loaded, max_model_len=40).render(conversation).token_ids)

    def test_a_prompt_that_does_not_fit(self, small):
        long = {"role": "user", "content": "é" * 60}
        with pytest.raises(ContextLengthExceeded) as caught:
            renderer(small, max_model_len=40).render(Conversation((long,)))
        assert caught.value.param == "input_tokens"
        longer = {"role": "user", "content": "é" * 6000}
        with pytest.raises(ContextLengthExceeded) as caught:
            renderer(small, max_model_len=40).render(Conversation((longer,)))
        assert caught.value.param == "input_text"

    def test_truncation_keeps_the_end_unless_told_otherwise(self, small):
        ids = small.tokenizer.encode(PROMPT)
        assert self.ids(small, {}, truncate_to=5) == ids[-5:]
        assert self.ids(small, {}, truncate_to=5, truncation_side="left") == ids[-5:]
        assert self.ids(small, {}, truncate_to=5, truncation_side="right") == ids[:5]
        assert self.ids(small, {}, truncate_to=40) == ids

    def test_truncation_to_what_fits_leaves_room_for_one_token(self, small):
        long = {"role": "user", "content": "é" * 6000}
        conversation = Conversation((long,), tokenization=Tokenization(truncate_to=-1))
        assert len(renderer(small, max_model_len=40).render(conversation).token_ids) == 39

    def test_more_than_the_model_holds(self, small):
        with pytest.raises(InvalidRequest) as caught:
            self.ids(small, {"max_output_tokens": 41, "max_output_tokens_param": "max_completion_tokens"})
        assert caught.value.param == "max_completion_tokens"
        with pytest.raises(InvalidRequest) as caught:
            self.ids(small, {}, truncate_to=41)
        assert caught.value.param == "truncate_prompt_tokens"

    def test_offsets_point_into_the_prompt(self, small):
        conversation = Conversation((USER,), tokenization=Tokenization(return_offsets=True))
        rendered: Any = renderer(small).render(conversation)
        assert "".join(PROMPT[a:b] for a, b in rendered.offsets) == PROMPT

    def test_offsets_of_a_text_cut_on_the_left_still_point_into_the_whole(self, small):
        long = {"role": "user", "content": "é" * 6000}
        tokenization = Tokenization(truncate_to=10, truncation_side="left", return_offsets=True)
        rendered: Any = renderer(small, max_model_len=40).render(Conversation((long,), tokenization=tokenization))
        assert rendered.text[rendered.offsets[0][0] :] == "".join(rendered.text[a:b] for a, b in rendered.offsets)


def test_plain_prompts(small):
    rendered = renderer(small).render_prompt(Prompt(text="Hi"))
    assert list(rendered.token_ids) == small.tokenizer.encode("Hi", add_special_tokens=True)
    assert renderer(small).render_prompt(Prompt(token_ids=(5, 6, 7))).token_ids == (5, 6, 7)
    cut = Prompt(token_ids=(5, 6, 7), tokenization=Tokenization(truncate_to=2))
    assert renderer(small).render_prompt(cut).token_ids == (6, 7)
    with pytest.raises(InvalidRequest):
        renderer(small).render_prompt(Prompt(text=""))
