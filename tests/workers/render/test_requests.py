from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.errors import ContextLengthExceeded, InvalidRequest
from tasks.protocol.conversation import Conversation, Prompt
from workers.render.requests import EngineFacts, resolve_completion, resolve_request
from workers.renderers.base import RenderedPrompt

USER = {"role": "user", "content": "Hi"}
RENDERED = RenderedPrompt((1, 2, 3))
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
STRICT: dict[str, Any] = {"type": "function", "function": {**TOOL["function"], "strict": True}}
OTHER = {"type": "function", "function": {"name": "g"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


def resolve(facts: dict[str, Any] | None = None, reasoning_ended: bool | None = None, **fields: Any) -> dict[str, Any]:
    engine = EngineFacts(**{"max_model_len": 100, **(facts or {})})
    return resolve_request(Conversation((USER,), **fields), RENDERED, engine, reasoning_ended=reasoning_ended)


def sampling(sent: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    params: dict[str, Any] = resolve({"generation_defaults": defaults}, sampling=sent)["sampling_params"]
    return params


class TestSampling:
    def test_parameters_that_nobody_sets_are_neutral(self):
        assert sampling({}) == {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_p": 1.0,
            "min_p": 0.0,
            "max_tokens": 97,
        }

    def test_the_model_s_longest_answer(self):
        most: dict[str, Any] = {"max_output_tokens": 10}
        for asked, limit in ((None, 10), (7, 7), (50, 10)):
            assert resolve(most, max_output_tokens=asked)["sampling_params"]["max_tokens"] == limit

    def test_the_request_wins_over_the_model(self):
        got = sampling({"temperature": 0.5}, temperature=0.6, top_p=0.95, top_k=20)
        assert (got["temperature"], got["top_p"], got["top_k"]) == (0.5, 0.95, 20)

    def test_greedy_leaves_nothing_to_choose_from(self):
        got = sampling({"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1})
        assert (got["temperature"], got["top_p"], got["min_p"]) == (0.0, 1.0, 0.0)
        assert "top_k" not in got
        with pytest.raises(InvalidRequest):
            sampling({"temperature": 0, "n": 2})

    def test_temperatures_that_overflow_are_raised(self):
        assert sampling({"temperature": 0.001})["temperature"] == 0.01

    def test_lists_are_lists_without_doubles(self):
        got = sampling({"stop": "x", "stop_token_ids": [5, 5], "bad_words": ["a", "a"]}, stop_token_ids=[7, 5])
        assert (got["stop"], got["stop_token_ids"], got["bad_words"]) == (["x"], [5, 7], ["a"])

    def test_a_seed_of_minus_one_is_none(self):
        assert "seed" not in sampling({"seed": -1})

    def test_biases_are_bounded(self):
        assert sampling({"logit_bias": {"5": 200, "7": -3}})["logit_bias"] == {"5": 100.0, "7": -3}
        with pytest.raises(InvalidRequest) as caught:
            sampling({"logit_bias": {"a": 1}})
        assert caught.value.param == "logit_bias"

    def test_the_longest_answer_is_what_fits(self):
        def longest(**fields: Any) -> int:
            length: int = resolve({"generation_defaults": {"max_tokens": 50}}, **fields)["sampling_params"][
                "max_tokens"
            ]
            return length

        assert longest() == 50
        assert longest(max_output_tokens=60) == 60
        assert longest(max_output_tokens=99) == 97
        with pytest.raises(InvalidRequest):
            longest(max_output_tokens=5, sampling={"min_tokens": 6})

    def test_a_prompt_that_fills_the_model(self):
        with pytest.raises(ContextLengthExceeded):
            resolve({"max_model_len": 3})


class TestConstraint:
    def constraint(self, parser: str | None = "hermes", forced: str = "native", **fields: Any) -> Any:
        got = resolve({"tool_parser": parser, "forced": forced}, **fields)["sampling_params"].get("structured_outputs")
        return json.loads(got["structural_tag"])["format"] if got and "structural_tag" in got else got

    def test_response_formats(self):
        assert self.constraint() is None
        assert self.constraint(response_format={"type": "text"}) is None
        assert self.constraint(response_format={"type": "json_object"}) == {"json_object": True}
        assert self.constraint(response_format=SCHEMA) == {"json": {"type": "object"}}
        assert self.constraint(structured_outputs={"regex": "a+"}) == {"regex": "a+"}
        own = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
        assert self.constraint(response_format=own) == own["format"]

    def test_two_constraints_at_once_are_refused(self):
        with pytest.raises(InvalidRequest):
            self.constraint(response_format=SCHEMA, structured_outputs={"regex": "a+"})
        with pytest.raises(InvalidRequest):
            self.constraint(response_format={"type": "json_schema"})

    def test_hunyuan_is_constrained_only_if_it_must_call(self):
        assert self.constraint("hy_v4", tools=(STRICT,), tool_choice="auto") is None
        facts = {"tool_parser": "hy_v4", "suffix": ":1a2b"}
        got = resolve(facts, tools=(STRICT,), tool_choice="required")["sampling_params"]["structured_outputs"]
        assert "<tool_calls:1a2b>" in got["structural_tag"]

    def test_calls_that_may_come_are_free_unless_strict(self):
        assert self.constraint(tools=(TOOL,), tool_choice="auto") is None
        assert self.constraint(tools=(STRICT,), tool_choice="none") is None
        tag = self.constraint(tools=(STRICT, OTHER), tool_choice="auto")
        assert (tag["type"], tag["triggers"], tag["at_least_one"]) == ("triggered_tags", ["<tool_call>"], False)
        assert tag["tags"][0]["begin"] == '<tool_call>\n{"name": "f", "arguments": '
        schemas = [one["content"]["json_schema"] for one in tag["tags"]]
        assert schemas == [STRICT["function"]["parameters"]] * 2 + [True] * 2

    def test_a_family_that_is_always_constrained(self):
        tag = self.constraint("glm47", tools=(TOOL,), tool_choice="auto")
        assert tag["tags"][0]["content"]["type"] == "star"

    def test_at_most_one_call_is_a_constraint(self):
        tag = self.constraint(tools=(TOOL,), tool_choice="auto", parallel_tool_calls=False)
        assert tag["stop_after_first"] is True

    def test_calls_that_must_come(self):
        tag = self.constraint(tools=(TOOL, OTHER), tool_choice="required", response_format=SCHEMA)
        assert (tag["type"], len(tag["tags"]), tag["stop_after_first"]) == ("tags_with_separator", 4, False)
        named = {"type": "function", "function": {"name": "g"}}
        tag = self.constraint(tools=(TOOL, OTHER), tool_choice=named)
        assert (len(tag["tags"]), tag["stop_after_first"]) == (2, True)
        with pytest.raises(InvalidRequest) as caught:
            self.constraint(tools=(TOOL,), tool_choice=named)
        assert caught.value.param == "tool_choice"

    def test_a_response_format_remains_the_alternative_to_calling(self):
        tag = self.constraint(tools=(STRICT,), tool_choice="auto", response_format=SCHEMA)
        assert [branch["type"] for branch in tag["elements"]] == ["tags_with_separator", "json_schema"]

    def test_a_family_without_tags_calls_in_json_where_it_must(self):
        asked: dict[str, Any] = {"parser": "pythonic", "forced": "json", "tools": (TOOL, OTHER)}
        schema = self.constraint(tool_choice="required", parallel_tool_calls=False, **asked)["json"]
        assert schema["maxItems"] == 1
        assert [item["properties"]["name"]["enum"] for item in schema["items"]["anyOf"]] == [["f"], ["g"]]
        named = {"type": "function", "function": {"name": "f"}}
        assert self.constraint(tool_choice=named, **asked)["json"] == TOOL["function"]["parameters"]
        assert self.constraint(tool_choice="auto", **asked) is None
        assert self.constraint(tool_choice="required", **{**asked, "forced": "native"}) is None

    def test_definitions_of_all_tools_are_shared(self):
        def tool(name: str, definition: dict[str, Any]) -> dict[str, Any]:
            parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/D"}}, "$defs": {"D": definition}}
            return {"type": "function", "function": {"name": name, "parameters": parameters}}

        asked: dict[str, Any] = {"parser": "pythonic", "forced": "json", "tool_choice": "required"}
        tools = (tool("f", {"type": "string"}), tool("g", {"type": "string"}))
        assert self.constraint(tools=tools, **asked)["json"]["$defs"] == {"D": {"type": "string"}}
        with pytest.raises(InvalidRequest):
            self.constraint(tools=(tools[0], tool("g", {"type": "number"})), **asked)

    def test_tools_need_a_parser(self):
        with pytest.raises(InvalidRequest):
            self.constraint(None, tools=(TOOL,), tool_choice="auto")


class TestSpecialTokens:
    @pytest.mark.parametrize(
        ("facts", "fields", "kept"),
        [
            ({}, {}, False),
            ({"reasoning_parser": "qwen3"}, {}, True),
            ({"reasoning_parser": "deepseek_r1"}, {}, False),
            ({"reasoning_parser": "hf"}, {}, True),
            ({"tool_parser": "hermes"}, {}, False),
            ({"tool_parser": "hermes"}, {"tools": (TOOL,), "tool_choice": "auto"}, True),
            ({"tool_parser": "glm47"}, {}, False),
            ({"tool_parser": "glm47", "reasoning_parser": "deepseek_r1"}, {}, True),
        ],
    )
    def test_parsers_that_read_them_keep_them(self, facts, fields, kept):
        assert ("skip_special_tokens" in resolve(facts, **fields)["sampling_params"]) is kept


class TestContext:
    def test_what_parsing_needs_travels_along(self):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        conversation = Conversation(
            (USER, {"role": "assistant", "content": None, "tool_calls": [call]}),
            tools=({"function": {"name": "f"}, "type": "function"},),
            tool_choice="auto",
            template_arguments={"enable_thinking": False},
            options={"stream": True, "priority": 3},
        )
        facts = EngineFacts(100, default_template_arguments={"x": 1}, tool_parser="hermes", reasoning_parser="qwen3")
        got = resolve_request(conversation, RENDERED, facts, reasoning_ended=True)
        arguments = {"x": 1, "enable_thinking": False, "add_generation_prompt": True, "continue_final_message": False}
        assert got["parse_context"] == {
            "tools": [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "include_reasoning": True,
            "chat_template_kwargs": arguments,
            "history_tool_call_cnt": 1,
        }
        assert got["reasoning_parser_kwargs"] == {"chat_template_kwargs": arguments}
        assert (got["reasoning_ended"], got["stream"], got["priority"]) == (True, True, 3)

    def test_reasoning_that_nobody_sees_counts_as_ended(self):
        assert resolve({"reasoning_parser": "qwen3"}, False)["reasoning_ended"] is False
        assert resolve({"reasoning_parser": "qwen3"}, False, include_reasoning=False)["reasoning_ended"] is True
        assert "reasoning_ended" not in resolve()

    def test_a_plain_completion_has_no_parser(self):
        rendered = RenderedPrompt((1, 2), "ab", ((0, 1), (1, 2)))
        got = resolve_completion(
            Prompt(text="ab", max_output_tokens=5), rendered, EngineFacts(100, tool_parser="hermes")
        )
        assert got["token_offsets"] == [[0, 1], [1, 2]]
        assert got["sampling_params"]["max_tokens"] == 5
        assert "parse_context" not in got
