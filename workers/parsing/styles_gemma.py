"""Gemma's argument style: keys without quotes, strings between special markers.

{city:<|"|>Oslo<|"|>,days:3,tags:[<|"|>a<|"|>],where:{lat:59.9}}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from workers.parsing.partial_json import MAX_DEPTH, MAX_SCALAR, Status
from workers.parsing.styles_json import MAX_NAME, Call

_SPACE = re.compile(r"[ \t\r\n]*")
_KEY = re.compile(r"[^:,{}\[\]<]+")
_BARE = re.compile(r"[^,{}\[\]<:]+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


@dataclass(frozen=True, slots=True)
class GemmaObject:
    """quote: the marker on both sides of a string."""

    quote: str

    # p: v before a value, V before a value or ], k before a key, K before a key or }, n in a key, q in a quoted key,
    # : before the colon, b in a bare value, s in a string, c comma or close, . complete.
    # s: open brackets. t: a key, a bare value, or the beginning of a quote.
    def begin(self, name: str | None) -> dict[str, Any]:
        return {"p": "v", "s": "", "t": "", "h": ""}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        held = state["h"]
        if not held:
            return self._feed(state, text, at, call)
        state["h"] = ""
        stopped, status = self._feed(state, held + text[at:], 0, call)
        if status is Status.FAIL and stopped < len(held):
            state["h"] = held[stopped:]
        return at + max(stopped - len(held), 0), status

    def _feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        end = len(text)
        while at < end:
            phase = state["p"]
            if phase == "s" or phase == "q":
                close = text.find(self.quote, at)
                stop = close if close >= 0 else end - self._overlap(text, at)
                if phase == "s":
                    if stop > at:
                        call.add_arguments(json.dumps(text[at:stop], ensure_ascii=False)[1:-1])
                else:
                    state["t"] += text[at:stop]
                    if len(state["t"]) > MAX_NAME:
                        return stop, Status.FAIL
                if close < 0:
                    state["h"] = text[stop:]
                    return end, Status.MORE
                at = close + len(self.quote)
                if phase == "s":
                    call.add_arguments('"')
                    state["p"] = "c"
                else:
                    self._key(state, call)
                continue
            if phase == "n" or phase == "b":
                run = (_KEY if phase == "n" else _BARE).match(text, at)
                if run:
                    state["t"] += run[0]
                    at = run.end()
                    if len(state["t"]) > MAX_SCALAR:
                        return at, Status.FAIL
                    if at == end:
                        break
                if phase == "n":
                    if text[at] != ":":
                        return at, Status.FAIL
                    self._key(state, call)
                elif text[at] not in ",}]":
                    return at, Status.FAIL
                else:
                    word = state["t"].strip()
                    call.add_arguments(word if _SCALAR.fullmatch(word) else json.dumps(word, ensure_ascii=False))
                    state.update(p="c", t="")
                continue
            space = _SPACE.match(text, at)
            if space and space.end() > at:
                at = space.end()
                continue
            char = text[at]
            if phase in "vVkK" and self.quote.startswith(text[at : at + len(self.quote)]):
                if end - at < len(self.quote):
                    state["h"] = text[at:]
                    return end, Status.MORE
                if not state["s"]:
                    return at, Status.FAIL
                at += len(self.quote)
                if phase in "vV":
                    call.add_arguments('"')
                state.update(p="s" if phase in "vV" else "q", t="")
                continue
            if phase in "vV" and char in "{[":
                if (not state["s"] and char == "[") or len(state["s"]) >= MAX_DEPTH:
                    return at, Status.FAIL
                call.add_arguments(char)
                state.update(p="K" if char == "{" else "V", s=state["s"] + char)
            elif char in "}]" and phase in "KVc":
                if (phase == "K") != (char == "}") and phase != "c":
                    return at, Status.FAIL
                if state["s"][-1] != ("{" if char == "}" else "["):
                    return at, Status.FAIL
                call.add_arguments(char)
                state.update(p="c", s=state["s"][:-1])
                if not state["s"]:
                    state["p"] = "."
                    return at + 1, Status.DONE
            elif phase == "c" and char == ",":
                call.add_arguments(", ")
                state["p"] = "k" if state["s"][-1] == "{" else "v"
            elif phase == ":" and char == ":":
                call.add_arguments(": ")
                state["p"] = "v"
            elif phase in "kK" and char not in ":,{}[]<":
                state.update(p="n", t="")
                continue
            elif phase in "vV" and state["s"] and char not in ":,{}[]<":
                state.update(p="b", t="")
                continue
            else:
                return at, Status.FAIL
            at += 1
        return at, Status.MORE

    def _key(self, state: dict[str, Any], call: Call) -> None:
        call.add_arguments(json.dumps(state["t"].strip(), ensure_ascii=False))
        state.update(p=":", t="")

    def _overlap(self, text: str, at: int) -> int:
        """The number of characters at the end of the text that may begin the quote."""
        for size in range(min(len(self.quote) - 1, len(text) - at), 0, -1):
            if text.endswith(self.quote[:size]):
                return size
        return 0

    def begun(self, state: dict[str, Any]) -> bool:
        return bool(state["p"] != "v" or state["s"] or state["h"])

    def in_string(self, state: dict[str, Any]) -> bool:
        return state["p"] in ("s", "q")

    def held(self, state: dict[str, Any]) -> str:
        return f"{state['t']}{state['h']}"

    def whole(self, state: dict[str, Any]) -> bool:
        return False

    def may_end(self, state: dict[str, Any]) -> bool:
        return False

    def sure(self, state: dict[str, Any]) -> bool:
        return True
