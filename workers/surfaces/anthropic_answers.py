"""Answers of Anthropic's Messages API: parse events to stream events, and stream events to the whole message.

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

Blocks follow one another in the order in which the model wrote them. No stream event repeats an earlier one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import CallArguments, CallEnd, CallStart, Finish, Reasoning, Text
from workers.surfaces.base import ChoiceDelta, call_id_of, invalid_state

TRANSFER_FIELDS = ("kv_transfer_params", "ec_transfer_params")
"""Fields that a whole message has besides its own, if the engine provides them."""
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
    """The number of closed blocks, which is the index of the open block or the next one."""
    called: bool = False
    """Whether the latest call is complete."""
    output_tokens: int = 0
    cached_tokens: int | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


def delta_chunks(
    context: DerenderContext, state: MessageState, delta: ChoiceDelta
) -> tuple[MessageState, list[JsonObject]]:
    """The stream events of one delta; the first delta also starts the message."""
    writer = _Writer(context, state)
    writer.start()
    for event in delta.events:
        match event:
            case Text(text):
                writer.write("text", text)
            case Reasoning(text) if context.include_reasoning:
                writer.write("thinking", text)
            case CallStart(index, name, call_id):
                writer.open_call(call_id or call_id_of(context, delta.index, index), name)
            case CallArguments(_, fragment):
                writer.add_arguments(fragment)
            case CallEnd():
                writer.end_call()
            case Finish(reason, stop_reason):
                writer.stop(reason, stop_reason)
            case _:
                pass
    writer.flush()
    writer.count(delta)
    if not context.stream and delta.extra is not None:
        writer.add({name: value for name in TRANSFER_FIELDS if (value := delta.extra.get(name)) is not None})
    return writer.state, writer.chunks


def final_chunks(context: DerenderContext, state: MessageState) -> tuple[MessageState, list[JsonObject]]:
    """The stream events that end the message: the stop reason with the usage, and the stop."""
    writer = _Writer(context, state)
    writer.start()
    writer.close()
    writer.add({"stop_reason": state.stop_reason, "stop_sequence": state.stop_sequence})
    return writer.state, [*writer.chunks, {"type": "message_stop"}]


def fold_events(events: Iterable[JsonObject]) -> JsonObject:
    """The message, put together from all events of its stream; an empty one has one empty text block."""
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
        # White space around calls is not text: the vendor's own server refuses it in the history of a later request.
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
    """Restore the state that `dump_state` returned; raises InvalidState."""
    try:
        (block, blocks), (output, cached), (reason, sequence) = data["block"], data["tokens"], data["stop"]
        state = MessageState(data["started"], block, blocks, data["called"], output, cached, reason, sequence)
    except (KeyError, TypeError, ValueError) as error:
        raise invalid_state("anthropic") from error
    numbers = (blocks, output) if cached is None else (blocks, output, cached)
    sound = (
        all(type(flag) is bool for flag in (state.started, state.called))
        and all(type(number) is int and number >= 0 for number in numbers)
        and block in (None, *DELTAS)
        and reason in (None, *STOP_REASONS)
        and (type(sequence) is str if reason == "stop_sequence" else sequence is None)
    )
    reachable = state.started or state == MessageState()
    if not sound or not reachable or (block == "tool_use" and state.called):
        raise invalid_state("anthropic")
    return state


class _Writer:
    """One step's working copy of the state, and the stream events so far."""

    def __init__(self, context: DerenderContext, state: MessageState) -> None:
        self.context = context
        self.state = state
        self.chunks: list[JsonObject] = []
        self._unsent: list[str] = []
        """Text of the open block that is in no stream event yet; adjacent text makes one delta."""

    def start(self) -> None:
        """Start the message, once. The last usage reports the cached tokens."""
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

    def write(self, kind: str, text: str) -> None:
        """Add text or reasoning; opens a block if none of its kind is open."""
        if not text:
            return
        if self.state.block != kind:
            self._open({"type": "text", "text": ""} if kind == "text" else _thinking())
        self._unsent.append(text)

    def open_call(self, call_id: str, name: str) -> None:
        self._open({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        self.state = replace(self.state, called=False)

    def add_arguments(self, fragment: str) -> None:
        """Add the next fragment of the open call's arguments."""
        if fragment:
            self._unsent.append(fragment)

    def end_call(self) -> None:
        """End the call at once, so that the client need not wait for what follows."""
        self.close()
        self.state = replace(self.state, called=True)

    def stop(self, reason: str, stop_reason: int | str | None) -> None:
        """Store why the model stopped; the message ends later, with its usage."""
        self.close()
        name, sequence = _stop_reason(reason, stop_reason, called=self.state.called)
        self.state = replace(self.state, stop_reason=name, stop_sequence=sequence)

    def count(self, delta: ChoiceDelta) -> None:
        cached = self.state.cached_tokens if delta.cached_tokens is None else delta.cached_tokens
        self.state = replace(self.state, output_tokens=delta.completion_tokens, cached_tokens=cached)

    def add(self, fields: JsonObject) -> None:
        """Send fields of the message itself, with its usage so far."""
        if fields:
            self.chunks.append({"type": "message_delta", "delta": fields, "usage": _usage(self.context, self.state)})

    def flush(self) -> None:
        """Send the text that is in no stream event yet."""
        if self._unsent and self.state.block is not None:
            kind, name = DELTAS[self.state.block]
            self._send_delta({"type": kind, name: "".join(self._unsent)})
            self._unsent.clear()

    def close(self) -> None:
        """Close the open block, if there is one."""
        self.flush()
        if self.state.block is None:
            return
        if self.state.block == "thinking":
            self._send_delta({"type": "signature_delta", "signature": _signature(self.context, self.state.blocks)})
        self.chunks.append({"type": "content_block_stop", "index": self.state.blocks})
        self.state = replace(self.state, block=None, blocks=self.state.blocks + 1)

    def _open(self, block: JsonObject) -> None:
        self.close()
        self.chunks.append({"type": "content_block_start", "content_block": block, "index": self.state.blocks})
        self.state = replace(self.state, block=block["type"])

    def _send_delta(self, delta: JsonObject) -> None:
        self.chunks.append({"type": "content_block_delta", "delta": delta, "index": self.state.blocks})


class _FoldedBlock:
    """Folds one content block's deltas."""

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
        """The block; None for a call that was cut off, whose arguments are not a JSON object."""
        text = "".join(self._texts)
        if self._start["type"] != "tool_use":
            return self._start | {self._start["type"]: text} | self._signature
        try:
            arguments = json.loads(text)
        except ValueError:
            return None
        return self._start | {"input": arguments} if isinstance(arguments, dict) else None


def _thinking() -> JsonObject:
    # The block has a signature from the start: the vendor's clients refuse one without it.
    return {"type": "thinking", "thinking": "", "signature": ""}


def _signature(context: DerenderContext, index: int) -> str:
    """A stand-in for the vendor's signature of thinking: nobody checks it, and no two blocks share one."""
    return hashlib.sha256(f"{context.response_id}:thinking:{index}".encode()).hexdigest()[:32]


def _stop_reason(reason: str, stop_reason: int | str | None, *, called: bool) -> tuple[str | None, str | None]:
    """`stop_reason` and `stop_sequence`; both None if neither the model nor a limit ended the answer.

    A limit comes first. A stop sequence comes before a call that it cut off, which must not run. OpenAI's reason may be
    "stop" after a complete call, if the request forced that call.
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
    """The usage so far; cached tokens are not counted as input tokens, but separately."""
    usage = {"input_tokens": context.prompt_tokens, "output_tokens": state.output_tokens}
    if state.cached_tokens is not None:
        usage["input_tokens"] = max(0, context.prompt_tokens - state.cached_tokens)
        usage["cache_read_input_tokens"] = state.cached_tokens
    return usage
