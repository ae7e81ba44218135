"""Structural tags for gpt-oss, which writes reasoning, calls and answers as messages in channels."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.protocol.conversation import JsonObject

_CONSTRAINTS = (" json", " <|constrain|>json")
_CHANNELS = ("<|channel|>commentary", "<|channel|>analysis", "<|channel|>final")
_FINAL = "<|channel|>final{constraint}<|message|>"
_ENDS = ("<|end|>", "")
"""Empty because a stop token ends a message too, and the engine's grammar never sees it."""
_ANY: JsonObject = {"type": "any_text", "excludes": [], "max_tokens": None, "max_chars": None}


def tag_calls(tools: Sequence[tuple[str, JsonObject]], *, may_answer: bool) -> JsonObject:
    """A call of one of the tools, each a (name, argument format), after optional reasoning.

    With `may_answer`, a final answer is allowed instead.
    """
    tags = [
        _tag(begin, arguments)
        for name, arguments in tools
        for pattern in (" to=functions.{name}{channel}{constraint}", "{channel} to=functions.{name}{constraint}")
        for constraint in _CONSTRAINTS
        for channel in _CHANNELS
        for begin in (pattern.format(name=name, channel=channel, constraint=constraint) + "<|message|>",)
    ]
    if may_answer:
        tags += [_tag(_FINAL.format(constraint=constraint), _ANY) for constraint in (*_CONSTRAINTS, "")]
    return _after(("analysis", "commentary"), {"type": "or", "elements": tags})


def tag_answer(content: JsonObject) -> JsonObject:
    """A final answer in this format, after optional reasoning."""
    if content["type"] != "json_schema":
        return _after(("analysis",), _tag(_FINAL.format(constraint=""), content))
    tags = [_tag(_FINAL.format(constraint=constraint), content) for constraint in _CONSTRAINTS]
    return _after(("analysis",), {"type": "or", "elements": tags})


def _tag(begin: str, content: JsonObject) -> JsonObject:
    return {"type": "tag", "begin": begin, "content": content, "end": list(_ENDS)}


def _after(channels: Sequence[str], content: JsonObject) -> JsonObject:
    before = [
        {
            "type": "optional",
            "content": {
                "type": "sequence",
                "elements": [
                    {"type": "tag", "begin": f"<|channel|>{channel}<|message|>", "content": _ANY, "end": "<|end|>"},
                    {"type": "const_string", "value": "<|start|>assistant"},
                ],
            },
        }
        for channel in channels
    ]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": [*before, content]}}
