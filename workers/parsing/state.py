"""Everything that a parser remembers: one small frozen value that survives JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from tasks.errors import InvalidState

VERSION = 1

Types = dict[str, dict[str, Any]]
"""Tool name → argument name → its JSON types, or its schema where values may nest."""


@dataclass(frozen=True, slots=True)
class ParserState:
    """Where a parser stands. Only the engine reads or makes the fields.

    What can grow with the output: `held` up to one marker, `raw` and `captured` up to a name, a key or one value that
    cannot be typed before it closes; with `complete`, `raw` and `kept` up to one call.
    """

    # What the request settled.
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
    """White space at the beginning of a stretch of text that a call may follow; None once other text came."""
    raw: str = ""
    """What a call's markup was so far, to be text after all if it turns out to be none."""
    call: int = 0
    """0 outside a call, 1 in its markup, 2 once its name is known."""
    index: int = 0
    """The next call's place in the answer."""
    closed: int = 0
    name: str = ""
    call_id: str | None = None
    kept: str = ""
    """A complete-only call's arguments."""
    captured: str = ""
    """A name, id, key, or value that cannot be typed yet."""
    key: str | None = None
    count: int = 0
    """Arguments written so far."""
    value: str = ""
    """How the open value is read: "" none, s string as it comes, t by type, j JSON."""
    begun: bool = False
    """Whether anything of the open string value was read."""
    body: dict[str, Any] | None = None

    def dump(self) -> dict[str, Any]:
        """JSON-able and complete; defaults are left out."""
        out: dict[str, Any] = {"v": VERSION}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                out[name] = value
        return out

    @classmethod
    def load(cls, data: object) -> ParserState:
        """The state that `dump` gave.

        Raises:
            InvalidState: another version, or not a state.
        """
        if not isinstance(data, dict) or data.get("v") != VERSION:
            raise InvalidState("The parser's state is of another version.")
        given = {name: value for name, value in data.items() if name != "v"}
        for name, value in given.items():
            if name not in _DEFAULTS or not isinstance(value, _KINDS[name]):
                raise InvalidState(f"The parser's state does not add up: {name!r}.")
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
