"""Reads one JSON value that arrives in pieces. The state is three short strings.

The output equals the input, fragment by fragment, with two exceptions: white space before the value is dropped, and raw
control characters in strings (which models write, and JSON forbids) are escaped.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum

MAX_DEPTH = 200
MAX_SCALAR = 400

_SPACE = re.compile(r"[ \t\r\n]*")
_RUN = re.compile(r'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


class Status(IntEnum):
    """A reader's status after a piece of text."""

    MORE = 0
    """All text has been read, and the value is not complete."""
    CALL = 1
    """A call is complete; there may be another. (Only argument styles return this.)"""
    DONE = 2
    """The value is complete; the text after it has not been read."""
    FAIL = 3
    """The text at this place cannot continue the value."""


class Reader:
    """One JSON value, resumable at any character.

    `stack` holds the open brackets, `expect` what may come next, and `held` the beginning of an escape, a number or a
    literal.
    """

    # expect: v value, V value or ], k key, K key or }, : colon, c comma or close, s in a string value, q in a key,
    # n in a number or literal, . complete.
    __slots__ = ("expect", "held", "stack")

    def __init__(self, stack: str = "", expect: str = "v", held: str = "") -> None:
        self.stack = stack
        self.expect = expect
        self.held = held

    def dump(self) -> list[str]:
        return [self.stack, self.expect, self.held]

    @property
    def in_string(self) -> bool:
        return self.expect in "sq"

    @property
    def begun(self) -> bool:
        return bool(self.stack) or self.expect != "v"

    def read(self, text: str, at: int) -> tuple[int, str, Status]:
        """Read `text[at:]`; returns where reading stopped, the output, and the status."""
        out: list[str] = []
        end = len(text)
        while at < end:
            expect = self.expect
            if expect in "sq":
                if self.held:
                    held = self.held + text[at]
                    if _ESCAPE.fullmatch(held):
                        out.append(held)
                        held = ""
                    elif not _ESCAPE_BEGUN.fullmatch(held):
                        return at, "".join(out), Status.FAIL
                    self.held = held
                    at += 1
                    continue
                run = _RUN.match(text, at)
                if run:
                    out.append(run[0])
                    at = run.end()
                    if at == end:
                        break
                char = text[at]
                if char == '"':
                    out.append(char)
                    if expect == "q":
                        self.expect = ":"
                    else:
                        self._close_value()
                        if self.expect == ".":
                            return at + 1, "".join(out), Status.DONE
                elif char == "\\":
                    self.held = char
                else:
                    out.append(json.dumps(char)[1:-1])
                at += 1
                continue
            if expect == "n":
                scalar = _SCALAR.match(text, at)
                if scalar:
                    self.held += scalar[0]
                    at = scalar.end()
                    if len(self.held) > MAX_SCALAR:
                        return at, "".join(out), Status.FAIL
                    if at == end:
                        break
                if not _SCALAR_WHOLE.fullmatch(self.held):
                    return at, "".join(out), Status.FAIL
                out.append(self.held)
                self.held = ""
                self._close_value()
                if self.expect == ".":
                    return at, "".join(out), Status.DONE
                continue
            space = _SPACE.match(text, at)
            if space and space.end() > at:
                if self.begun:
                    out.append(space[0])
                at = space.end()
                if at == end:
                    break
            char = text[at]
            if expect in "vV":
                if char == '"':
                    self.expect = "s"
                elif char in "{[":
                    if len(self.stack) >= MAX_DEPTH:
                        return at, "".join(out), Status.FAIL
                    self.stack += char
                    self.expect = "K" if char == "{" else "V"
                elif char == "]" and expect == "V":
                    self._pop()
                elif char in "-0123456789tfn":
                    self.expect = "n"
                    continue
                else:
                    return at, "".join(out), Status.FAIL
            elif expect in "kK":
                if char == '"':
                    self.expect = "q"
                elif char == "}" and expect == "K":
                    self._pop()
                else:
                    return at, "".join(out), Status.FAIL
            elif expect == ":":
                if char != ":":
                    return at, "".join(out), Status.FAIL
                self.expect = "v"
            elif expect == "c":
                if char == ",":
                    self.expect = "k" if self.stack[-1] == "{" else "v"
                elif char == ("}" if self.stack[-1] == "{" else "]"):
                    self._pop()
                else:
                    return at, "".join(out), Status.FAIL
            out.append(char)
            at += 1
            if self.expect == ".":
                return at, "".join(out), Status.DONE
        return at, "".join(out), Status.MORE

    def _close_value(self) -> None:
        self.expect = "c" if self.stack else "."

    def _pop(self) -> None:
        self.stack = self.stack[:-1]
        self._close_value()
