"""Reads one call: its name, its arguments and their values, and makes the events for them."""

from __future__ import annotations

import json
from typing import Any

from tasks.protocol.events import CallArguments, CallEnd, CallStart, ParseEvent
from workers.parsing import arguments
from workers.parsing.spec import Mode, Sink
from workers.parsing.state import ParserState

MAX_LEAD = 1024
"""Most characters of white space that are held back until it is clear whether a call or the end of a value follows."""


class CallReader:
    """One step's working copy of the open call's state; `ParserState` describes the fields."""

    __slots__ = (
        "begun_value", "body", "call", "call_id", "call_ids", "captured", "closed", "count", "events", "index", "kept",
        "key", "lead", "name", "raw", "said", "state", "value",
    )  # fmt: skip

    def __init__(self, state: ParserState, call_ids: str) -> None:
        self.state = state
        self.call_ids = call_ids
        self.events: list[ParseEvent] = []
        self.lead = state.lead
        self.said = state.said
        self.raw = state.raw
        self.call = state.call
        self.index = state.index
        self.closed = state.closed
        self.name = state.name
        self.call_id = state.call_id
        self.kept = state.kept
        self.captured = state.captured
        self.key = state.key
        self.count = state.count
        self.value = state.value
        self.begun_value = state.begun
        self.body = json.loads(json.dumps(state.body)) if state.body is not None else None

    @property
    def begun(self) -> bool:
        """Whether the call's name is known."""
        return self.call == 2

    def shown(self) -> bool:
        """Whether the client gets the call; without parallel calls, it gets only the first."""
        return self.state.parallel or self.index == 0

    def capture(self, here: Mode) -> None:
        """Store a name, an id or a key that is complete."""
        text, call_id = arguments.NAMES[here.style](self.captured)
        self.captured = ""
        if here.sink is Sink.NAME:
            self.name = text
            self.call_id = call_id or self.call_id
        elif here.sink is Sink.ID:
            self.call_id = text or None
        else:
            self.key = text

    def begin(self, name: str, call_id: str | None = None) -> None:
        """Begin the call, now that its name is known."""
        name = name.strip()
        self.name = name
        if call_id is None and self.call_ids == "kimi":
            call_id = f"functions.{name}:{self.state.history + self.index}"
        self.call_id, self.call, self.kept, self.count = call_id, 2, "", 0
        if not self.state.complete:
            self.raw = ""
            if self.shown():
                self.events.append(CallStart(self.index, name, call_id))

    def add_arguments(self, fragment: str) -> None:
        """Add the next fragment of the call's arguments."""
        if self.state.complete:
            self.kept += fragment
            return
        self.raw = ""
        if fragment and self.shown():
            self.events.append(CallArguments(self.index, fragment))

    def schema_of(self, key: str) -> Any:
        """The schema of one of the open call's arguments."""
        return self.state.types.get(self.name, {}).get(key)

    def end(self) -> None:
        """End the call, and its arguments object with it."""
        self.add_arguments("}" if self.count else "{}")
        self.close()

    def close(self) -> None:
        """End the call, whose arguments are already complete."""
        if self.shown():
            if self.state.complete:
                self.events.append(CallStart(self.index, self.name, self.call_id))
                self.events.append(CallArguments(self.index, self.kept))
            self.events.append(CallEnd(self.index))
            self.closed += 1
        self.index += 1
        self.forget()

    def forget(self) -> None:
        """Reset everything about the open call."""
        self.call, self.raw, self.kept, self.name, self.call_id, self.count = 0, "", "", "", None, 0
        self.key, self.value, self.captured, self.body, self.lead = None, "", "", None, ""

    # ---- values --------------------------------------------------------------------------------------------------

    def open_value(self) -> None:
        """Begin the value of the current key."""
        if not self.value:
            typed = self.key is not None and self.key in self.state.types.get(self.name, ())
            self.value = "t" if typed else "s"
        self.captured = ""
        self.begun_value = False
        opening = "{" if self.count == 0 else ", "
        self.add_arguments(f"{opening}{json.dumps(self.key or '', ensure_ascii=False)}: ")
        self.count += 1
        if self.value == "s":
            self.add_arguments('"')

    def read_value(self, here: Mode, plain: str) -> None:
        """Read more of the open value: a string is streamed; any other value is held back until it can be typed."""
        if self.state.complete:
            self.raw += plain
        if self.value != "s":
            self.captured += plain
            return
        framing = arguments.VALUES[here.style]
        plain = self.captured + plain
        self.captured = ""
        if not framing:
            self._quote(plain)
            return
        if not self.begun_value:
            if framing == "\n":
                plain = plain.removeprefix("\n")
                self.begun_value = True
            else:
                plain = plain.lstrip(framing)
                self.begun_value = bool(plain)
        body = plain.removesuffix("\n") if framing == "\n" else plain.rstrip(framing)
        body = plain[: max(len(body), len(plain) - MAX_LEAD)]
        self.captured = plain[len(body) :]
        self._quote(body)

    def _quote(self, text: str) -> None:
        if text:
            self.add_arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def close_value(self, here: Mode) -> None:
        """End the open value."""
        if self.value == "s":
            self.add_arguments('"')
        else:
            framing = arguments.VALUES[here.style]
            text = self.captured
            if framing == "\n":
                text = text.removeprefix("\n").removesuffix("\n")
            else:
                text = text.strip(framing) if framing else text
            if self.value == "j":
                self.add_arguments(arguments.json_or_string(text))
            else:
                types = tuple(self.state.types.get(self.name, {}).get(self.key or "", ()))
                self.add_arguments(arguments.typed_json(text, types))
        self.value, self.captured, self.key = "", "", None
