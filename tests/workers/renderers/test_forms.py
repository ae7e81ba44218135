"""Every template is given a history's calls in the form that it takes, found by what it writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.protocol.conversation import Conversation, JsonObject
from tests.peer.reference import TOKENIZERS
from workers.renderers import forms
from workers.renderers.base import make_renderer
from workers.renderers.forms import call_form_of
from workers.renderers.jinja import JinjaRenderer
from workers.renderers.templates import CallForm
from workers.text.tokenizer import LoadedTokenizer

NESTED = '{"city": "Zürich", "deep": {"a": [1, null, true]}}'
USER = {"role": "user", "content": "Weather?"}


def call(name: str, arguments: Any) -> JsonObject:
    return {"id": f"{name:x<9}", "type": "function", "function": {"name": name, "arguments": arguments}}


def history(text: Any, *calls: JsonObject) -> tuple[JsonObject, ...]:
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": f"result of {one['function']['name']}"} for one in calls
    ]
    return (USER, {"role": "assistant", "content": text, "tool_calls": list(calls)}, *results)


def turns(body: str) -> str:
    """A template that writes assistants so, and others plainly; `calls` and `text` are what tests write there."""
    return (
        "{% for m in messages %}[{{ m.role }}]"
        + "{% if m.role == 'assistant' %}"
        + body
        + "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    )


def calls(arguments: str) -> str:
    return "{% for c in m.tool_calls or [] %}<{{ c.function.name }}:" + arguments + ">{% endfor %}"


JOINED = calls("{{ '' + c.function.arguments }}")
PRINTED = calls("{{ c.function.arguments }}")
JSON = calls("{{ c.function.arguments | tojson }}")
ITEMS = calls("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }};{% endfor %}")
FILTERED = calls("{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }};{% endfor %}")
EITHER = calls(
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}"
    "{% endif %}"
)
OBJECT, TEXT = CallForm(), CallForm("text")

TEMPLATES: dict[str, tuple[str, CallForm]] = {
    "joined": (turns("{{ m.content }}" + JOINED), TEXT),
    "joined by a tilde": (turns("{{ m.content }}" + calls("{{ '' ~ c.function.arguments }}")), TEXT),
    "printed": (turns("{{ m.content }}" + PRINTED), TEXT),
    "to JSON": (turns("{{ m.content }}" + JSON), OBJECT),
    "items": (turns("{{ m.content }}" + ITEMS), OBJECT),
    "filtered items": (turns("{{ m.content }}" + FILTERED), OBJECT),
    "either": (turns("{{ m.content }}" + EITHER), OBJECT),
    "a mapping or nothing": (
        turns(
            "{{ m.content }}"
            + calls(
                "{% if c.function.arguments is not mapping %}{{ raise_exception('no') }}{% endif %}"
                "{{ c.function.arguments | tojson }}"
            )
        ),
        OBJECT,
    ),
    "content is none": (
        turns("{% if m['content'] is none %}" + JOINED + "{% else %}{{ m['content'] }}{% endif %}"),
        CallForm("text", "none", "apart"),
    ),
    "content is none, JSON": (
        turns("{% if m.content is none %}" + JSON + "{% else %}{{ m.content }}{% endif %}"),
        CallForm("object", "none", "apart"),
    ),
    "content is none, or beside": (
        turns("{% if m.content is not none %}{{ m.content }}{% endif %}" + JOINED),
        TEXT,
    ),
    "content is not defined": (
        turns("{% if m.content is not defined %}" + JSON + "{% else %}{{ m.content }}{% endif %}"),
        CallForm("object", "absent", "apart"),
    ),
    "content has a key": (
        turns("{% if 'content' in m %}{{ m['content'] }}{% else %}" + JOINED + "{% endif %}"),
        CallForm("text", "absent", "apart"),
    ),
    "content has a length": (turns("{% if m.content | length %}{{ m.content }}{% endif %}" + JSON), OBJECT),
    "content is not empty": (turns("{% if m['content'] != '' %}{{ m['content'] }}{% endif %}" + JOINED), TEXT),
    "content, else calls": (turns("{% if m.content %}{{ m.content }}{% else %}" + JSON + "{% endif %}"), CallForm("object", "empty", "apart")),
    "parts": (
        turns("{% for part in m.content %}{{ part.text }}{% endfor %}" + JSON).replace(
            "{% else %}{{ m['content'] }}", "{% else %}{% for p in m.content %}{{ p.text or p }}{% endfor %}"
        ),
        OBJECT,
    ),
    "only with tools": (turns("{{ m.content }}{% if tools %}" + JOINED + "{% endif %}"), TEXT),
    "joins its special token": (turns("{{ m.content + eos_token }}" + JOINED), TEXT),
}  # fmt: skip


def prompt_of(small: LoadedTokenizer, template: str, messages: tuple[JsonObject, ...]) -> str:
    renderer = make_renderer("jinja", small, max_model_len=100_000, chat_template=template)
    assert isinstance(renderer, JinjaRenderer)
    tools = tuple({"type": "function", "function": {"name": name}} for name in ("get_weather", "noop"))
    return renderer.render(Conversation(messages, tools=tools)).text or ""


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_s_form_is_found(name: str) -> None:
    source, expected = TEMPLATES[name]
    assert call_form_of(source) == expected


def spelled(value: Any) -> list[str]:
    """What must stand in a prompt for a value in arguments, however it is written: keys, strings, and numbers.

    Nulls need not: MiniMax M3's template leaves them out.
    """
    if isinstance(value, dict):
        return [*value, *(part for item in value.values() for part in spelled(item))]
    if isinstance(value, list):
        return [part for item in value for part in spelled(item)]
    return [] if value is None else [value] if isinstance(value, str) else [json.dumps(value)]


HISTORIES: dict[str, tuple[JsonObject, ...]] = {
    "one call": history(None, call("get_weather", '{"city": "Oslo"}')),
    "an empty text": history("", call("get_weather", '{"city": "Oslo"}')),
    "an empty part": history([{"type": "text", "text": ""}], call("get_weather", '{"city": "Oslo"}')),
    "two calls": history(None, call("get_weather", '{"city": "Oslo"}'), call("noop", "{}")),
    "a text and a call": history("I look.", call("get_weather", '{"city": "Oslo"}')),
    "a text and two calls": history("I look.", call("get_weather", '{"city": "Oslo"}'), call("noop", "{}")),
    "nested arguments": history(None, call("get_weather", NESTED)),
    "arguments that are an object": history(None, call("get_weather", json.loads(NESTED))),
    "no arguments": history(None, call("noop", "")),
    "malformed arguments": history(None, call("get_weather", '{"city": "Os')),
}


def assert_all_stands(prompt: str, messages: tuple[JsonObject, ...], form: CallForm) -> None:
    _, said, *results = messages
    at = 0
    for one in said["tool_calls"]:
        function = one["function"]
        at = prompt.index(function["name"], at)
        arguments = function["arguments"]
        try:
            known = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            known = {}
        missing = [part for part in spelled(known) if part not in prompt[at:]]
        assert not missing
        if form.arguments == "text" and isinstance(arguments, str):
            assert (arguments or "{}") in prompt[at:]
    for result in results:
        assert result["content"] in prompt[at:]
    if isinstance(said["content"], str):
        assert said["content"] in prompt
    assert "None" not in prompt and "'city'" not in prompt


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_names_arguments_and_results_stand_in_the_prompt(small: LoadedTokenizer, name: str, kind: str) -> None:
    source, form = TEMPLATES[name]
    assert_all_stands(prompt_of(small, source, HISTORIES[kind]), HISTORIES[kind], form)


@pytest.mark.parametrize("kind", ["no arguments", "malformed arguments"])
@pytest.mark.parametrize("name", ["either", "to JSON"])
def test_empty_and_malformed_arguments_are_an_empty_object_in_json(
    small: LoadedTokenizer, name: str, kind: str
) -> None:
    assert ":{}>" in prompt_of(small, TEMPLATES[name][0], HISTORIES[kind])


def test_a_text_that_cannot_stand_beside_calls_comes_before_them(small: LoadedTokenizer) -> None:
    source, _ = TEMPLATES["content is none"]
    assert prompt_of(small, source, HISTORIES["a text and a call"]) == (
        '[user]Weather?[assistant]I look.[assistant]<get_weather:{"city": "Oslo"}>[tool]result of get_weather'
    )


def test_a_text_that_a_template_leaves_out_or_refuses_costs_no_call(small: LoadedTokenizer) -> None:
    left_out = turns("{% if m.tool_calls %}" + JSON + "{% else %}{{ m.content }}{% endif %}")
    refused = (
        turns("{% if m.tool_calls and m.content is none %}" + JSON + "{% else %}{{ m.content }}{% endif %}")
        + "{% for m in messages %}{% if loop.index0 % 2 == 1 and m.role != 'assistant' %}{{ raise_exception('turns') }}"
        "{% endif %}{% endfor %}{% if messages | length > 3 %}{{ raise_exception('turns') }}{% endif %}"
    )
    assert call_form_of(left_out) == CallForm()
    assert call_form_of(refused) == CallForm(no_content="none", text_beside="dropped")
    for source in (left_out, refused):
        prompt = prompt_of(small, source, HISTORIES["a text and a call"])
        assert '<get_weather:{"city": "Oslo"}>' in prompt and "I look." not in prompt


@pytest.mark.parametrize(
    "source",
    [turns("{{ m.content }}"), "{% for %}", "{{ raise_exception('no') }}", "{{ messages[9].content + 1 }}", ""],
)
def test_a_template_that_writes_no_calls_has_no_form(source: str) -> None:
    assert call_form_of(source) is None


def test_a_template_is_asked_once_and_only_about_calls(small: LoadedTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    probe = forms._probe

    def counted(source: str, *rest: Any) -> str:
        asked.append(source)
        return probe(source, *rest)

    monkeypatch.setattr(forms, "_probe", counted)
    source = turns("{{ m.content }}" + JOINED + "{# its own #}")
    prompt_of(small, source, (USER,))
    assert asked == []
    prompt_of(small, source, HISTORIES["one call"])
    once = len(asked)
    assert 0 < once < 20
    prompt_of(small, source, HISTORIES["two calls"])
    assert len(asked) == once


REAL = {
    "deepseek-r1": TEXT,
    "deepseek-v3": CallForm("text", "none", "apart"),
    "deepseek-v3.1": TEXT,
    "gemma3": None,
    "glm-4.5v": OBJECT,
    "glm-4.7-flash": OBJECT,
    "glm-5": OBJECT,
    "glm-5.2": OBJECT,
    "llama3.1": None,
    "minimax": OBJECT,
    "minimax-m3": OBJECT,
    "qwen3": OBJECT,
    "qwen3.5": OBJECT,
    "r1-distill-llama": CallForm("text", "none", "apart"),
}
"""Published templates, and the forms that they take; None for those that know no calls."""


@pytest.mark.parametrize("name", REAL)
def test_a_published_template_writes_every_history(small: LoadedTokenizer, name: str) -> None:
    folder = TOKENIZERS / name
    if not folder.exists():
        pytest.skip("the tokenizer is not there")
    own = folder / "chat_template.jinja"
    source = (
        own.read_text() if own.exists() else json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    )
    form = call_form_of(source)
    assert form == REAL[name]
    if form is not None:
        small = LoadedTokenizer(small.tokenizer, {"default": source})
        for messages in HISTORIES.values():
            renderer = make_renderer(
                "jinja", small, max_model_len=100_000, default_template_arguments={"bos_token": "<s>"}
            )
            assert_all_stands(renderer.render(Conversation(messages)).text or "", messages, form)
