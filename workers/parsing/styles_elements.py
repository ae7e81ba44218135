"""Argument style for nested elements, with a namespace marker before each tag (MiniMax M3).

    ]<]minimax[>[<city>Oslo]<]minimax[>[</city>
    ]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[</tags>

An element with child elements is an object, or an array if the schema says so. The parent's closing tag ends the body.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from workers.parsing.partial_json import MAX_DEPTH, Status
from workers.parsing.styles_json import MAX_NAME, Call, Typing

_WORD = re.compile(r"\S")
Element = str | list[tuple[str, Any]]


@cache
def _tags(namespace: str) -> re.Pattern[str]:
    return re.compile(re.escape(namespace) + r"<(/?)([^<>]*)>")


@dataclass(frozen=True, slots=True)
class Elements:
    """namespace: the marker before each tag. parent: the element whose closing tag ends the body."""

    namespace: str
    parent: str
    typing: Typing

    # t: the open argument's text; at: how far its tags have been counted; d: the nesting depth there;
    # n: arguments written.
    def begin(self, name: str | None) -> dict[str, Any]:
        return {"t": "", "at": 0, "d": 0, "n": 0}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        held = state["t"]
        text, offset = held + text[at:], at - len(held)
        base = 0
        tags = _tags(self.namespace)
        counted = state["at"]
        while True:
            if not state["d"] and counted == base:
                word = _WORD.search(text, base)
                if word is None:
                    state.update(t=text[base:], at=0)
                    return offset + len(text), Status.MORE
                if not self._may_begin(text[word.start() :]):
                    state.update(t=text[base : max(len(held), base)], at=0)
                    return offset + max(word.start(), len(held)), Status.FAIL
            tag = tags.search(text, counted)
            if tag is None:
                state.update(t=text[base:], at=counted - base)
                return offset + len(text), Status.MORE
            closes, name = tag.groups()
            if closes and not state["d"]:
                if name.split(" ")[0] != self.parent:
                    return self._fail(state, text, base, held, offset, tag.end())
                call.add_arguments("}" if state["n"] else "{}")
                state.update(t="", at=0)
                return offset + tag.end(), Status.DONE
            if not closes and (len(name) > MAX_NAME or not name.strip() or state["d"] >= MAX_DEPTH):
                return self._fail(state, text, base, held, offset, tag.end())
            state["d"] += -1 if closes else 1
            counted = tag.end()
            if closes and not state["d"]:
                parsed = _parse(text[base : tag.end()].strip(), tags)
                if parsed is None:
                    return self._fail(state, text, base, held, offset, tag.end())
                self._add_argument(state, *parsed, call)
                base = counted

    def _fail(
        self, state: dict[str, Any], text: str, base: int, held: str, offset: int, end: int
    ) -> tuple[int, Status]:
        state.update(t=text[base:end], at=0)
        return offset + max(end, len(held)), Status.FAIL

    def _may_begin(self, text: str) -> bool:
        start = self.namespace + "<"
        return text.startswith(start) or start.startswith(text)

    def _add_argument(self, state: dict[str, Any], key: str, value: Element, call: Call) -> None:
        schema = call.schema_of(key)
        opening = "{" if state["n"] == 0 else ", "
        call.add_arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: {self.typing(value, schema)}")
        state["n"] += 1

    def begun(self, state: dict[str, Any]) -> bool:
        return bool(state["n"] or state["d"] or state["t"].strip())

    def in_string(self, state: dict[str, Any]) -> bool:
        return False

    def held(self, state: dict[str, Any]) -> str:
        return str(state["t"])

    def whole(self, state: dict[str, Any]) -> bool:
        return False

    def sure(self, state: dict[str, Any]) -> bool:
        return True


def _parse(text: str, tags: re.Pattern[str]) -> tuple[str, Element] | None:
    """Parse a text that is one element: its name, and its text or child elements; None if it is anything else."""
    stack: list[tuple[str, list[tuple[str, Any]], str]] = [("", [], "")]
    at = 0
    for tag in tags.finditer(text):
        closes, name = tag.groups()
        between = text[at : tag.start()]
        at = tag.end()
        if not closes:
            stack.append((name, [], ""))
            continue
        opened, children, _ = stack.pop()
        if opened != name or not stack:
            return None
        stack[-1][1].append((name, children if children else between))
    if len(stack) != 1 or len(stack[0][1]) != 1 or at != len(text):
        return None
    return stack[0][1][0]
