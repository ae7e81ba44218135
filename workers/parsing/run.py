"""Runs one step on a working copy of the state: reads pieces, and does with each what the mode says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from tasks.protocol.events import CallArguments, CallStart, ParseEvent, Reasoning, Text
from workers.parsing.binding import Parser
from workers.parsing.calls import MAX_LEAD, CallReader
from workers.parsing.lexer import Live
from workers.parsing.partial_json import Status
from workers.parsing.spec import CONTENT, REASONING, Emit, Go, Mode, Sink
from workers.parsing.state import ParserState
from workers.parsing.styles_json import Body
from workers.text.pieces import AddedToken

MAX_CAPTURE = 256
"""Longest name, id or key of an argument, in characters."""

_WORD = re.compile(r"\S")
_MARKUP = frozenset({Sink.GAP, Sink.SKIP, Sink.DROP, Sink.NAME, Sink.ID, Sink.KEY, Sink.VALUE, Sink.BODY, Sink.DOUBT})
_EMPTY = Mode(Sink.VALUE)


def merge(events: Sequence[ParseEvent]) -> list[ParseEvent]:
    """The same events, with adjacent ones of one kind joined."""
    out: list[ParseEvent] = []
    parts: list[str] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, CallArguments):
            if isinstance(last, CallArguments) and last.index == event.index:
                parts.append(event.fragment)
                continue
        elif isinstance(event, Text | Reasoning) and type(event) is type(last):
            parts.append(event.text)
            continue
        if len(parts) > 1 and last is not None:
            out[-1] = _joined(last, parts)
        parts = []
        if isinstance(event, CallArguments):
            parts = [event.fragment]
        elif isinstance(event, Text | Reasoning):
            parts = [event.text]
        out.append(event)
    if len(parts) > 1:
        out[-1] = _joined(out[-1], parts)
    return out


def _joined(event: ParseEvent, parts: list[str]) -> ParseEvent:
    if isinstance(event, CallArguments):
        return CallArguments(event.index, "".join(parts))
    return Reasoning("".join(parts)) if isinstance(event, Reasoning) else Text("".join(parts))


class Run(CallReader):
    """One step's working copy of the state; reads pieces by the table's rules."""

    __slots__ = ("held", "mode", "parser", "table")

    def __init__(self, parser: Parser, state: ParserState) -> None:
        super().__init__(state, parser.format.call_ids)
        self.parser = parser
        self.table = parser.tables[state.table]
        self.mode = state.mode
        self.held = state.held

    def freeze(self) -> ParserState:
        return replace(
            self.state,
            mode=self.mode,
            held=self.held,
            lead=self.lead,
            said=self.said,
            raw=self.raw,
            call=self.call,
            index=self.index,
            closed=self.closed,
            name=self.name,
            call_id=self.call_id,
            kept=self.kept,
            captured=self.captured,
            key=self.key,
            count=self.count,
            value=self.value,
            begun=self.begun_value,
            body=self.body,
        )

    def merged(self) -> list[ParseEvent]:
        events = merge(self.events) if len(self.events) > 1 else self.events
        return list(map(self._spelled, events)) if self.parser.spelling else events

    def _spelled(self, event: ParseEvent) -> ParseEvent:
        """The event with the text of tokens in place of what they were read as."""
        if isinstance(event, Text | Reasoning):
            text = self._spell(event.text)
            return event if text is event.text else replace(event, text=text)
        if isinstance(event, CallArguments):
            fragment = self._spell(event.fragment, escaped=True)
            return event if fragment is event.fragment else replace(event, fragment=fragment)
        if isinstance(event, CallStart):
            return replace(event, name=self._spell(event.name), call_id=event.call_id and self._spell(event.call_id))
        return event

    def _spell(self, text: str, *, escaped: bool = False) -> str:
        if not text.isascii():
            for stand_in, literal in self.parser.spelling.items():
                if stand_in in text:
                    text = text.replace(stand_in, json.dumps(literal, ensure_ascii=False)[1:-1] if escaped else literal)
        return text

    # ---- reading -------------------------------------------------------------------------------------------------

    def read_text(self, text: str) -> None:
        """Read the text of ordinary tokens, in which no character stands for a token."""
        if self.parser.spelling and not text.isascii():
            text = text.translate(dict.fromkeys(map(ord, self.parser.spelling), "\ufffd"))
        self.read(text)

    def read(self, text: str, *, final: bool = False) -> None:
        """Read text; with `final`, nothing is held back."""
        text = self.held + text
        self.held = ""
        at = 0
        while at < len(text):
            here = self.table.modes[self.mode]
            if here.mode.sink is Sink.BODY:
                at = self._read_body(here, text, at, final=final)
                continue
            begin, end, literal = here.find(text, at, final=final)
            if begin > at:
                before = self.mode
                stopped = self._plain(here, text, at, begin)
                if stopped < begin or self.mode != before:
                    at = stopped
                    continue
            if literal is None:
                self.held = text[begin:end]
                return
            go = here.text[literal]
            self._apply(literal, go)
            at = begin if Emit.READ in go.emits else end

    def read_token(self, token: AddedToken) -> None:
        """Read an added token: a marker of this mode, a hidden token, or plain text."""
        here = self.table.modes[self.mode]
        go = here.ids.get(token.token_id)
        if go is not None:
            self.read("", final=True)
            if self.mode in self.table.modes and self.table.modes[self.mode] is not here:
                here = self.table.modes[self.mode]
                go = here.ids.get(token.token_id)
        if here.mode.sink is Sink.BODY:
            if go is not None and self.body is not None and not self._style(here).begun(self.body):
                self._apply(token.text, go)
                return
            # Inside a string a marker is data, even as a token of its own; anywhere else it ends the body.
            if token.token_id in self.parser.marker_ids and self.body and self._style(here).may_end(self.body):
                if self.call == 2:
                    self.close()
                self._leave_body(here, "")
                self.read_token(token)
                return
            if token.token_id in self.parser.marker_ids and not self._in_string(here):
                self._fail()
                if token.token_id in self.table.modes[self.mode].ids:
                    self.read_token(token)
                else:
                    self.read(token.text)
                return
        elif go is not None:
            self._apply(token.text, go)
            return
        hides = token.special and self.state.skip_special and token.text not in self.parser.inner
        if hides and (token.token_id not in self.parser.marker_ids or self.state.table == "plain"):
            if self.held:
                self.read("", final=True)
                here = self.table.modes[self.mode]
            sink = here.mode.sink
            if sink is Sink.DOUBT and len(self.lead or "") <= MAX_LEAD:
                self.lead = (self.lead or "") + token.text
                return
            # Inside an argument, the token's text is part of the value.
            if not (sink in (Sink.VALUE, Sink.DOUBT) or (sink is Sink.BODY and self._in_string(here))):
                return
        self.read(self.parser.stand_ins.get(token.token_id, token.text))

    def end_of_output(self, *, cut: bool) -> None:
        """End the output; `cut` means that the model had not finished."""
        if self.held:
            self.read("", final=True)
        here = self.table.modes[self.mode]
        if here.mode.sink is Sink.BODY and self.body is not None and self._style(here).whole(self.body):
            self.call, self.raw = 0, ""
        if here.mode.sink is Sink.DOUBT and here.mode.style == "end" and not cut:
            self.close_value(self.table.modes[here.mode.then].mode)
            self.end()
            return
        if self.call:
            probe = here.mode.sink is Sink.BODY and self.call == 1 and self.mode == self.table.answer
            unsure = probe and (self.body is None or not self._style(here).sure(self.body))
            if not cut or unsure:
                self._fail()
            return
        if here.mode.sink in _MARKUP:
            # An unfinished header is text; a gap, or a marker with nothing after it, gives no event.
            if self.captured or (self.raw and _WORD.search(self.lead or "")):
                self._fail()
            return
        if here.mode.sink is Sink.REASONING and self.captured:
            self._thought(self.captured)
        self.captured = ""
        if self.lead and not self.closed:
            self._text(self.lead)
        self.lead = None

    # ---- plain text ----------------------------------------------------------------------------------------------

    def _plain(self, here: Live, text: str, at: int, end: int) -> int:
        """Process the text up to `end` as the mode says; returns where to read on."""
        sink = here.mode.sink
        plain = text[at:end] if at or end < len(text) else text
        if sink is Sink.TEXT:
            trims = here.mode.style and self.lead == "" and self.index == 0
            self._content(plain.lstrip("\n") if trims else plain)
        elif sink is Sink.REASONING:
            self._reason(here, plain)
        elif sink is Sink.GAP:
            if self.raw:
                # What follows a section's opening is dropped with it if a call follows soon.
                self.lead = (self.lead or "") + plain
                if len(self.raw) + len(self.lead) <= MAX_LEAD:
                    return end
                plain, self.raw, self.lead = self.raw + self.lead, "", ""
            self._content(plain)
        elif sink is Sink.SKIP:
            word = _WORD.search(text, at, end)
            skipped = word.start() if word else end
            self._keep_raw(text[at:skipped])
            if word:
                self._fail()
            return skipped
        elif sink is Sink.DROP:
            room = end if self.call == 2 else max(at, at + MAX_LEAD - len(self.raw))
            self._keep_raw(plain[: room - at])
            if room < end:
                self._fail()
                return room
        elif sink is Sink.VALUE:
            self.read_value(here.mode, plain)
        elif sink is Sink.DOUBT:
            return self._doubt(here, plain, at, end)
        else:
            room = at + MAX_CAPTURE - len(self.captured)
            self.captured += plain[: room - at]
            if room < end:
                self._fail()
                return room
        return end

    def _doubt(self, here: Live, plain: str, at: int, end: int) -> int:
        lead = self.lead or ""
        if plain.isspace() and len(lead) + len(plain) <= MAX_LEAD:
            self.lead = lead + plain
            return end
        self.mode, self.lead = here.mode.then, ""
        self.read_value(self.table.modes[self.mode].mode, lead)
        return at

    def _content(self, plain: str) -> None:
        if self.lead is None:
            self._text(plain)
            return
        word = _WORD.search(plain)
        if word is None and len(self.lead) + len(plain) <= MAX_LEAD:
            self.lead += plain
            return
        self._text(self.lead + plain)
        self.lead = None

    def _reason(self, here: Live, plain: str) -> None:
        if here.mode.style == "trimmed":
            plain = self.captured + plain
            kept = plain.rstrip()
            kept = plain[: max(len(kept), len(plain) - MAX_LEAD)]
            self.captured = plain[len(kept) :]
            plain = kept
        if plain:
            self._thought(plain)

    def _thought(self, text: str) -> None:
        if self.state.reasoning:
            self.events.append(Reasoning(self._parted("r", text) if self.table.parted else text))

    def _text(self, text: str) -> None:
        if text:
            self.events.append(Text(self._parted("t", text) if self.table.parted else text))

    def _parted(self, kind: str, text: str) -> str:
        """The text, after a line feed if an earlier message has text of this kind."""
        if kind.upper() in self.said:
            self.said = self.said.replace(kind.upper(), kind)
            return "\n" + text
        if kind not in self.said:
            self.said += kind
        return text

    def _keep_raw(self, text: str) -> None:
        if self.call < 2 or self.state.complete:
            self.raw += text

    # ---- markers -------------------------------------------------------------------------------------------------

    def _apply(self, literal: str, go: Go) -> None:
        here = self.table.modes[self.mode].mode
        there = self.table.modes[go.to].mode
        if there.sink is Sink.DOUBT:
            self.mode, self.lead = go.to, literal
            return
        if here.sink is Sink.DOUBT:
            self.close_value(self.table.modes[here.then].mode)
            self.lead = ""
        elif here.sink is Sink.GAP and self.raw and Emit.CALL not in go.emits and _WORD.search(self.lead or ""):
            # No call follows a section's opening: both are text.
            self._text(self.raw + (self.lead or "") + (literal if there.sink in (Sink.TEXT, Sink.GAP) else ""))
            self.raw, self.lead = "", None
        opened = bool(self.raw)
        if here.sink not in _MARKUP and there.sink in _MARKUP:
            self.raw, opened = self.lead or "", True
            self.lead = ""
        elif here.sink is Sink.GAP:
            self.raw += (self.lead or "") if opened else ""
            self.lead = ""
        if here.sink is Sink.REASONING and there.sink is not Sink.REASONING:
            self.captured = ""
        # A marker that closes a call or leads to the answer is dropped; one that opens a call is text if none follows.
        closes = here.sink is Sink.GAP and there.sink is Sink.GAP and not opened
        answers = not self.call and go.to == self.table.answer and Emit.CALL not in go.emits
        if (there.sink in _MARKUP or self.call) and not (closes or answers or Emit.KEEP in go.emits):
            self._keep_raw(self._pending() + ("" if Emit.READ in go.emits else literal))
        if here.sink in (Sink.NAME, Sink.ID, Sink.KEY):
            self.capture(here)
        elif here.sink is Sink.VALUE:
            self.close_value(here)
        self.mode = go.to
        for emit in go.emits:
            if emit is Emit.CALL:
                if self.call == 2:
                    self._abandon()
                    self.raw = literal
                elif Emit.END in go.emits:
                    self.raw = literal
                self.call, self.name, self.call_id, self.count = 1, "", None, 0
            elif emit is Emit.BEGIN:
                if not self._begin():
                    return
            elif emit is Emit.END:
                if self.call == 1 and not self._begin():
                    return
                self.end()
            elif emit is Emit.KEEP:
                self._kept(literal, there)
            elif emit is Emit.EMPTY:
                self.open_value()
                self.close_value(_EMPTY)
            elif emit is Emit.PART:
                self.said = self.said.upper()
            elif emit is not Emit.READ:
                self.value = "s" if emit is Emit.STRING else "j"
        self._enter(go.to)

    def _kept(self, literal: str, there: Mode) -> None:
        if there.sink is Sink.REASONING:
            self._reason(self.table.modes[REASONING], literal)
        else:
            self._content(literal)

    def _pending(self) -> str:
        return self.captured if self.table.modes[self.mode].mode.sink in (Sink.NAME, Sink.ID, Sink.KEY) else ""

    def _enter(self, mode: str) -> None:
        """Prepare the state for a mode."""
        there = self.table.modes[mode]
        sink = there.mode.sink
        if sink is Sink.BODY:
            self.body = self._style(there).begin(self.state.forced_name)
            if self.call == 0:
                self.call = 1
                self.raw += self.lead or ""
                self.lead = ""
        elif sink is Sink.GAP:
            self.lead = ""
        elif sink is Sink.VALUE:
            self.open_value()
        elif sink is Sink.TEXT:
            if self.call:
                self._abandon()
            self.raw = ""

    # ---- calls ---------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        if not self.name:
            self._fail()
            return False
        self.begin(self.name, self.call_id)
        return True

    def _abandon(self) -> None:
        """Give up the unfinished call: what the client has not seen of its markup becomes text."""
        here = self.table.modes[self.mode]
        sink = here.mode.sink
        unseen = self.raw
        if self.call == 2 and not self.state.complete:
            self.index += 1
            unseen += self.captured
            if self.body is not None and here.body is not None:
                unseen += here.body.held(self.body)
        elif not self.state.complete or self.call < 2:
            unseen += self.captured
        if sink is Sink.DOUBT or (sink is Sink.GAP and self.raw):
            unseen += self.lead or ""
        self.forget()
        self._text(unseen)

    def _fail(self) -> None:
        """The markup is not a call: it becomes text, and so does what follows."""
        self._abandon()
        self.mode = CONTENT
        self.lead = None

    # ---- bodies --------------------------------------------------------------------------------------------------

    @staticmethod
    def _style(here: Live) -> Body:
        assert here.body is not None
        return here.body

    def _in_string(self, here: Live) -> bool:
        return self.body is not None and self._style(here).in_string(self.body)

    def _read_body(self, here: Live, text: str, at: int, *, final: bool) -> int:
        if self.body is None:
            self._enter(self.mode)
        body = self.body if self.body is not None else {}
        style = self._style(here)
        if here.pattern is not None and not style.begun(body):
            word = _WORD.search(text, at)
            if word is None:
                self._keep_raw(text[at:])
                return len(text)
            begin, end, literal = here.find(text, word.start(), final=final)
            if begin == word.start() and literal is not None:
                self._keep_raw(text[at:begin])
                self._apply(literal, here.text[literal])
                return end
            if begin == word.start() and not final:
                self._keep_raw(text[at:begin])
                self.held = text[begin:end]
                return len(text)
        stopped, status = style.feed(body, text, at, self)
        self._keep_raw(text[at:stopped])
        if status is Status.FAIL:
            self._fail()
        elif status is not Status.MORE:
            if self.call == 2:
                self.close()
            rest = self.raw if self.call == 1 and self.raw.isspace() else ""
            self.call, self.raw = 0, ""
            if status is Status.CALL:
                self.body, self.call = body, 1
            else:
                self._leave_body(here, rest)
        return stopped

    def _leave_body(self, here: Live, rest: str) -> None:
        """Leave a complete body; `rest` is white space that was read after it."""
        self.call, self.raw, self.body = 0, "", None
        self.mode = here.mode.then
        self._enter(self.mode)
        self.lead = rest
