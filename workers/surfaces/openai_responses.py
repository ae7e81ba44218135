"""OpenAI's Responses API, as vLLM's own server implements it: requests to conversations, and the surface.

{"model": "m", "input": "Weather in Zürich?", "tools": [{"type": "function", "name": "get_weather", ...}]}

{"id": "resp_01h...", "object": "response", "status": "completed", "output": [
  {"id": "rs_9c...", "type": "reasoning", "content": [{"type": "reasoning_text", "text": "Let me look."}], ...},
  {"id": "fc_77...", "type": "function_call", "call_id": "chatcmpl-tool-9f...", "name": "get_weather", "arguments": "{}", ...},
  {"id": "msg_1f...", "type": "message", "content": [{"type": "output_text", "text": "It is ", ...}], ...}],
 "usage": {"input_tokens": 9, "output_tokens": 21, ...}, "instructions": null, "temperature": 1.0, ...}

`openai_responses_answers` makes the stream's events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.base import JsonObject, read_wire
from tasks.protocol.conversation import Conversation, Tokenization
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.openai_responses import ResponsesRequest
from workers.surfaces.base import AnswerFacts, ChoiceDelta, invalid_state, parsing_fields
from workers.surfaces.openai_responses_answers import (
    FIELDS,
    LOGPROBS,
    Completer,
    ResponseState,
    delta_chunks,
    dump_state,
    final_chunks,
    load_state,
)

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "stop_token_ids", "ignore_eos", "logit_bias", "watermarking", "skip_special_tokens"),
    *("spaces_between_special_tokens", "include_stop_str_in_output"),
)
_OPTIONS = ("stream", "cache_salt", "priority", "kv_transfer_params", "ec_transfer_params")
_ECHOED = (
    *("instructions", "metadata", "parallel_tool_calls", "temperature", "tools", "top_p", "background"),
    *("max_tool_calls", "prompt_cache_options", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier"),
    *("text", "truncation", "user", "presence_penalty", "frequency_penalty"),
)
_UNFINISHED = ("in_progress", "incomplete")


def read(body: JsonObject) -> ResponsesRequest:
    """The body as a validated request; raises InvalidRequest naming the field."""
    return read_wire(ResponsesRequest, body)


def converse(request: ResponsesRequest) -> Conversation:
    """The request as a conversation; an unfinished last message of the assistant is continued."""
    sent = request.model_dump(exclude_unset=True)
    continued = _is_unfinished(request.input)
    tools = [tool for tool in map(_function, request.tools) if tool is not None]
    return Conversation(
        messages=tuple(_messages(request)),
        tools=tuple(tools) if request.tools else None,
        tool_choice=_choice(request.tool_choice) if request.tools else "none",
        parallel_tool_calls=request.parallel_tool_calls,
        include_reasoning=request.include_reasoning,
        template_arguments=request.chat_template_kwargs or {},
        add_generation_prompt=not continued,
        continue_final_message=continued,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
        response_format=_format(request),
        structured_outputs=request.structured_outputs,
        sampling=_sampling(request, sent),
        max_output_tokens=request.max_output_tokens,
        max_output_tokens_param="max_output_tokens",
        tokenization=Tokenization(
            add_special_tokens=True, truncate_to=None if request.truncation == "disabled" else -1
        ),
        options={name: sent[name] for name in _OPTIONS if sent.get(name) is not None},
    )


class OpenAIResponses:
    """The surface. It is stateless, and its requests have one choice."""

    def read(self, body: JsonObject) -> ResponsesRequest:
        """The body as a validated request; raises InvalidRequest naming the field."""
        return read(body)

    def converse(self, request: ResponsesRequest) -> Conversation:
        """The request as a conversation."""
        return converse(request)

    def describe(self, request: ResponsesRequest, facts: AnswerFacts) -> DerenderContext:
        """The derender context: what the answer depends on."""
        skip = request.skip_special_tokens
        conversation = converse(request)
        stop = request.stop or ()
        return DerenderContext(
            surface="openai_responses",
            model=facts.model,
            response_id=facts.response_id,
            created=facts.created,
            prompt_tokens=len(facts.prompt_token_ids),
            stream=bool(request.stream),
            stops=(stop,) if isinstance(stop, str) else tuple(stop),
            include_stop=request.include_stop_str_in_output,
            stop_token_ids=tuple(dict.fromkeys([*(request.stop_token_ids or ()), *facts.stop_token_ids])),
            ignore_eos=request.ignore_eos,
            skip_special_tokens=facts.skip_special_tokens if skip is None else skip,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
            logprobs=_candidates(request),
            **parsing_fields(conversation, facts, stream=bool(request.stream)),
            echoed=_echoed(request, facts.sampling),
        )

    def start(self, context: DerenderContext) -> ResponseState:
        """The state before the first token."""
        return ResponseState()

    def step(
        self, context: DerenderContext, state: ResponseState, delta: ChoiceDelta
    ) -> tuple[ResponseState, list[JsonObject]]:
        """The client's next stream events; a `Completer` fills in what they repeat."""
        return delta_chunks(context, state, delta)

    def finish(self, context: DerenderContext, state: ResponseState) -> tuple[ResponseState, list[JsonObject]]:
        """The last stream event."""
        return final_chunks(context, state)

    def fold(self, context: DerenderContext, chunks: Iterable[JsonObject]) -> JsonObject:
        """The response in the last stream event."""
        completer = Completer()
        last: JsonObject = {}
        logprobs: list[JsonObject] = []
        for chunk in chunks:
            if chunk["type"] == LOGPROBS:
                logprobs += chunk["logprobs"]
            else:
                last = completer.add(chunk)
        response: JsonObject = last["response"]
        message = next((item for item in response["output"] if item["type"] == "message"), None)
        if logprobs and message is not None:
            message["content"][0]["logprobs"] = logprobs
        return response

    def dump(self, state: ResponseState) -> JsonObject:
        """The state as JSON."""
        return dump_state(state)

    def load(self, data: Any, choices: int) -> ResponseState:
        """Restore the state that `dump` returned for one choice; raises InvalidState."""
        if choices != 1:
            raise invalid_state("openai_responses")
        return load_state(data)


OPENAI_RESPONSES = OpenAIResponses()


def _candidates(request: ResponsesRequest) -> int | None:
    wanted = request.include is not None and "message.output_text.logprobs" in request.include
    return request.top_logprobs or 0 if wanted else None


def _echoed(request: ResponsesRequest, sampling: JsonObject) -> JsonObject:
    """The request's fields that the response repeats, and the final sampling parameters; defaults are left out."""
    sent = request.model_dump(exclude_unset=True)
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    echoed = {name: sent[name] for name in _ECHOED if name in sent}
    echoed |= {name: sampling[name] for name in names if name in sampling}
    echoed["tool_choice"] = sent.get("tool_choice", "auto") if request.tools else "none"
    echoed["top_logprobs"] = _candidates(request)
    echoed["max_output_tokens"] = sampling.get("max_tokens", request.max_output_tokens)
    if request.prompt_cache_retention is not None:
        echoed["prompt_cache_retention"] = request.prompt_cache_retention.replace("-", "_")
    return {name: value for name, value in echoed.items() if value is not None and value != FIELDS[name]}


def _is_unfinished(given: str | list[JsonObject]) -> bool:
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED


def _messages(request: ResponsesRequest) -> Iterable[JsonObject]:
    """Chat messages; the assistant's text, reasoning and calls of one turn are one message."""
    if request.instructions:
        yield {"role": "system", "content": request.instructions}
    if isinstance(request.input, str):
        yield {"role": "user", "content": request.input}
        return
    turn: JsonObject | None = None
    for item in request.input:
        message = _message(item)
        if turn is not None and message["role"] == "assistant" and _joins(turn, message):
            turn |= {
                name: [*turn.get(name, ()), *value] if name == "tool_calls" else value
                for name, value in message.items()
            }
            continue
        if turn is not None:
            yield turn
        turn = dict(message) if message["role"] == "assistant" else None
        if turn is None:
            yield message
    if turn is not None:
        yield turn


def _joins(turn: JsonObject, message: JsonObject) -> bool:
    return all(name in ("role", "tool_calls") or turn.get(name) is None for name in message)


def _message(item: JsonObject) -> JsonObject:
    match item.get("type"):
        case "function_call":
            call = {"name": item["name"], "arguments": item.get("arguments")}
            return {"role": "assistant", "tool_calls": [{"id": item["call_id"], "type": "function", "function": call}]}
        case "reasoning":
            return {"role": "assistant", "reasoning": _thought(item)}
        case "function_call_output":
            return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    if item.get("role") == "assistant":
        content = item.get("content")
        if isinstance(content, list) and content:
            content = content[0].get("text")
        if isinstance(content, str):
            return {"role": "assistant", "content": content}
    if isinstance(item.get("role"), str):
        return item
    raise InvalidRequest(
        f"input items of type {item.get('type')!r} are not supported: "
        "use message, reasoning, function_call or function_call_output",
        param="input",
    )


def _thought(item: JsonObject) -> str:
    if item.get("encrypted_content"):
        raise InvalidRequest(
            "a reasoning item has encrypted_content, which cannot be read: send the text in content or summary",
            param="input",
        )
    parts = item.get("content") or item.get("summary") or ()
    return str(parts[0].get("text", "")) if parts else ""


def _function(tool: Mapping[str, Any]) -> JsonObject | None:
    """A flat tool in the shape of a chat tool; None for a tool that is not a function."""
    if tool.get("type") != "function":
        return None
    if not isinstance(tool.get("name"), str):
        raise InvalidRequest("a function tool has no name: give it one", param="tools")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise InvalidRequest(
        f"tool_choice of type {choice.get('type')!r} is not supported: use a string, or a function with its name",
        param="tool_choice",
    )


def _format(request: ResponsesRequest) -> JsonObject | None:
    form = request.text.format if request.text is not None else None
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"name": form.get("name", ""), "schema": form.get("schema")}}


def _sampling(request: ResponsesRequest, sent: JsonObject) -> JsonObject:
    sampling = {name: sent[name] for name in _SAMPLING if sent.get(name) not in (None, [])}
    if request.stop:
        sampling["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    candidates = _candidates(request)
    if candidates is not None:
        sampling["logprobs"] = candidates
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    return sampling
