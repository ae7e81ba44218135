"""The assistant's message in chat form, which several protocols share: its deltas, its log-probabilities, its folding.

{"content": "It is ", "reasoning": "Let me look.", "tool_calls": [{"index": 0, "id": "chatcmpl-tool-9f...",
 "type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\""}}]}
{"content": [{"token": "It", "logprob": -0.1, "bytes": [73, 116], "top_logprobs": [...]}]}
"""

from __future__ import annotations

from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.events import (
    CallArguments,
    CallStart,
    Event,
    Logprobs,
    Reasoning,
    Text,
    TokenLogprobs,
    TopLogprob,
)
from workers.surfaces.base import ChoiceDelta, call_id_of


def message_delta(context: DerenderContext, delta: ChoiceDelta) -> JsonObject:
    """What a delta adds to its message; empty if it adds nothing yet."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, JsonObject] = {}
    for event in delta.events:
        match event:
            case Text(text):
                content.append(text)
            case Reasoning(text) if context.include_reasoning:
                reasoning.append(text)
            case CallStart(index, name, call_id):
                calls[index] = {
                    "id": call_id or call_id_of(context, context.first_index + delta.index, index),
                    "type": "function",
                    "index": index,
                    "function": {"name": name},
                }
            case CallArguments(index, fragment):
                function = calls.setdefault(index, {"index": index, "function": {}})["function"]
                function["arguments"] = function.get("arguments", "") + fragment
            case _:
                pass
    message: JsonObject = {}
    if text := "".join(content):
        message["content"] = text
    if text := "".join(reasoning):
        message["reasoning"] = text
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def logprobs_of(context: DerenderContext, events: tuple[Event, ...]) -> JsonObject | None:
    """The log-probabilities among the events, with as many candidates as the request wants."""
    if context.logprobs is None:
        return None
    found = [position for event in events if isinstance(event, Logprobs) for position in event.positions]
    return {"content": [_position(context, position) for position in found]} if found else None


def _position(context: DerenderContext, position: TokenLogprobs) -> JsonObject:
    wanted = context.logprobs or 0
    top = position.top if wanted < 0 else position.top[:wanted]
    sampled = _candidate(context, position.sampled)
    if position.sampled.bytes is not None:
        # The token's own bytes, even if it is shown as its id.
        sampled["bytes"] = list(position.sampled.bytes)
    return {**sampled, "top_logprobs": [_candidate(context, candidate) for candidate in top]}


def _candidate(context: DerenderContext, candidate: TopLogprob) -> JsonObject:
    if context.tokens_as_ids:
        token = f"token_id:{candidate.token_id}"
        return {"token": token, "logprob": candidate.logprob, "bytes": list(token.encode())}
    given = candidate.bytes
    return {
        "token": candidate.token,
        "logprob": candidate.logprob,
        "bytes": None if given is None else list(given),
    }


class FoldedMessage:
    """Folds one message's deltas."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, JsonObject] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, delta: JsonObject) -> None:
        self._content.append(delta.get("content") or "")
        self._reasoning.append(delta.get("reasoning") or "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                self._calls[call["index"]] = call
            self._arguments.setdefault(call["index"], []).append(call["function"].get("arguments", ""))

    def message(self, context: DerenderContext) -> JsonObject:
        """The whole message."""
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": "".join(self._arguments[place])},
            }
            for place, call in sorted(self._calls.items())
        ]
        text = "".join(self._content)
        content: str | None = text
        if (calls and not text.strip()) or (context.reasoning_parser and not text):
            content = "" if _forced(context) else None
        message: JsonObject = {
            "role": context.role,
            "content": content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if calls:
            message["tool_calls"] = calls
        message["reasoning"] = "".join(self._reasoning) or None
        return message


def _forced(context: DerenderContext) -> bool:
    """Whether the request forces a call."""
    choice = context.parse.get("tool_choice")
    return choice == "required" or isinstance(choice, dict)
