"""Published response templates, and outputs in their formats with the events that these give.

Each is the `response_template` of a tokenizer's configuration. Outputs are written as the family's chat template
writes them, and events as in the recorded cases (`tests/golden`).
"""

from __future__ import annotations

from typing import Any

CHATML = "<|im_start|>assistant\n"
THINK = {"open": "<think>", "close": "</think>", "content": "text"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
JSON_CALL = {
    "open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}  # fmt: skip
_HEADER = r"(?:<\|message_model\|>)?[^<]*<\|content_"


def template(anchor: str | list[str], **fields: dict[str, Any]) -> dict[str, Any]:
    """A template of literal anchors and fields."""
    return {"defaults": {"role": "assistant"}, "start_anchor": anchor, "fields": fields}


def _inkling(kind: str, **more: Any) -> dict[str, Any]:
    return {"open_pattern": rf"{_HEADER}{kind}\|>", "close": "<|end_message|>", "repeats": True, **more}


_AS_WRITTEN = {"join": "", "content_args": {"strip": False}}

TEMPLATES: dict[str, dict[str, Any]] = {
    "cohere": template(
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        content={"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>", "content": "text"},
        thinking={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>", "content": "text"},
        tool_calls={
            "open": "<|START_ACTION|>", "close": "<|END_ACTION|>", "content": "json", "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        },
    ),
    "ernie": template(
        "Assistant:",
        thinking={"open_pattern": r"(?:^|<think>\s*)", "close": "</think>", "content": "text"},
        content={"open": "<response>\n", "close_pattern": r"\n?</response>", "content": "text"},
        tool_calls=JSON_CALL,
    ),
    "gpt-oss": template(
        "<|start|>assistant",
        thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>", "content": "text"},
        content={"open": "<|channel|>final<|message|>", "close": ["<|end|>", "<|return|>"], "content": "text"},
        tool_calls={
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": "<|call|>", "repeats": True, "content": "json", "transform": NAMED,
        },
    ),
    "smollm3": template(CHATML, thinking=THINK, tool_calls=JSON_CALL, content={"close": "<|im_end|>", "content": "text"}),
    "qwen3": template(
        CHATML,
        thinking=THINK,
        tool_calls={**JSON_CALL, "open_pattern": r"\s*<tool_call>"} | {"open": None},
        content={"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)", "content": "text"},
    ),
    "qwen3-coder": template(
        CHATML,
        thinking=THINK,
        tool_calls={
            "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>", "close": "</tool_call>", "repeats": True,
            "content": "xml-inline", "transform": NAMED,
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
        },
    ),
    "qwen3.5": template(
        CHATML,
        thinking=THINK,
        tool_calls={
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>", "repeats": True, "content": "xml-inline", "transform": NAMED,
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
        },
        content={"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
    ),
    "gemma4": template(
        ["<|turn>model\n", "<tool_response|>"],
        thinking={"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"},
        tool_calls={
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "repeats": True,
            "content": "json", "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": NAMED,
        },
        content={"close": ["<turn|>", "<|tool_response>", "<eos>"], "content": "text"},
    ),
    "inkling": template(
        "<|message_model|>",
        thinking=_inkling("thinking", **_AS_WRITTEN),
        content=_inkling("text", **_AS_WRITTEN),
        tool_calls=_inkling(
            "invoke_tool_json", content="json",
            transform={"type": "function", "function": {"name": "{content.name}", "arguments": "{content.args}"}},
        ),
    ),
    "granite4": template(
        "<|start_of_role|>assistant<|end_of_role|>",
        thinking=THINK, tool_calls=JSON_CALL, content={"close": "<|end_of_text|>", "content": "text"},
    ),
    "tagged arguments": {
        "start_anchor_pattern": r"<\|turn\|>bot",
        "fields": {
            "thinking": {"open_pattern": r"(?:<\|turn\|>bot)?<\|think\|>", "close": "<|done|>", "content": "text"},
            "content": {"open_pattern": r"(?:<\|turn\|>bot)?<\|say\|>", "close": "<|done|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"(?:<\|turn\|>bot)?<\|tool\|>(?P<name>[A-Za-z_][A-Za-z0-9_.]*)<\|args\|>",
                "close": ["<|done|>", "<|eos|>"], "repeats": True, "content": "xml-inline", "transform": NAMED,
                "content_args": {
                    "tag_pattern": '<arg name="(?P<key>[^"]+)">(?P<value>.*?)</arg>',
                    "value_parser": {"name": "text", "args": {"strip": False}},
                },
            },
        },
    },
}  # fmt: skip
del TEMPLATES["qwen3"]["fields"]["tool_calls"]["open"]

OSLO = ["call", "get_weather", {"city": "Oslo"}]
TYPED = ["call", "get_weather", {"city": "3", "days": 3, "where": {"lat": 59.9}}]
PING = ["call", "ping", {}]
HM, SUN = ["reasoning", "hm"], ["text", "It is 3 < 4."]
_OSLO_JSON = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
_PING_JSON = '{"name": "ping", "arguments": {}}'
_JSON_CALLS = f"<tool_call>\n{_OSLO_JSON}\n</tool_call>\n<tool_call>\n{_PING_JSON}\n</tool_call>"


def _function(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


_FUNCTIONS = _function("get_weather", city="3", days="3", where='{"lat": 59.9}') + "\n" + _function("ping")


def _tool(name: str, **values: str) -> str:
    return f"<|tool|>{name}<|args|>" + "".join(f'<arg name="{k}">{v}</arg>' for k, v in values.items()) + "<|done|>"


OUTPUTS: dict[str, list[tuple[str, list[Any]]]] = {
    "cohere": [
        ("<|START_THINKING|>hm<|END_THINKING|>\n<|START_RESPONSE|>It is 3 < 4.<|END_RESPONSE|>", [HM, SUN]),
        (
            ("<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n"
            '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Oslo"}},\n'
            '    {"tool_call_id": "1", "tool_name": "ping", "parameters": {}}\n]<|END_ACTION|>'),
            [HM, [*OSLO, "0"], [*PING, "1"]],
        ),
        (
            "<|START_RESPONSE|>not <|START_ACTION|>[] here<|END_RESPONSE|>",
            [["text", "not <|START_ACTION|>[] here"]],
        ),
    ],
    "ernie": [
        ("hm</think>\n\n<response>\nIt is 3 < 4.\n</response>\n", [HM, SUN]),
        ("<think>hm</think>\n\n" + _JSON_CALLS + "\n", [HM, OSLO, PING]),
        ("hm</think><response>\nline\n\n</response>", [HM, ["text", "line\n"]]),
    ],
    "gpt-oss": [
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 3 < 4.", [HM, SUN]),
        (
            ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
            '<|constrain|>json<|message|>{"city": "Oslo"}<|call|>'),
            [HM, OSLO],
        ),
        ("<|channel|>commentary to=functions.ping<|message|>{}", [PING]),
    ],
    "smollm3": [
        ("<think>\nhm\n</think>\n\nIt is 3 < 4.<|im_end|>", [["reasoning", "\nhm\n"], ["text", "\n\nIt is 3 < 4."]]),
        ("<think>hm</think>\n" + _JSON_CALLS, [HM, OSLO, PING]),
        ("<think>a <tool_call>{} b</think>yes", [["reasoning", "a <tool_call>{} b"], ["text", "yes"]]),
    ],
    "qwen3": [
        ("<think>hm</think>It is 3 < 4.<|im_end|>", [HM, SUN]),
        ("Sure.\n" + _JSON_CALLS + "<|im_end|>", [["text", "Sure.\n"], OSLO, PING]),
    ],
    "qwen3-coder": [
        ("<think>hm</think>It is 3 < 4.", [HM, SUN]),
        ("<think>hm</think>\n\n" + _FUNCTIONS, [HM, TYPED, PING]),
        ("<tool_call>\nno call</tool_call>", [["text", "<tool_call>\nno call</tool_call>"]]),
    ],
    "qwen3.5": [
        ("<think>hm</think>It is 3 < 4.<|im_end|>", [HM, SUN]),
        ("<think>hm</think>\n\n" + _FUNCTIONS + "<|im_end|>", [HM, TYPED, PING]),
    ],
    "gemma4": [
        ("<|channel>thought\nhm<channel|>It is 3 < 4.<turn|>", [HM, SUN]),
        ('<|tool_call>call:get_weather{city:<|"|>3<|"|>,days:3,where:{lat:59.9}}<tool_call|>', [TYPED]),
        ("Let me see.<|tool_call>call:ping{}<tool_call|><|tool_response>", [["text", "Let me see."], PING]),
    ],
    "inkling": [
        ("<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>It is 3 < 4.<|end_message|>", [HM, SUN]),
        (
            ("<|content_text|>a<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>"
            '{"name": "get_weather", "args": {"city": "Oslo"}}<|end_message|>'
            '<|message_model|><|content_invoke_tool_json|>{"name": "ping", "args": {}}<|end_message|>'),
            [["text", "a"], OSLO, PING],
        ),
    ],
    "granite4": [
        ("<think>hm</think>It is 3 < 4.<|end_of_text|>", [HM, SUN]),
        (_JSON_CALLS + "<|end_of_text|>", [OSLO, PING]),
    ],
    "tagged arguments": [
        ("<|think|>hm<|done|><|turn|>bot<|say|>It is 3 < 4.<|done|>", [HM, SUN]),
        (
            "<|tool|>get_weather<|args|>" + '<arg name="city">3</arg><arg name="days">3</arg>'
            '<arg name="where">{"lat": 59.9}</arg><|done|>' + "<|turn|>bot" + _tool("ping"),
            [TYPED, PING],
        ),
        (_tool("get_weather", city=" a\nb "), [["call", "get_weather", {"city": " a\nb "}]]),
    ],
}  # fmt: skip
"""Template → outputs with their events."""

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"version": 2}, "version 2"),
    ({"fields": {}}, "no fields"),
    (template("a", content={}), "no field tool_calls"),
    (template("a", tool_calls=JSON_CALL), "no field thinking"),
    (template("a", thinking=THINK, tool_calls=JSON_CALL, citations={"open": "<c>"}), "fields citations"),
    (template("a", thinking={**THINK, "opening": "x"}, tool_calls=JSON_CALL), "thinking: opening"),
    (template("a", thinking={"open_pattern": "x+"}, tool_calls=JSON_CALL), r"thinking.open_pattern: '\+'"),
    (template("a", thinking={"open_pattern": "(?=x)y"}, tool_calls=JSON_CALL), r"thinking.open_pattern: '\(\?=x\)y'"),
    (template("a", thinking={**THINK, "join": "\n"}, tool_calls=JSON_CALL), "transform and join are not supported"),
    (template("a", thinking={**THINK, "content_args": {"strip_prefix": "x"}}, tool_calls=JSON_CALL), "strip_prefix"),
    (template("a", thinking=THINK, tool_calls={"content": "json"}), "tool_calls.open"),
    (template("a", thinking=THINK, tool_calls={"open": "<c>", "content": "kv-lines"}), "tool_calls.content: kv-lines"),
    (
        template("a", thinking=THINK, tool_calls={"open": "<c>", "close": "</c>", "content": "xml-inline"}),
        "tags need a name",
    ),
    (
        template(
            "a",
            thinking=THINK,
            tool_calls={
                "open_pattern": "<c (?P<name>.+)>",
                "close": "</c>",
                "content": "xml-inline",
                "transform": NAMED,
            },
        ),
        "tags need a pattern",
    ),
    (
        template("a", thinking=THINK, tool_calls={**JSON_CALL, "content_args": {"prefix": "{"}}),
        "tool_calls.content_args: prefix",
    ),
    (
        template(
            "a",
            thinking=THINK,
            tool_calls={**JSON_CALL, "transform": {"function": {"name": "{content.tool}", "arguments": "{content.x}"}}},
        ),
        "tool_calls.transform: calls may have name and arguments",
    ),
]
"""Templates that a table cannot express, and what the error names."""
