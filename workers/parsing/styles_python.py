"""Argument style of calls written in Python: `[get_weather(city="Oslo", days=3), ping()]`, or one call on each line.

Only keyword arguments with literal values are calls; anything else is text that looks like one.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from workers.parsing.partial_json import Status
from workers.parsing.styles_json import MAX_NAME, Call

_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*\Z")
_KEY = re.compile(r"[^\W\d]\w*\Z")
_WORD = re.compile(r"[\w.\-]+")
_QUIET = re.compile(r"""[^'"\\,()\[\]{}]+""")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_JSON_NAMES = {"true": "True", "false": "False", "null": "None"}
_NAMES = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\b(true|false|null)\b""", re.DOTALL)


def python_json(text: str) -> str | None:
    """The JSON of a Python literal (JSON's own true, false and null count as such); None if it is none."""
    source = _NAMES.sub(lambda match: match[1] or _JSON_NAMES[match[2]], text.strip().replace("\r", ""))
    try:
        return json.dumps(ast.literal_eval(_one_line(source)), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _one_line(source: str) -> str:
    """Line feeds inside strings, which models write and Python forbids, as escapes."""
    if "\n" not in source:
        return source
    return re.sub(
        r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", lambda m: m[0].replace("\n", "\\n"), source, flags=re.DOTALL
    )


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """opens, closes: the brackets around all calls, or "" where calls stand by themselves, one a line."""

    opens: str = "["
    closes: str = "]"

    # p: ^ before the opening bracket, f before a name, F before a name or the end, n in a name, k before a key or ),
    # K before a key, i in a key, v in a value, "," after a call. s: open brackets of a value. q: its open quote.
    def begin(self, name: str | None) -> dict[str, Any]:
        return {"p": "^" if self.opens else "f", "m": "", "k": "", "t": "", "s": "", "q": "", "n": 0}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        end = len(text)
        while at < end:
            phase = state["p"]
            if phase == "v":
                at, status = self._value(state, text, at, call)
                if status is not Status.DONE:
                    return at, status
                if state["p"] == ",":
                    return at, Status.CALL
                continue
            if phase in "ni":
                word = _WORD.match(text, at)
                if word:
                    state["t"] += word[0]
                    at = word.end()
                    if len(state["t"]) > MAX_NAME:
                        return at, Status.FAIL
                    if at == end:
                        break
                if phase == "n":
                    if text[at] != "(" or not _NAME.match(state["t"]):
                        return at, Status.FAIL
                    state.update(p="k", m=state["t"], t="", n=0)
                    at += 1
                    continue
            newline = text.find("\n", at)
            space = _SPACE.match(text, at)
            if space and space.end() > at:
                if phase == "," and not self.closes and at <= newline < space.end():
                    state["p"] = "F"
                at = space.end()
                continue
            char = text[at]
            if phase == "^" and char == self.opens:
                state["p"] = "f"
            elif phase in "fF" and (char.isalpha() or char == "_"):
                state.update(p="n", t="")
                continue
            elif phase in "kK" and (char.isalpha() or char == "_"):
                state.update(p="i", t="")
                continue
            elif phase == "k" and char == ")":
                return self._close(state, at, call)
            elif phase == "i" and char == "=" and _KEY.match(state["t"]):
                state.update(p="v", k=state["t"], t="", s="", q="")
            elif phase == "," and char == "," and self.closes:
                state["p"] = "F"
            elif phase in ",F" and self.closes and char == self.closes:
                return at + 1, Status.DONE
            elif phase in ",F" and not self.closes:
                return at, Status.DONE
            else:
                return at, Status.FAIL
            at += 1
        return at, Status.MORE

    def _value(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        """Read a value to its end: a comma or a closing parenthesis outside of brackets and quotes."""
        end = len(text)
        while at < end:
            char = text[at]
            if state["q"]:
                if state["q"][-1] == "\\":
                    state["q"] = state["q"][0]
                elif char == "\\":
                    state["q"] += "\\"
                elif char == state["q"]:
                    state["q"] = ""
                state["t"] += char
                at += 1
                if state["q"]:
                    stop = _quiet_end(text, at, state["q"]) if len(state["q"]) == 1 else at
                    state["t"] += text[at:stop]
                    at = stop
                continue
            quiet = _QUIET.match(text, at)
            if quiet:
                state["t"] += quiet[0]
                at = quiet.end()
                continue
            if char in "'\"":
                state["q"] = char
            elif char in _CLOSERS:
                state["s"] += char
            elif char in ",)" and not state["s"]:
                value = python_json(state["t"])
                if value is None:
                    return at, Status.FAIL
                # Only now is it a call for sure: "[see note (1)]" and "[f(a=b)]" begin like one.
                if not state["n"]:
                    call.begin(state["m"])
                opening = "{" if state["n"] == 0 else ", "
                call.argue(f"{opening}{json.dumps(state['k'], ensure_ascii=False)}: {value}")
                state.update(p="K", t="", n=state["n"] + 1)
                if char == ")":
                    return self._close(state, at, call)[0], Status.DONE
                return at + 1, Status.DONE
            elif char in ")]}":
                if not state["s"] or _CLOSERS[state["s"][-1]] != char:
                    return at, Status.FAIL
                state["s"] = state["s"][:-1]
            elif char == "\\":
                return at, Status.FAIL
            state["t"] += char
            at += 1
        return at, Status.MORE

    def _close(self, state: dict[str, Any], at: int, call: Call) -> tuple[int, Status]:
        if not state["n"]:
            call.begin(state["m"])
        call.argue("}" if state["n"] else "{}")
        state.update(p=",", t="")
        return at + 1, Status.CALL

    def begun(self, state: dict[str, Any]) -> bool:
        return bool(state["p"] != ("^" if self.opens else "f"))

    def in_string(self, state: dict[str, Any]) -> bool:
        return state["p"] == "v" and bool(state["q"])

    def held(self, state: dict[str, Any]) -> str:
        return str(state["t"])

    def whole(self, state: dict[str, Any]) -> bool:
        return state["p"] == "," or (state["p"] == "F" and not self.closes)

    def sure(self, state: dict[str, Any]) -> bool:
        return bool(state["m"])


def _quiet_end(text: str, at: int, quote: str) -> int:
    """Where the part of a string that needs no thought ends."""
    close = text.find(quote, at)
    escape = text.find("\\", at)
    ends = [place for place in (close, escape) if place >= 0]
    return min(ends) if ends else len(text)
