"""OpenAI's and vLLM's parameters as llama.cpp's."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.tokens import GenerateRequest
from workers.generate.engines.llamacpp_request import SAMPLERS, map_request


def mapped(index: int = 0, *, fields: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    return map_request(GenerateRequest(token_ids=[1, 2, 3], sampling_params=params, **(fields or {})), index)


def test_the_defaults_are_those_of_vllm_and_not_of_the_server() -> None:
    assert mapped() == {
        "prompt": [1, 2, 3],
        "n_predict": -1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "samplers": list(SAMPLERS),
        "return_tokens": True,
        "cache_prompt": True,
        "stream": True,
    }


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"max_tokens": 16}, {"n_predict": 16}),
        ({"temperature": 0, "top_p": 0.5, "top_k": 5}, {"temperature": 0.0, "top_p": 1.0, "top_k": 0}),
        ({"temperature": 0.7, "top_k": -1}, {"temperature": 0.7, "top_k": 0}),
        ({"top_p": 0.9, "top_k": 40, "min_p": 0.1}, {"top_p": 0.9, "top_k": 40, "min_p": 0.1}),
        ({"seed": 7}, {"seed": 7}),
        ({"seed": -1}, {"seed": 0xFFFFFFFF}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"logit_bias": {"5": -100, "6": 2}}, {"logit_bias": [[5, -100.0], [6, 2.0]]}),
        ({"logprobs": 0}, {"n_probs": 1}),
        ({"logprobs": 5}, {"n_probs": 5}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1, "repeat_last_n": 8195}),
        ({"presence_penalty": 0.5, "max_tokens": 9000}, {"presence_penalty": 0.5, "repeat_last_n": 9003}),
        ({"structured_outputs": {"json": {"type": "object"}}}, {"json_schema": {"type": "object"}}),
        ({"structured_outputs": {"json": '{"type": "array"}'}}, {"json_schema": {"type": "array"}}),
        ({"structured_outputs": {"json_object": True, "json": None}}, {"json_schema": {"type": "object"}}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"choice": ["yes", 'n"o']}}, {"grammar": 'root ::= "yes" | "n\\"o"'}),
        ({"structured_outputs": {"regex": "^a/b\\/c$"}}, {"grammar": "%llguidance {}\nstart: /a\\/b\\/c/"}),
    ],
)
def test_a_parameter_has_its_counterpart(params: dict[str, Any], expected: dict[str, Any]) -> None:
    body = mapped(**params)
    assert {name: body.get(name) for name in expected} == expected


def test_each_choice_has_its_own_seed() -> None:
    assert [mapped(index, n=3, seed=9)["seed"] for index in range(3)] == [9, 10, 11]
    assert "seed" not in mapped(1, n=3)


def test_a_salted_prompt_is_not_cached() -> None:
    assert mapped(fields={"cache_salt": "s"})["cache_prompt"] is False


def test_default_values_of_unsupported_parameters_are_accepted() -> None:
    body = mapped(
        detokenize=True, skip_special_tokens=False, min_tokens=0, bad_words=[], logprobs=None, allowed_token_ids=None
    )
    assert body == mapped()


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"min_tokens": 4}, "min_tokens"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprobs": -1}, "logprobs"),
        ({"never_heard_of": 1}, "never_heard_of"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": True}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": "json"}, "structured_outputs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(params: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        mapped(**params)
    assert caught.value.param == param


@pytest.mark.parametrize("field", ["features", "kv_transfer_params", "ec_transfer_params"])
def test_a_field_that_cannot_be_served_is_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        mapped(fields={field: {"a": 1}})
    assert caught.value.param == field


def test_a_constraint_is_refused_where_it_would_hit_the_reasoning() -> None:
    with pytest.raises(InvalidRequest, match="reasoning"):
        mapped(fields={"reasoning_ended": False}, structured_outputs={"json_object": True})
    assert "json_schema" in mapped(fields={"reasoning_ended": True}, structured_outputs={"json_object": True})
