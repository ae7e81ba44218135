"""Argument styles whose body is JSON.

`JsonObject`: the body is the arguments, `{"city": "Oslo"}`; the name came before it.
`JsonCalls`: the body holds name and arguments, `{"name": "get_weather", "arguments": {"city": "Oslo"}}`, once or in a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from workers.parsing.partial_json import Reader, Status

MAX_NAME = 256
_SPACE = re.compile(r"[ \t\r\n]*")


class Call(Protocol):
    """The call being read, as far as an argument style may use it."""

    @property
    def begun(self) -> bool: ...
    def begin(self, name: str, call_id: str | None = None) -> None: ...
    def add_arguments(self, fragment: str) -> None: ...
    def schema_of(self, key: str) -> Any:
        """The JSON schema of an argument, for styles that type nested values; None if it has none."""


Typing = Callable[[Any, Any], str]
"""(an element's text or elements, its schema) → JSON."""


class Body(Protocol):
    """An argument style: reads a call's body from chunks of any size; its state is a JSON object."""

    def begin(self, name: str | None) -> dict[str, Any]:
        """The state before the first character; `name` is set if the request forces one function."""
        ...

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        """Read `text[at:]` and update `state`; returns where reading stopped, and the status."""
        ...

    def begun(self, state: dict[str, Any]) -> bool:
        """Whether anything but white space has been read."""
        ...

    def in_string(self, state: dict[str, Any]) -> bool:
        """Whether the next character is inside a string, where everything is data."""
        ...

    def held(self, state: dict[str, Any]) -> str:
        """Text that has been read but is in no argument fragment yet."""
        ...

    def whole(self, state: dict[str, Any]) -> bool:
        """Whether the output may end here without cutting off a call."""
        ...

    def may_end(self, state: dict[str, Any]) -> bool:
        """Whether a marker that follows here ends the body, and the call if one is open."""
        ...

    def sure(self, state: dict[str, Any]) -> bool:
        """Whether the text since the last call is certain to begin another call, and does not just look like one."""
        ...


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The arguments themselves, as one JSON object."""

    def begin(self, name: str | None) -> dict[str, Any]:
        return {"r": Reader().dump(), "n": name}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        reader = Reader(*state["r"])
        if not reader.begun:
            space = _SPACE.match(text, at)
            at = space.end() if space else at
            if at == len(text):
                return at, Status.MORE
            if text[at] != "{":
                return at, Status.FAIL
            if not call.begun:
                call.begin(state["n"] or "")
        at, out, status = reader.read(text, at)
        state["r"] = reader.dump()
        if out:
            call.add_arguments(out)
        return at, status

    def begun(self, state: dict[str, Any]) -> bool:
        return Reader(*state["r"]).begun

    def in_string(self, state: dict[str, Any]) -> bool:
        return Reader(*state["r"]).in_string

    def held(self, state: dict[str, Any]) -> str:
        return str(state["r"][2])

    def whole(self, state: dict[str, Any]) -> bool:
        return False

    def may_end(self, state: dict[str, Any]) -> bool:
        return False

    def sure(self, state: dict[str, Any]) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """`{"name": NAME, "arguments": {...}}`, keys in any order.

    shape: "one" object, a "list" of them, or "either".
    between: the separator of calls outside a list (Llama's ";"), or "" if there is only one call.
    known: other keys that a call may have; None allows any key.
    """

    shape: str = "one"
    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    between: str = ""
    known: tuple[str, ...] | None = None

    # p, the phase: ^ before the body, { before an object, K key or }, k key, q in a key, : colon, v before a value,
    # V in a value, c comma or }, "," after an object of a list, whose call ends with what follows it: a call list that is
    # cut before its end is no call; "]" before the list's end, ; after an object of no list, . complete.
    # w, what the value is: n name, i id, a arguments, s arguments as a string, z null for arguments, x ignored.
    def begin(self, name: str | None) -> dict[str, Any]:
        return {"p": "^", "list": False, **self._empty()}

    @staticmethod
    def _empty() -> dict[str, Any]:
        return {"r": ["", "v", ""], "w": "x", "t": "", "n": "", "i": None, "a": "", "done": False}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        end = len(text)
        while at < end:
            phase = state["p"]
            if phase == "q" or phase == "V":
                at, status = self._read(state, text, at, call)
                if status is not Status.DONE:
                    return at, status
                continue
            space = _SPACE.match(text, at)
            if space and space.end() > at:
                at = space.end()
                continue
            char = text[at]
            if phase == "^" and char == "[" and self.shape != "one":
                state["list"], state["p"] = True, "{["
            elif (phase == "^" and self.shape != "list") or phase[0] == "{":
                if char == "]" and phase == "{[":
                    return at + 1, Status.DONE
                if char != "{":
                    return at, Status.FAIL
                state.update(self._empty(), p="K")
            elif phase in "kK":
                if char == '"':
                    state.update(p="q", r=["", "v", ""], t="")
                    continue
                if char != "}" or phase == "k":
                    return at, Status.FAIL
                at, status = self._close(state, at, call)
                if status is not Status.MORE:
                    return at, status
                continue
            elif phase == ":":
                if char != ":":
                    return at, Status.FAIL
                state["p"] = "v"
            elif phase == "v":
                if not self._choose(state, char):
                    return at, Status.FAIL
                continue
            elif phase == "c":
                if char == "}":
                    at, status = self._close(state, at, call)
                    if status is not Status.MORE:
                        return at, status
                    continue
                if char != ",":
                    return at, Status.FAIL
                state["p"] = "k"
            elif phase == ",":
                state.update(self._empty(), p={",": "{", "]": "]"}.get(char, "."))
                return at + (char == ","), Status.CALL
            elif phase == "]":
                return at + 1, Status.DONE
            elif phase == ".":
                return at, Status.DONE
            elif phase == ";" and char == self.between:
                state["p"] = "{"
            else:
                return at, Status.DONE if phase == ";" else Status.FAIL
            at += 1
        return at, Status.MORE

    def _choose(self, state: dict[str, Any], char: str) -> bool:
        """Decide what to read the value that begins with `char` as; False if the key does not allow it."""
        key, what = state["k"], "x"
        if key in self.name and not state["n"]:
            what = "n" if char == '"' else ""
        elif key in self.arguments and not state["done"]:
            what = {"{": "a", '"': "s", "n": "z"}.get(char, "")
        elif key in self.ids and char == '"':
            what = "i"
        state.update(p="V", w=what, r=["", "v", ""], t="")
        return bool(what)

    def _begin(self, state: dict[str, Any], call: Call) -> None:
        """Begin the call with its arguments, not with its name: until then it may turn out not to be a call."""
        if state["n"] and not call.begun:
            call.begin(state["n"], state["i"])
            if state["a"]:
                call.add_arguments(state["a"])
                state["a"] = ""

    def _read(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        reader = Reader(*state["r"])
        at, out, status = reader.read(text, at)
        state["r"] = reader.dump()
        what = "q" if state["p"] == "q" else state["w"]
        if what == "a":
            self._begin(state, call)
            if call.begun:
                call.add_arguments(out)
            else:
                state["a"] += out
        elif what != "x":
            state["t"] += out
            if what in "qni" and len(state["t"]) > MAX_NAME:
                return at, Status.FAIL
        if status is not Status.DONE:
            return at, status
        if what == "q":
            state["k"] = key = json.loads(state["t"])
            if self.known is not None and key not in self.name + self.arguments + self.ids + self.known:
                return at, Status.FAIL
            state.update(p=":", t="")
            return at, status
        if what in "sz":
            whole = "{}" if what == "z" else json.loads(state["t"]) or "{}"
            if not is_object(whole):
                return at, Status.FAIL
            self._begin(state, call)
            if call.begun:
                call.add_arguments(whole)
            else:
                state["a"] = whole
        if what in "asz":
            state["done"] = True
        elif what == "i":
            state["i"] = json.loads(state["t"])
        elif what == "n":
            state["n"] = json.loads(state["t"])
            if not state["n"].strip():
                return at, Status.FAIL
            if state["a"]:
                self._begin(state, call)
        state.update(p="c", t="")
        return at, status

    def _close(self, state: dict[str, Any], at: int, call: Call) -> tuple[int, Status]:
        if not state["n"]:
            return at, Status.FAIL
        self._begin(state, call)
        if not state["done"]:
            call.add_arguments("{}")
        if state["list"]:
            state["p"] = ","
            return at + 1, Status.MORE
        state.update(self._empty(), p=";")
        return at + 1, Status.CALL if self.between else Status.DONE

    def begun(self, state: dict[str, Any]) -> bool:
        return bool(state["p"] != "^")

    def in_string(self, state: dict[str, Any]) -> bool:
        return state["p"] in ("q", "V") and Reader(*state["r"]).in_string

    def held(self, state: dict[str, Any]) -> str:
        return f"{state['t']}{state['r'][2]}" if state["p"] in ("q", "V") else ""

    def whole(self, state: dict[str, Any]) -> bool:
        return state["p"] in ("]", ";", ".")

    def may_end(self, state: dict[str, Any]) -> bool:
        return state["p"] in (",", "]", ";", ".")

    def sure(self, state: dict[str, Any]) -> bool:
        return bool(state["n"])


@dataclass(frozen=True, slots=True)
class JsonKeyed:
    """A list of objects with one key each, the function's name: `[{"get_weather": {"city": "Oslo"}}, {"ping": {}}]`."""

    # p: ^ before the list, [ before an object or ], { before an object, K before the name, q in it, : colon,
    # v before the arguments, V in them, } before the object's end, "," after it, when what follows ends the call; "]"
    # before the list's end, . complete.
    def begin(self, name: str | None) -> dict[str, Any]:
        return {"p": "^", "r": Reader().dump(), "t": ""}

    def feed(self, state: dict[str, Any], text: str, at: int, call: Call) -> tuple[int, Status]:
        end = len(text)
        while at < end:
            phase = state["p"]
            if phase in ("q", "V"):
                reader = Reader(*state["r"])
                at, out, status = reader.read(text, at)
                state["r"] = reader.dump()
                if phase == "V":
                    call.add_arguments(out)
                else:
                    state["t"] += out
                    if len(state["t"]) > MAX_NAME:
                        return at, Status.FAIL
                if status is not Status.DONE:
                    return at, status
                if phase == "q":
                    name = json.loads(state["t"])
                    if not name.strip():
                        return at, Status.FAIL
                    call.begin(name)
                state.update(p=":" if phase == "q" else "}", t="", r=Reader().dump())
                continue
            space = _SPACE.match(text, at)
            if space and space.end() > at:
                at = space.end()
                continue
            char = text[at]
            if (phase, char) in (("K", '"'), ("v", "{")):
                state["p"] = "q" if phase == "K" else "V"
                continue
            after = {"^[": "[", "[{": "K", "{{": "K", "::": "v"}.get(phase + char)
            if after:
                state["p"] = after
            elif phase == "}" and char == "}":
                state["p"] = ","
            elif phase == ",":
                state["p"] = {",": "{", "]": "]"}.get(char, ".")
                return at + (char == ","), Status.CALL
            elif phase in "[]" and char == "]":
                return at + 1, Status.DONE
            elif phase == ".":
                return at, Status.DONE
            else:
                return at, Status.FAIL
            at += 1
        return at, Status.MORE

    def begun(self, state: dict[str, Any]) -> bool:
        return bool(state["p"] != "^")

    def in_string(self, state: dict[str, Any]) -> bool:
        return state["p"] in ("q", "V") and Reader(*state["r"]).in_string

    def held(self, state: dict[str, Any]) -> str:
        return f"{state['t']}{state['r'][2]}"

    def whole(self, state: dict[str, Any]) -> bool:
        return state["p"] in ("]", ".")

    def may_end(self, state: dict[str, Any]) -> bool:
        return state["p"] in (",", "]", ".")

    def sure(self, state: dict[str, Any]) -> bool:
        return True
