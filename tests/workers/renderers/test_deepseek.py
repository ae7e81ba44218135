from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation
from workers.renderers.base import make_renderer, quiet_effort

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def call(*ids: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": '{"city": "Zürich", "n": 3}'}
    calls = [{"id": i, "type": "function", "function": function} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(i: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": i, "content": text}


@pytest.fixture
def write(small, request):
    def text(*messages: dict[str, Any], **fields: Any) -> str:
        renderer = make_renderer(request.param, small, max_model_len=100_000)
        return renderer.render(Conversation(messages, **fields)).text or ""

    return text


THINKING: dict[str, Any] = {"template_arguments": {"thinking": True}}
PARAMETERS = (
    '<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>'
)


@pytest.mark.parametrize("write", ["deepseek_v32"], indirect=True)
class TestV32:
    def test_turns(self, write):
        system = {"role": "system", "content": "Be kind."}
        answer = {"role": "assistant", "content": "Hello.", "reasoning": "Hm."}
        assert write(system, USER, answer, USER) == (
            "<｜begin▁of▁sentence｜>Be kind.<｜User｜>Hi<｜Assistant｜></think>Hello.<｜end▁of▁sentence｜>"
            "<｜User｜>Hi<｜Assistant｜></think>"
        )
        assert write(USER, **THINKING).endswith("<｜User｜>Hi<｜Assistant｜><think>")

    def test_calls_and_their_results(self, write):
        assert write(USER, call("a", "b"), result("a", "1"), result("b", "2")).endswith(
            "</think>\n\n<｜DSML｜function_calls>\n"
            f'<｜DSML｜invoke name="f">\n{PARAMETERS}\n</｜DSML｜invoke>\n'
            f'<｜DSML｜invoke name="f">\n{PARAMETERS}\n</｜DSML｜invoke>\n'
            "</｜DSML｜function_calls><｜end▁of▁sentence｜>"
            "\n\n<function_results>\n<result>1</result>\n<result>2</result>\n</function_results>\n\n</think>"
        )

    def test_tools_are_a_system_message_of_their_own(self, write):
        text = write({"role": "system", "content": "Be kind."}, USER, tools=(TOOL,))
        assert (
            '<functions>\n{"name": "f", "description": null, "parameters": {"type": "object"}}\n</functions>\nBe'
            in text
        )

    def test_a_result_without_a_call(self, write):
        with pytest.raises(InvalidRequest):
            write(USER, result("a", "1"))


@pytest.mark.parametrize("write", ["deepseek_v4"], indirect=True)
class TestV4:
    def test_turns(self, write):
        answer = {"role": "assistant", "content": "Hello.", "reasoning": "Hm."}
        quiet = {"template_arguments": {"thinking": False}}
        assert write(USER, answer, USER, **quiet) == (
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Hello.<｜end▁of▁sentence｜>"
            "<｜User｜>Hi<｜Assistant｜></think>"
        )

    def test_it_thinks_unless_told_not_to_and_with_the_requested_effort(self, write):
        assert write(USER, reasoning_effort="low") == "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>"
        assert "Absolute maximum" in write(USER)
        assert "Beyond maximum" in write(USER, reasoning_effort="max")
        assert write(USER, reasoning_effort="none").endswith("</think>")

    def test_results_are_the_user_s_in_the_order_of_the_calls(self, write):
        text = write(USER, call("a", "b"), result("b", "2"), result("a", "1"), USER, reasoning_effort="low")
        assert text.endswith(
            "</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
            "<｜User｜><tool_result>1</tool_result>\n\n<tool_result>2</tool_result>\n\nHi<｜Assistant｜><think>"
        )

    def test_with_tools_reasoning_stays(self, write):
        answer = {"role": "assistant", "content": "Hello.", "reasoning": "Hm."}
        assert "Hm." not in write(USER, answer, USER)
        assert "<think>Hm.</think>Hello." in write(USER, answer, USER, tools=(TOOL,))

    def test_an_unknown_role(self, write):
        with pytest.raises(InvalidRequest):
            write({"role": "alien", "content": "x"})


def test_the_effort_that_means_not_to_think(small):
    assert quiet_effort(make_renderer("deepseek_v4", small, max_model_len=100_000)) == "none"
    assert quiet_effort(make_renderer("jinja", small, max_model_len=500)) == "none"
    deaf = make_renderer("jinja", small, max_model_len=500, chat_template="{{ messages[0].content }}")
    assert quiet_effort(deaf) == "low"


def test_where_system_messages_may_be(small):
    def takes(template: str) -> bool:
        return make_renderer("jinja", small, max_model_len=500, chat_template=template).takes_late_system

    assert takes("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert not takes(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ nope() }}{% endif %}{% endfor %}"
    )
    assert not make_renderer("deepseek_v32", small, max_model_len=500).takes_late_system
