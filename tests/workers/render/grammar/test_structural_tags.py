from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from workers.render.grammar.families import ALWAYS_CONSTRAINED, FAMILY_OF_PARSER, FREE_UNLESS_FORCED
from workers.render.grammar.structural_tags import FAMILIES, HARMONY, HUNYUAN, KIMI_K3, build_tag

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "fa", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "fb"}},
]


def tags_in(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("type") == "tag":
            yield node
        for value in node.values():
            yield from tags_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from tags_in(value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_every_family_names_every_tool(family, choice):
    tag = build_tag(family, TOOLS, choice)
    begins = [one["begin"] for one in tags_in(tag)]
    for name in ("fa", "fb"):
        assert any(name in begin for begin in begins)
    assert not any("NAME" in begin for begin in begins)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trigger_begins_what_it_triggers(family):
    tag = build_tag(family, TOOLS, "auto")["format"]
    assert tag["type"] == "triggered_tags"
    assert all(one["begin"].startswith(tag["triggers"][0]) for one in tag["tags"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_single_call_ends_every_list(family):
    def lists(node: Any) -> Iterator[bool]:
        if isinstance(node, dict):
            if "stop_after_first" in node:
                yield node["stop_after_first"]
            for value in node.values():
                yield from lists(value)
        elif isinstance(node, list):
            for value in node:
                yield from lists(value)

    for choice in ("auto", "required"):
        assert all(lists(build_tag(family, TOOLS, choice, single=True)))
        assert not any(lists(build_tag(family, TOOLS, choice)))


def test_a_section_encloses_the_calls():
    tag = build_tag("deepseek_v3_2", TOOLS, "required")["format"]
    first, body, last = tag["elements"]
    assert first["value"] == "\n\n<｜DSML｜function_calls>\n"
    assert last["value"] == "</｜DSML｜function_calls>"
    assert [one["begin"] for one in body["tags"]] == ['<｜DSML｜invoke name="fa">\n', '<｜DSML｜invoke name="fb">\n']


def test_a_named_call_in_a_section_is_one_tag():
    tag = build_tag("deepseek_v3_1", TOOLS[:1], "named")["format"]
    assert tag["begin"] == "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>fa<｜tool▁sep｜>"
    assert tag["content"]["json_schema"] == SCHEMA


def test_loose_tools_of_a_shallow_family_keep_their_keys():
    properties = {"a": {"type": "integer"}, "b": {"enum": ["x", 1]}, "c": {"type": ["string", "null"]}}
    loose = {"function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}
    tag = build_tag("glm_4_7", [loose], "named")["format"]
    assert (tag["type"], tag["stop_after_first"]) == ("tags_with_separator", True)
    pairs = tag["tags"][0]["content"]["content"]["elements"]
    assert [pair["elements"][0]["value"] for pair in pairs] == [
        f"<arg_key>{name}</arg_key><arg_value>" for name in properties
    ]
    assert pairs[0]["elements"][1]["json_schema"] == {"type": "integer"}
    assert [one["value"] for one in pairs[1]["elements"][1]["elements"]] == ["x", "1"]
    assert [one["type"] for one in pairs[2]["elements"][1]["elements"]] == ["json_schema", "any_text"]


def test_parsers_name_families_that_there_are():
    assert set(FAMILY_OF_PARSER.values()) == {*FAMILIES, HARMONY, HUNYUAN, KIMI_K3}
    assert set(FAMILY_OF_PARSER) >= ALWAYS_CONSTRAINED | FREE_UNLESS_FORCED


def consts(node: Any) -> list[str]:
    """The literal texts of a tag, in order."""
    return [one["value"] for one in forms(node, "const_string")]


def forms(node: Any, kind: str) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("type") == kind:
            yield node
        for value in node.values():
            yield from forms(value, kind)
    elif isinstance(node, list):
        for value in node:
            yield from forms(value, kind)


ORDERED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "integer", "minimum": 1},
        "c": {"type": "string", "enum": ["x"]},
    },
    "required": ["b"],
}
STRICT: dict[str, Any] = {"type": "function", "function": {"name": 'f"&', "parameters": ORDERED, "strict": True}}


@pytest.mark.parametrize("suffix", ["", ":1a2b"])
def test_hunyuan_writes_required_keys_first_and_the_checkpoints_markers(suffix):
    tag = build_tag("hy_v4", [STRICT], "named", suffix=suffix)["format"]
    assert [tag["elements"][0]["value"], tag["elements"][2]["value"]] == [
        f"<tool_calls{suffix}>",
        f"</tool_calls{suffix}>",
    ]
    assert tag["elements"][1]["stop_after_first"] is True
    [call] = tag["elements"][1]["tags"]
    assert (call["begin"], call["end"]) == (f'<tool_call{suffix}>f"&', f"</tool_call{suffix}>")
    must, may = call["content"]["elements"]
    assert consts(must)[1] == "b" and may["type"] == "star"
    assert [consts(pair)[1] for pair in may["content"]["elements"]] == ["a", "c"]


def test_kimi_k3_holds_what_a_strict_tool_says_of_its_arguments():
    tag = build_tag("kimi_k3", [STRICT], "required")["format"]
    [call] = tag["elements"][2]["content"]["tags"]
    assert call["begin"] == '<|open|>call tool="f&quot;&amp;" index="'
    arguments = call["content"]["elements"][2]
    assert arguments["type"] == "plus"
    assert [one["begin"] for one in arguments["content"]["elements"]] == [
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>'
        for key, kind in (("a", "string"), ("b", "number"), ("c", "string"))
    ]
    text, number, word = (one["content"] for one in arguments["content"]["elements"])
    assert (text["type"], number["json_schema"], word["value"]) == ("any_text", ORDERED["properties"]["b"], "x")
    bounded = {"name": "f", "strict": True, "parameters": {"properties": {"s": {"type": "string", "maxLength": 3}}}}
    [pattern] = [
        one["pattern"]
        for one in forms(build_tag("kimi_k3", [{"function": bounded}], "required"), "regex")
        if "[^<]" in one["pattern"]
    ]
    assert pattern == "(?:[^<]|<[^|]){0,3}"


def test_kimi_k3_may_answer_where_no_call_is_forced():
    auto, forced = (build_tag("kimi_k3", TOOLS, choice)["format"]["elements"][2] for choice in ("auto", "required"))
    assert (auto["type"], auto["content"]) == ("optional", forced)
    [loose] = build_tag("kimi_k3", TOOLS[1:], "required")["format"]["elements"][2]["content"]["tags"]
    assert loose["content"]["elements"][2]["content"]["begin"] == "<|open|>argument "
