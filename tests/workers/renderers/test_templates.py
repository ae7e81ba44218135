from __future__ import annotations

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from workers.renderers.templates import compile_template, content_format_of

MACRO = "{% macro show(c) %}{% for p in c %}x{% endfor %}{% endmacro %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for p in m['content'] | list %}x{% endfor %}{% endfor %}", "openai"),
        ("{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}x{% endfor %}{% endfor %}", "openai"),
        (
            "{% set ns = namespace(m=messages) %}{% for m in ns.m %}{% for p in m.content %}x{% endfor %}{% endfor %}",
            "openai",
        ),
        (
            MACRO + "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "openai",
        ),
        (
            MACRO + "{% for m in messages %}{{ show(m.names) }}{% endfor %}",
            "string",
        ),
        (
            MACRO.replace("c)", "content)").replace("in c", "in content")
            + "{% for m in messages %}{{ show(m.names) }}{% endfor %}",
            "string",
        ),
        (
            "{% for m in messages %}{% set content = m.content %}{% for p in content %}x{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% for t in tools %}{% for p in t.content %}x{% endfor %}{% endfor %}", "string"),
        ("{% broken", "string"),
    ],
)
def test_a_template_s_content_format(source, expected):
    assert content_format_of(source) == expected


def test_the_environment_is_the_one_that_templates_expect():
    source = (
        "{% generation %}{{ {'ü': 1} | tojson }}{% endgeneration %}\n"
        "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}-"
        "{{ strftime_now('%Y') | length }}"
    )
    assert compile_template(source).render() == '{"ü": 1}1-4'


def test_templates_cannot_reach_out():
    with pytest.raises(SecurityError):
        compile_template("{{ [].__class__.__base__.__subclasses__() }}").render()
    with pytest.raises(SecurityError):
        compile_template("{{ messages.append(1) }}").render(messages=[])


def test_templates_may_refuse():
    with pytest.raises(TemplateError, match="no"):
        compile_template("{{ raise_exception('no') }}").render()
