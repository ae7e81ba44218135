"""Answers of OpenAI's Responses API: parse events to the stream events that vLLM's own server sends.

{"type": "response.output_item.added", "sequence_number": 2, "output_index": 0,
 "item": {"id": "msg_1f...", "type": "message", "status": "in_progress", "role": "assistant", "content": []}}
{"type": "response.output_text.delta", "sequence_number": 4, "output_index": 0, "item_id": "msg_1f...",
 "content_index": 0, "delta": "It is ", "logprobs": []}
{"type": "response.output_text.done", "sequence_number": 9, "output_index": 0, "item_id": "msg_1f...",
 "content_index": 0, "text": "", "logprobs": []}
{"type": "response.completed", "sequence_number": 12, "response": {"status": "completed", "output": [], ...}}

The protocol repeats an item's text when the item is done, and all output at the end. A state that travels must stay
small, so `delta_chunks` and `final_chunks` leave those texts and that output empty. A process that holds the whole
stream passes the events through a `Completer`, which fills them in. If the client carries the state from chunk to
chunk, they stay empty: it has already received every text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Logprobs,
    Reasoning,
    Text,
    TokenLogprobs,
    TopLogprob,
)
from workers.surfaces.base import ChoiceDelta, call_id_of, invalid_state

Kind = Literal["message", "reasoning", "function_call"]
_PREFIXES: dict[Kind, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PARTS: dict[str, JsonObject] = {
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": None},
    "reasoning": {"type": "reasoning_text", "text": ""},
}
_TEXTS: dict[str, str] = {"message": "response.output_text", "reasoning": "response.reasoning_text"}
_ARGUMENTS = "response.function_call_arguments"
_ENGINE_FIELDS = ("kv_transfer_params", "ec_transfer_params", "metrics")

LOGPROBS = "logprobs"
"""The type of the chunks that carry all log-probabilities of a whole answer; they are folded, never sent."""

FIELDS: JsonObject = {
    "incomplete_details": None,
    "error": None,
    "instructions": None,
    "metadata": None,
    "output": [],
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "none",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "prompt_cache_options": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "auto",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "usage": None,
    "user": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "input_messages": None,
    "output_messages": None,
}
"""A response's fields, with the values that they have if neither the request nor its answer sets them."""


@dataclass(frozen=True, slots=True)
class OpenItem:
    """The output item that is being sent; `call`, `name` and `call_id` are a function call's."""

    kind: Kind
    call: int = 0
    name: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ResponseState:
    """The surface's state between two steps; of what has been sent, it holds only counts."""

    sequence: int = 0
    """Stream events so far."""
    items: int = 0
    """Output items so far, the open one included."""
    open: OpenItem | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int | None = None
    reason: str | None = None
    """Why the answer ended, once it has."""
    engine: JsonObject = field(default_factory=dict)
    """The response's fields that only the engine can provide."""


def delta_chunks(
    context: DerenderContext, state: ResponseState, delta: ChoiceDelta
) -> tuple[ResponseState, list[JsonObject]]:
    """The stream events for the next tokens."""
    extra = delta.extra or {}
    state = replace(
        state,
        completion_tokens=delta.completion_tokens,
        reasoning_tokens=delta.reasoning_tokens,
        cached_tokens=state.cached_tokens if delta.cached_tokens is None else delta.cached_tokens,
        engine=state.engine | {name: extra[name] for name in _ENGINE_FIELDS if extra.get(name) is not None},
    )
    writer = _Writer(context, state, _logprobs(context, delta.events))
    writer.begin()
    for event in delta.events:
        writer.write(event)
    writer.write_logprobs()
    return writer.state, writer.chunks


def final_chunks(context: DerenderContext, state: ResponseState) -> tuple[ResponseState, list[JsonObject]]:
    """The last stream event, with the response as far as the state knows it."""
    writer = _Writer(context, state, [])
    writer.begin()
    writer.end()
    return writer.state, writer.chunks


class _Writer:
    """One step's working copy of the state, and the stream events so far."""

    def __init__(self, context: DerenderContext, state: ResponseState, logprobs: list[JsonObject]) -> None:
        self.context = context
        self.state = state
        self.chunks: list[JsonObject] = []
        self._logprobs = logprobs
        if logprobs and not context.stream:
            # Which tokens belong to the text depends on the split; a whole answer has all, as in the reference.
            self.chunks.append({"type": LOGPROBS, "logprobs": logprobs})
            self._logprobs = []

    def begin(self) -> None:
        if self.state.sequence:
            return
        for status in ("created", "in_progress"):
            self._send(f"response.{status}", response=_response(self.context, "in_progress"))

    def end(self) -> None:
        match self.state.reason:
            case "length":
                status, fields = "incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}
            case "abort" | None:
                status, fields = "failed", {"error": _error("The generation was aborted.")}
            case _:
                status, fields = "completed", {}
        fields |= {"usage": _usage(self.context, self.state), **self.state.engine}
        self._send(f"response.{status}", response=_response(self.context, status, **fields))

    def write(self, event: Event) -> None:
        match event:
            case Text(text) if text:
                self._write_text("message", text)
            case Reasoning(text) if text and self.context.include_reasoning:
                self._write_text("reasoning", text)
            case CallStart(index, name, call_id):
                self._open(OpenItem("function_call", index, name, call_id or call_id_of(self.context, 0, index)))
            case CallArguments(_, fragment) if fragment and self._kind == "function_call":
                self._extend(f"{_ARGUMENTS}.delta", fragment)
            case CallEnd() if self._kind == "function_call":
                self._close("completed")
            case Finish(reason):
                self.write_logprobs()
                whole = reason not in ("length", "abort") and self._kind != "function_call"
                self._close("completed" if whole else "incomplete")
                self.state = replace(self.state, reason=reason)
            case _:
                pass

    def write_logprobs(self) -> None:
        """Send the log-probabilities of tokens whose text is still held back, with an empty delta."""
        if self._logprobs and self._kind == "message":
            self._write_text("message", "")

    @property
    def _kind(self) -> Kind | None:
        return None if self.state.open is None else self.state.open.kind

    def _send(self, type_: str, **fields: Any) -> None:
        self.chunks.append({"type": type_, "sequence_number": self.state.sequence, **fields})
        self.state = replace(self.state, sequence=self.state.sequence + 1)

    def _place(self, kind: Kind) -> JsonObject:
        """The fields that locate an event of the open item."""
        place: JsonObject = {"output_index": self.state.items - 1, "item_id": self._item_id(kind)}
        return place if kind == "function_call" else {**place, "content_index": 0}

    def _item_id(self, kind: Kind) -> str:
        """The open item's id; the same each time the answer is derendered."""
        seed = f"{self.context.response_id}:item:{self.state.items - 1}"
        return f"{_PREFIXES[kind]}_{hashlib.sha256(seed.encode()).hexdigest()[:16]}"

    def _write_text(self, kind: Kind, text: str) -> None:
        if self._kind != kind:
            self._open(OpenItem(kind))
        type_ = f"{_TEXTS[kind]}.delta"
        if kind == "reasoning":
            self._extend(type_, text)
            return
        self._extend(type_, text, logprobs=self._logprobs)
        self._logprobs = []

    def _extend(self, type_: str, text: str, logprobs: list[JsonObject] | None = None) -> None:
        """Send a delta; adjacent deltas of one step are joined."""
        last = self.chunks[-1] if self.chunks else {}
        if last.get("type") == type_:
            last["delta"] += text
            if logprobs:
                last["logprobs"] = last["logprobs"] + logprobs
            return
        assert self._kind is not None
        more = {} if logprobs is None else {"logprobs": logprobs}
        self._send(type_, **self._place(self._kind), delta=text, **more)

    def _open(self, item: OpenItem) -> None:
        self._close("incomplete" if self._kind == "function_call" else "completed")
        self.state = replace(self.state, open=item, items=self.state.items + 1)
        shown = self._item(item, "in_progress")
        self._send("response.output_item.added", output_index=self.state.items - 1, item=shown)
        if item.kind != "function_call":
            part = dict(_PARTS[item.kind])
            if item.kind == "message":
                part["logprobs"] = []
            self._send("response.content_part.added", **self._place(item.kind), part=part)

    def _close(self, status: str) -> None:
        item = self.state.open
        if item is None:
            return
        place = self._place(item.kind)
        if item.kind == "function_call":
            self._send(f"{_ARGUMENTS}.done", **place, name=item.name, arguments="")
        else:
            more: JsonObject = {"logprobs": []} if item.kind == "message" else {}
            self._send(f"{_TEXTS[item.kind]}.done", **place, text="", **more)
            self._send("response.content_part.done", **place, part=dict(_PARTS[item.kind]))
        shown = self._item(item, status)
        self._send("response.output_item.done", output_index=self.state.items - 1, item=shown)
        self.state = replace(self.state, open=None)

    def _item(self, item: OpenItem, status: str) -> JsonObject:
        shown: JsonObject = {"id": self._item_id(item.kind), "type": item.kind, "status": status}
        match item.kind:
            case "message":
                return {**shown, "role": "assistant", "content": []}
            case "reasoning":
                return {**shown, "summary": [], "content": None, "encrypted_content": None}
            case "function_call":
                return {**shown, "call_id": item.call_id, "name": item.name, "arguments": ""}


class Completer:
    """Fills in the texts that stream events repeat; holds the texts of one stream.

    completer = Completer()
    for chunk in chunks:
        send(completer.add(chunk))
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._logprobs: list[JsonObject] = []
        self._part: JsonObject = {}
        self._output: list[JsonObject] = []
        self._response: JsonObject = {}
        self._sequence = 0

    def add(self, chunk: JsonObject) -> JsonObject:
        """The next stream event, with the texts that it repeats filled in."""
        type_: str = chunk["type"]
        self._sequence = chunk["sequence_number"] + 1
        match type_.rpartition(".")[2]:
            case "added" if "item" in chunk:
                self._text, self._logprobs, self._part = [], [], {}
            case "delta":
                self._text.append(chunk["delta"])
                self._logprobs += chunk.get("logprobs", ())
            case "done" if "item" in chunk:
                return {**chunk, "item": self._complete_item(chunk["item"])}
            case "done" if "part" in chunk:
                self._part = {**chunk["part"], "text": "".join(self._text)}
                if self._logprobs:
                    self._part["logprobs"] = self._logprobs
                return {**chunk, "part": self._part}
            case "done":
                return {**chunk, "arguments" if "arguments" in chunk else "text": "".join(self._text)}
            case "created":
                self._response = chunk["response"]
            case "completed" | "incomplete" | "failed":
                return {**chunk, "response": {**chunk["response"], "output": self._output}}
        return chunk

    def fail(self, message: str) -> JsonObject:
        """The last event of a stream that broke off after its first event; the response keeps the finished items."""
        failed = {**self._response, "status": "failed", "error": _error(message), "output": self._output}
        return {"type": "response.failed", "sequence_number": self._sequence, "response": failed}

    def _complete_item(self, item: JsonObject) -> JsonObject:
        if item["type"] == "function_call":
            item = {**item, "arguments": "".join(self._text)}
        else:
            item = {**item, "content": [self._part]}
        self._output.append(item)
        return item


def dump_state(state: ResponseState) -> JsonObject:
    """The state as JSON."""
    item = state.open
    return {
        "sent": [state.sequence, state.items],
        "open": None if item is None else [item.kind, item.call, item.name, item.call_id],
        "counts": [state.completion_tokens, state.reasoning_tokens],
        "cached": state.cached_tokens,
        "reason": state.reason,
        "engine": state.engine,
    }


def load_state(data: Any) -> ResponseState:
    """Restore the state that `dump_state` returned; raises InvalidState."""
    try:
        (sequence, items), item, counts = data["sent"], data["open"], data["counts"]
        completion, reasoning = counts
        cached, reason, engine = data["cached"], data["reason"], data["engine"]
        numbers = [sequence, items, completion, reasoning, *([] if cached is None else [cached])]
        opened = None
        if item is not None:
            opened = OpenItem(*item)
            numbers.append(opened.call)
            if item[0] not in _PREFIXES or not isinstance(item[2], str) or not isinstance(item[3], str) or not items:
                raise TypeError
        if any(type(number) is not int or number < 0 for number in numbers):
            raise TypeError
        if not (reason is None or isinstance(reason, str)) or not engine.keys() <= set(_ENGINE_FIELDS):
            raise TypeError
        return ResponseState(sequence, items, opened, completion, reasoning, cached, reason, dict(engine))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise invalid_state("openai_responses") from error


def _response(context: DerenderContext, status: str, **fields: Any) -> JsonObject:
    return {
        "id": context.response_id,
        "object": "response",
        "created_at": context.created,
        "model": context.model,
        "status": status,
        **FIELDS,
        **context.echoed,
        **fields,
    }


def _error(message: str) -> JsonObject:
    return {"code": "server_error", "message": message}


def _usage(context: DerenderContext, state: ResponseState) -> JsonObject:
    return {
        "input_tokens": context.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": state.cached_tokens or 0,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": state.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": state.reasoning_tokens,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": context.prompt_tokens + state.completion_tokens,
    }


def _logprobs(context: DerenderContext, events: tuple[Event, ...]) -> list[JsonObject]:
    if context.logprobs is None or context.hides_tokens:
        return []
    found = [position for event in events if isinstance(event, Logprobs) for position in event.positions]
    return [_position(position, context.logprobs) for position in found]


def _position(position: TokenLogprobs, wanted: int) -> JsonObject:
    top = position.top if wanted < 0 else position.top[:wanted]
    return {**_candidate(position.sampled), "top_logprobs": [_candidate(candidate) for candidate in top]}


def _candidate(candidate: TopLogprob) -> JsonObject:
    data = candidate.token.encode() if candidate.bytes is None else candidate.bytes
    return {"token": candidate.token, "bytes": list(data), "logprob": candidate.logprob}
