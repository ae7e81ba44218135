from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Prompt
from workers.surfaces.openai_completions import prompts_of, read


def prompts(**body: Any) -> list[Prompt]:
    return prompts_of(read({"model": "m", **body}))


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("a", [("a", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        ([1, 2], [(None, (1, 2))]),
        ([[1], [2, 3]], [(None, (1,)), (None, (2, 3))]),
    ],
)
def test_prompts_come_as_text_ids_or_lists_of_either(sent, expected):
    assert [(prompt.text, prompt.token_ids) for prompt in prompts(prompt=sent)] == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "use_beam_search": True}, "use_beam_search"),
        ({"prompt": "a", "stop": [""]}, "stop"),
    ],
)
def test_what_is_wrong_is_named(body, param):
    with pytest.raises(InvalidRequest) as caught:
        prompts(**body)
    assert (caught.value.param or "").startswith(param)


def test_what_was_sent_reaches_the_engine():
    (prompt,) = prompts(
        prompt="a", temperature=0.5, stop="x", logprobs=2, echo=True, stream=True, truncate_prompt_tokens=3, min_p=None
    )
    assert prompt.sampling == {"temperature": 0.5, "stop": ["x"], "logprobs": 2, "prompt_logprobs": 2}
    assert prompt.options == {"stream": True}
    assert (prompt.tokenization.add_special_tokens, prompt.tokenization.truncate_to) == (True, 3)


def test_the_limit_is_sixteen_tokens_unless_it_is_another():
    assert prompts(prompt="a")[0].max_output_tokens == 16
    assert prompts(prompt="a", max_tokens=None)[0].max_output_tokens == 16
    assert prompts(prompt="a", max_tokens=5)[0].max_output_tokens == 5
    assert prompts(prompt="a", max_tokens=0, echo=True)[0].max_output_tokens == 1
