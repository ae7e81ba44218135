"""Argument style for calls in Python syntax: `[get_weather(city="Oslo", days=3), ping()]`, or one call on each line.

A call has only keyword arguments with literal values; anything else is text that looks like a call.
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
_HEX = re.compile(r"[0-9a-fA-F]+")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_JSON_NAMES = {"true": "True", "false": "False", "null": "None"}
_NAMES = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\b(true|false|null)\b""", re.DOTALL)


_PLAIN = {quote: re.compile(rf"[^\\\\{quote}]+") for quote in "'\""}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\\": "\\", "'": "'",
    '"': '"', "\n": "",
}  # fmt: skip
_CODES = {"x": 2, "u": 4, "U": 8}


def _escaped(text: str) -> str | None:
    """A Python escape as text inside a JSON string; None while it is incomplete.

    An unknown escape stays as it is, as in Python.
    """
    if len(text) < 2:
        return None
    kind = text[1]
    if kind in _CODES:
        digits = text[2:]
        if len(digits) < _CODES[kind] and (not digits or _HEX.fullmatch(digits)):
            return None
        if not _HEX.fullmatch(digits) or int(digits, 16) > 0x10FFFF:
            return _quoted(text)
        char = chr(int(digits, 16))
        return f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else _quoted(char)
    return _quoted(_ESCAPES.get(kind, text))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def python_json(text: str) -> str | None:
    """The JSON of a Python literal, which may contain JSON's true, false and null; None if it is not one."""
    source = _NAMES.sub(lambda match: match[1] or _JSON_NAMES[match[2]], text.strip().replace("\r", ""))
    try:
        return json.dumps(ast.literal_eval(_one_line(source)), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _one_line(source: str) -> str:
    """Escape the line feeds inside strings; models write them, and Python forbids them."""
    if "\n" not in source:
        return source
    return re.sub(
        r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", lambda m: m[0].replace("\n", "\\n"), source, flags=re.DOTALL
    )


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """opens, closes: the brackets around all calls, or "" if there is one call on each line."""

    opens: str = "["
    closes: str = "]"

    # p: ^ before the opening bracket, f before a name, F before a name or the end, n in a name, k before a key or ),
    # K before a key, i in a key, v in a value, s in a string, e after it, "," after a call; in brackets, what follows ends
    # the call, since a call list that is cut before its end is no call; "]" before the closing bracket, . complete. m: the
    # function. k: the key.
    # s: open brackets of a value. q: its open quote. e: whether the string is empty so far. n: arguments written.
    def begin(self, name: str | None) -> dict[str, Any]:
        return {"p": "^" if self.opens else "f", "m": "", "k": "", "t": "", "s": "", "q": "", "e": True, "n": 0}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        end = len(text)
        while at < end:
            phase = state["p"]
            if phase in "vse":
                read = self._value if phase == "v" else self._string if phase == "s" else self._after_string
                at, status = read(state, text, at, call)
                if status is not Status.DONE:
                    return at, status
                if state["p"] == "," and not self.closes:
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
            elif phase in "kK" and char == ")":
                at = self._close(state, at, call)
                if not self.closes:
                    return at, Status.CALL
                continue
            elif phase == "i" and char == "=" and _KEY.match(state["t"]):
                state.update(p="v", k=state["t"], t="", s="", q="", e=True)
            elif phase == "," and self.closes:
                state["p"] = {",": "F", self.closes: "]"}.get(char, ".")
                return at + (char == ","), Status.CALL
            elif phase in "F]" and self.closes and char == self.closes:
                return at + 1, Status.DONE
            elif phase == "." or (phase in ",F" and not self.closes):
                return at, Status.DONE
            else:
                return at, Status.FAIL
            at += 1
        return at, Status.MORE

    def _value(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        """Read a value to its end: a comma or a closing parenthesis outside of brackets and quotes."""
        end = len(text)
        if not state["t"]:
            space = _SPACE.match(text, at)
            at = space.end() if space else at
            if at < end and text[at] in "'\"":
                # A string is streamed; only the text after it can show that the value is more than a string literal.
                state.update(p="s", q=text[at], t="")
                self._name(state, call)
                call.add_arguments('"')
                return at + 1, Status.DONE
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
                self._name(state, call)
                call.add_arguments(value)
                state.update(p="K", t="")
                if char == ")":
                    return self._close(state, at, call), Status.DONE
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

    def _name(self, state: dict[str, Any], call: Call) -> None:
        """Begin the call at its first value: until then, "[see note (1)]" and "[f(a=b)]" look like calls."""
        if not state["n"]:
            call.begin(state["m"])
        opening = "{" if state["n"] == 0 else ", "
        call.add_arguments(f"{opening}{json.dumps(state['k'], ensure_ascii=False)}: ")
        state["n"] += 1

    def _string(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        """Read a string literal; `t` holds an escape, or the quotes that may end a triple-quoted one."""
        end = len(text)
        quote = state["q"][0]
        while at < end:
            held = state["t"]
            if held.startswith("\\"):
                held += text[at]
                at += 1
                decoded = _escaped(held)
                state["t"] = held if decoded is None else ""
                call.add_arguments(decoded or "")
                continue
            plain = _PLAIN[quote].match(text, at)
            if plain:
                call.add_arguments(
                    held + _quoted(plain[0]) if quote == "'" else held.replace('"', '\\"') + _quoted(plain[0])
                )
                state.update(t="", e=False)
                at = plain.end()
                continue
            char = text[at]
            at += 1
            if char == "\\":
                call.add_arguments(_quoted(held))
                state.update(t=char, e=False)
            elif held + char == state["q"]:
                state.update(p="e", t="")
                return at, Status.DONE
            else:
                state["t"] = held + char
        return at, Status.MORE

    def _after_string(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        """After a string: a comma, the call's end, or another quote that makes it a triple-quoted one."""
        if state["e"] and len(state["q"]) == 1 and text[at] == state["q"]:
            state.update(p="s", q=text[at] * 3, t="", e=False)
            return at + 1, Status.DONE
        state["e"] = False
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at == len(text):
            return at, Status.MORE
        if text[at] not in ",)":
            return at, Status.FAIL
        call.add_arguments('"')
        state.update(p="K", q="", t="")
        if text[at] == ")":
            return self._close(state, at, call), Status.DONE
        return at + 1, Status.DONE

    def _close(self, state: dict[str, Any], at: int, call: Call) -> int:
        if not state["n"]:
            call.begin(state["m"])
        call.add_arguments("}" if state["n"] else "{}")
        state.update(p=",", t="")
        return at + 1

    def begun(self, state: dict[str, Any]) -> bool:
        return bool(state["p"] != ("^" if self.opens else "f"))

    def in_string(self, state: dict[str, Any]) -> bool:
        return state["p"] == "s" or (state["p"] == "v" and bool(state["q"]))

    def held(self, state: dict[str, Any]) -> str:
        return str(state["t"])

    def whole(self, state: dict[str, Any]) -> bool:
        return state["p"] in ("]", ".") if self.closes else state["p"] in (",", "F")

    def may_end(self, state: dict[str, Any]) -> bool:
        return state["p"] in (",", "]", ".") or (state["p"] == "F" and not self.closes)

    def sure(self, state: dict[str, Any]) -> bool:
        return bool(state["m"])


def _quiet_end(text: str, at: int, quote: str) -> int:
    """The position of the next quote or escape, or the end of the text."""
    close = text.find(quote, at)
    escape = text.find("\\", at)
    ends = [place for place in (close, escape) if place >= 0]
    return min(ends) if ends else len(text)
