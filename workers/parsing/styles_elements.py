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

    # t: the open argument's text; at: how far its tags have been counted; o: the names of the elements open there, and
    # whether the last tag opened one; n: arguments written.
    def begin(self, name: str | None) -> dict[str, Any]:
        return {"t": "", "at": 0, "o": [], "bare": False, "n": 0}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        held = state["t"]
        text, offset = held + text[at:], at - len(held)
        base = 0
        tags = _tags(self.namespace)
        counted, opened = state["at"], state["o"]
        while True:
            if not opened and counted == base:
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
            name = name if closes else name.removesuffix("/").rstrip()
            cut = opened and (
                # An element may lack its end: it cannot hold both text and an element, and its parent's end is its own.
                (closes and name not in opened and name.split(" ")[0] == self.parent)
                or (not closes and state["bare"] and _WORD.search(text, counted, tag.start()) and len(opened) == 1)
            )
            if cut:
                parsed = _parse(text[base : tag.start()].strip(), tags)
                if parsed is None:
                    return self._fail(state, text, base, held, offset, tag.end())
                self._add_argument(state, *parsed, call)
                opened.clear()
                base = counted = tag.start()
                continue
            if closes and not opened:
                if name.split(" ")[0] != self.parent:
                    return self._fail(state, text, base, held, offset, tag.end())
                call.add_arguments("}" if state["n"] else "{}")
                state.update(t="", at=0)
                return offset + tag.end(), Status.DONE
            if not closes and (len(name) > MAX_NAME or not name.strip() or len(opened) >= MAX_DEPTH):
                return self._fail(state, text, base, held, offset, tag.end())
            if closes:
                if name not in opened:
                    return self._fail(state, text, base, held, offset, tag.end())
                del opened[len(opened) - 1 - opened[::-1].index(name) :]
            else:
                if state["bare"] and opened and _WORD.search(text, counted, tag.start()):
                    opened.pop()
                if not tag[2].endswith("/"):
                    opened.append(name)
            state["bare"] = not closes and not tag[2].endswith("/")
            counted = tag.end()
            if not opened:
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
        return bool(state["n"] or state["o"] or state["t"].strip())

    def in_string(self, state: dict[str, Any]) -> bool:
        return bool(state["o"])

    def held(self, state: dict[str, Any]) -> str:
        return str(state["t"])

    def whole(self, state: dict[str, Any]) -> bool:
        return False

    def may_end(self, state: dict[str, Any]) -> bool:
        return False

    def sure(self, state: dict[str, Any]) -> bool:
        return True


def _parse(text: str, tags: re.Pattern[str]) -> tuple[str, Element] | None:
    """Parse a text that is one element: its name, and its text or child elements; None if it is anything else.

    An element that lacks its end ends where text follows its beginning and another one begins, or where its parent ends.
    """
    stack: list[tuple[str, list[tuple[str, Any]]]] = [("", [])]
    at, bare = 0, False

    def close(between: str) -> None:
        opened, children = stack.pop()
        stack[-1][1].append((opened, children if children else between))

    for tag in tags.finditer(text):
        closes, name = tag.groups()
        between = text[at : tag.start()]
        at = tag.end()
        if closes:
            if name not in [opened for opened, _ in stack]:
                return None
            while stack[-1][0] != name:
                close(between)
            close(between)
        else:
            if bare and _WORD.search(between):
                close(between)
            empty = name.endswith("/")
            stack.append((name.removesuffix("/").rstrip(), []))
            if empty:
                close("")
        bare = not closes and not name.endswith("/")
    while len(stack) > 1:
        close(text[at:])
        at = len(text)
    return stack[0][1][0] if len(stack[0][1]) == 1 and at == len(text) else None
