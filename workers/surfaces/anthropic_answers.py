"""Anthropic's Messages, the answers: events to the stream's server-sent events, and these to the whole message.

event: message_start        data: {"type": "message_start", "message": {"id": "msg_01h...", "content": [], ...,
                                   "usage": {"input_tokens": 9, "output_tokens": 0}}}
event: content_block_start  data: {"type": "content_block_start",
                                   "content_block": {"type": "thinking", "thinking": "", "signature": ""}, "index": 0}
event: content_block_delta  data: {"type": "content_block_delta",
                                   "delta": {"type": "thinking_delta", "thinking": "Let me look."}, "index": 0}
event: content_block_delta  data: {"type": "content_block_delta",
                                   "delta": {"type": "signature_delta", "signature": "9f2c..."}, "index": 0}
event: content_block_stop   data: {"type": "content_block_stop", "index": 0}
event: content_block_start  data: {"type": "content_block_start", "content_block": {"type": "tool_use",
                                   "id": "chatcmpl-tool-9f...", "name": "get_weather", "input": {}}, "index": 1}
event: content_block_delta  data: {"type": "content_block_delta",
                                   "delta": {"type": "input_json_delta", "partial_json": "{\\"city\\": "}, "index": 1}
event: message_delta        data: {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
                                   "usage": {"input_tokens": 9, "output_tokens": 21}}
event: message_stop         data: {"type": "message_stop"}

Blocks come one after another, in the order in which the model wrote them. No event repeats what others have said.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tasks.errors import InvalidState
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import CallArguments, CallEnd, CallStart, Finish, Reasoning, Text
from workers.surfaces.base import ChoiceDelta, call_id_of

TRANSFER_FIELDS = ("kv_transfer_params", "ec_transfer_params")
"""What a whole message has beside its own fields, where an engine gives it."""
DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""A block's type → its deltas' type, and the field that holds their text."""
STOP_REASONS = ("end_turn", "max_tokens", "stop_sequence", "tool_use")


@dataclass(frozen=True, slots=True)
class MessageState:
    """The surface's state between two chunks."""

    started: bool = False
    block: str | None = None
    """The open block's type."""
    blocks: int = 0
    """How many blocks have been closed: the open one's index, or the next one's."""
    called: bool = False
    """Whether the latest call is whole."""
    output_tokens: int = 0
    cached_tokens: int | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


def tell_delta(
    context: DerenderContext, state: MessageState, delta: ChoiceDelta
) -> tuple[MessageState, list[JsonObject]]:
    """The events of one delta, after the message's start before the first."""
    telling = _Telling(context, state)
    telling.start()
    for event in delta.events:
        match event:
            case Text(text):
                telling.say("text", text)
            case Reasoning(text) if context.include_reasoning:
                telling.say("thinking", text)
            case CallStart(index, name, call_id):
                telling.open_call(call_id or call_id_of(context, delta.index, index), name)
            case CallArguments(_, fragment):
                telling.argue(fragment)
            case CallEnd():
                telling.end_call()
            case Finish(reason, stop_reason):
                telling.stop(reason, stop_reason)
            case _:
                pass
    telling.flush()
    telling.count(delta)
    if not context.stream and delta.extra is not None:
        telling.add({name: value for name in TRANSFER_FIELDS if (value := delta.extra.get(name)) is not None})
    return telling.state, telling.chunks


def tell_end(context: DerenderContext, state: MessageState) -> tuple[MessageState, list[JsonObject]]:
    """The events that end the message: why it stopped, its usage, and that it has."""
    telling = _Telling(context, state)
    telling.start()
    telling.close()
    telling.add({"stop_reason": state.stop_reason, "stop_sequence": state.stop_sequence})
    return telling.state, [*telling.chunks, {"type": "message_stop"}]


def fold_events(events: Iterable[JsonObject]) -> JsonObject:
    """The message that all events of a stream make together; an empty one has one empty text block."""
    message: JsonObject = {}
    blocks: list[_FoldedBlock] = []
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                blocks.append(_FoldedBlock(event["content_block"]))
            case "content_block_delta":
                blocks[event["index"]].add(event["delta"])
            case "message_delta":
                message = message | event["delta"] | {"usage": event["usage"]}
    content = [block for folded in blocks if (block := folded.block()) is not None]
    if any(block["type"] == "tool_use" for block in content):
        # White space around calls is no text; sent back in a later request, the vendor's own server would refuse it.
        content = [block for block in content if block["type"] != "text" or block["text"].strip()]
    return message | {"content": content or [{"type": "text", "text": ""}]}


def dump_state(state: MessageState) -> JsonObject:
    """The state as JSON."""
    return {
        "started": state.started,
        "block": [state.block, state.blocks],
        "called": state.called,
        "tokens": [state.output_tokens, state.cached_tokens],
        "stop": [state.stop_reason, state.stop_sequence],
    }


def load_state(data: Any) -> MessageState:
    """Restores what `dump_state` gave; raises InvalidState."""
    try:
        (block, blocks), (output, cached), (reason, sequence) = data["block"], data["tokens"], data["stop"]
        state = MessageState(data["started"], block, blocks, data["called"], output, cached, reason, sequence)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidState from error
    numbers = (blocks, output) if cached is None else (blocks, output, cached)
    sound = (
        all(type(flag) is bool for flag in (state.started, state.called))
        and all(type(number) is int and number >= 0 for number in numbers)
        and block in (None, *DELTAS)
        and reason in (None, *STOP_REASONS)
        and (type(sequence) is str if reason == "stop_sequence" else sequence is None)
    )
    told = state.started or state == MessageState()
    if not sound or not told or (block == "tool_use" and state.called):
        raise InvalidState
    return state


class _Telling:
    """One step's working copy of the state, and the events that it has made."""

    def __init__(self, context: DerenderContext, state: MessageState) -> None:
        self.context = context
        self.state = state
        self.chunks: list[JsonObject] = []
        self._unsaid: list[str] = []
        """Text of the open block that no event holds yet: neighbours make one delta."""

    def start(self) -> None:
        """The message begins, once. What the engine had in its cache is told with the last usage."""
        if self.state.started:
            return
        message: JsonObject = {
            "id": self.context.response_id,
            "type": "message",
            "role": self.context.role,
            "content": [],
            "model": self.context.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.context.prompt_tokens, "output_tokens": 0},
        }
        self.chunks.append({"type": "message_start", "message": message})
        self.state = replace(self.state, started=True)

    def say(self, kind: str, text: str) -> None:
        """Text or reasoning, in a block of its own if none of its kind is open."""
        if not text:
            return
        if self.state.block != kind:
            self._open({"type": "text", "text": ""} if kind == "text" else _thinking())
        self._unsaid.append(text)

    def open_call(self, call_id: str, name: str) -> None:
        self._open({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        self.state = replace(self.state, called=False)

    def argue(self, fragment: str) -> None:
        """The next fragment of the open call's arguments."""
        if fragment:
            self._unsaid.append(fragment)

    def end_call(self) -> None:
        """The call is whole, and its client need not wait for what follows."""
        self.close()
        self.state = replace(self.state, called=True)

    def stop(self, reason: str, stop_reason: int | str | None) -> None:
        """The model has stopped; the message ends later, with its usage."""
        self.close()
        said, sequence = _stop_reason(reason, stop_reason, called=self.state.called)
        self.state = replace(self.state, stop_reason=said, stop_sequence=sequence)

    def count(self, delta: ChoiceDelta) -> None:
        cached = self.state.cached_tokens if delta.cached_tokens is None else delta.cached_tokens
        self.state = replace(self.state, output_tokens=delta.completion_tokens, cached_tokens=cached)

    def add(self, fields: JsonObject) -> None:
        """Fields of the message itself, and its usage so far."""
        if fields:
            self.chunks.append({"type": "message_delta", "delta": fields, "usage": _usage(self.context, self.state)})

    def flush(self) -> None:
        """All that has been said is in an event."""
        if self._unsaid and self.state.block is not None:
            kind, name = DELTAS[self.state.block]
            self._tell_delta({"type": kind, name: "".join(self._unsaid)})
            self._unsaid.clear()

    def close(self) -> None:
        """No block is open."""
        self.flush()
        if self.state.block is None:
            return
        if self.state.block == "thinking":
            self._tell_delta({"type": "signature_delta", "signature": _signature(self.context, self.state.blocks)})
        self.chunks.append({"type": "content_block_stop", "index": self.state.blocks})
        self.state = replace(self.state, block=None, blocks=self.state.blocks + 1)

    def _open(self, block: JsonObject) -> None:
        self.close()
        self.chunks.append({"type": "content_block_start", "content_block": block, "index": self.state.blocks})
        self.state = replace(self.state, block=block["type"])

    def _tell_delta(self, delta: JsonObject) -> None:
        self.chunks.append({"type": "content_block_delta", "delta": delta, "index": self.state.blocks})


class _FoldedBlock:
    """One content block, as far as its deltas have been added."""

    def __init__(self, start: JsonObject) -> None:
        self._start = start
        self._texts: list[str] = []
        self._signature: JsonObject = {}

    def add(self, delta: JsonObject) -> None:
        if delta["type"] == "signature_delta":
            self._signature = {"signature": delta["signature"]}
        else:
            self._texts.append(delta[DELTAS[self._start["type"]][1]])

    def block(self) -> JsonObject | None:
        """The block; None for a call that was cut off, whose arguments are no JSON object."""
        text = "".join(self._texts)
        if self._start["type"] != "tool_use":
            return self._start | {self._start["type"]: text} | self._signature
        try:
            arguments = json.loads(text)
        except ValueError:
            return None
        return self._start | {"input": arguments} if isinstance(arguments, dict) else None


def _thinking() -> JsonObject:
    # The signature is a field of the block from the start: the vendor's clients refuse one without.
    return {"type": "thinking", "thinking": "", "signature": ""}


def _signature(context: DerenderContext, index: int) -> str:
    """What stands where the vendor signs its models' thinking: nobody checks it, and no two blocks share one."""
    return hashlib.sha256(f"{context.response_id}:thinking:{index}".encode()).hexdigest()[:32]


def _stop_reason(reason: str, stop_reason: int | str | None, *, called: bool) -> tuple[str | None, str | None]:
    """`stop_reason` and `stop_sequence`; None for an answer that neither the model nor a limit ended.

    A limit goes before all else, a stop sequence before a call that it cut short, which must not run. A call that is
    whole, and that the request forced, ends with OpenAI's "stop" as well.
    """
    if reason == "length":
        return "max_tokens", None
    if reason not in ("stop", "tool_calls"):
        return None, None
    if called:
        return "tool_use", None
    if isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    return ("tool_use" if reason == "tool_calls" else "end_turn"), None


def _usage(context: DerenderContext, state: MessageState) -> JsonObject:
    """Tokens read from the cache are not among the input tokens, but beside them."""
    usage = {"input_tokens": context.prompt_tokens, "output_tokens": state.output_tokens}
    if state.cached_tokens is not None:
        usage["input_tokens"] = max(0, context.prompt_tokens - state.cached_tokens)
        usage["cache_read_input_tokens"] = state.cached_tokens
    return usage
