"""A parser's state: one small frozen value that converts to JSON and back."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from tasks.errors import InvalidState

VERSION = 1

Types = dict[str, dict[str, Any]]
"""Tool name → argument name → its JSON types, or its schema if values may nest."""


@dataclass(frozen=True, slots=True)
class ParserState:
    """How far a parser has read. The fields are private to this package.

    Some fields grow with the output, within bounds: `held` up to one marker; `raw` and `captured` up to a name, a key
    or one value that cannot be typed before it closes; with `complete`, `raw` and `kept` up to one call.
    """

    # Set by the request.
    table: str = "plain"
    parallel: bool = True
    reasoning: bool = True
    skip_special: bool = True
    complete: bool = False
    forced_name: str | None = None
    history: int = 0
    types: Types = field(default_factory=dict)

    mode: str = "content"
    held: str = ""
    """The beginning of a marker."""
    lead: str | None = None
    """Text that is held back: white space because a call may follow; what is written between a section's opening and its
    first call; what may end a value (`Sink.DOUBT`). None after other text."""
    said: str = ""
    """What the answer has so far, if it consists of messages: t text, r reasoning; in capitals since a message began."""
    raw: str = ""
    """A call's markup so far; it becomes text if it turns out not to be a call."""
    call: int = 0
    """0 outside a call, 1 in its markup, 2 once its name is known."""
    index: int = 0
    """The next call's index in the answer."""
    closed: int = 0
    name: str = ""
    call_id: str | None = None
    kept: str = ""
    """With `complete`: the open call's arguments so far."""
    captured: str = ""
    """A name, id or key so far, or a value that cannot be typed yet."""
    key: str | None = None
    count: int = 0
    """Arguments written so far."""
    value: str = ""
    """How the open value is read: "" no value is open, "s" as a streamed string, "t" by its type, "j" as JSON."""
    begun: bool = False
    """Whether any of the open string value has been read."""
    body: dict[str, Any] | None = None

    def dump(self) -> dict[str, Any]:
        """The state as JSON; fields at their defaults are left out."""
        out: dict[str, Any] = {"v": VERSION}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                out[name] = value
        return out

    @classmethod
    def load(cls, data: object) -> ParserState:
        """Restore the state that `dump` returned.

        Raises:
            InvalidState: not a state, or one of another version.
        """
        if not isinstance(data, dict) or data.get("v") != VERSION:
            raise InvalidState(
                f"The parser's state is not of version {VERSION}: send the last stream_state back unchanged."
            )
        given = {name: value for name, value in data.items() if name != "v"}
        for name, value in given.items():
            if name not in _DEFAULTS or not isinstance(value, _KINDS[name]):
                raise InvalidState(
                    f"The parser's state has no valid field {name!r}: send the last stream_state back unchanged."
                )
        return cls(**given)


_DEFAULTS: dict[str, Any] = {item.name: ({} if item.name == "types" else item.default) for item in fields(ParserState)}
_KINDS: dict[str, tuple[type, ...]] = {
    name: (str, type(None))
    if name in ("forced_name", "lead", "call_id", "key")
    else (dict, type(None))
    if name == "body"
    else (type(default),)
    for name, default in _DEFAULTS.items()
}
