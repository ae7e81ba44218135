"""The bodies of the derender routes: an engine's answer, or one event of its stream, and the request that it answers.

POST /v1/chat/completions/derender
{"model": "m", "generate_response": {"request_id": "generate-tokens-chatcmpl-1", "choices": [...]},
 "prompt_tokens": 12, "prompt_token_ids": [151644, ...], "chat_request": {"messages": [...], "tools": [...]}}
{"stream": true, "model": "m", "generate_chunk": {"choices": [{"index": 0, "token_ids": [57]}]},
 "stream_state": {"v": 1, ...}}                           → {"chunk": {...}, "stream_state": {"v": 1, ...}}

A stream needs `prompt_token_ids` and the client's request only with its first event; the state keeps what it needs of
them. The bodies are those of vLLM 0.33 (`entrypoints/scale_out/token_in_token_out/protocol.py`), so its clients work
unchanged. vLLM does not derender responses and messages; their bodies follow the same pattern.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from tasks.protocol.base import JsonObject, WireModel, refuse
from tasks.protocol.vllm_generate import Count, TokenId, TokensResponse, TokensStreamResponse


class DerenderRequest(WireModel):
    """One answer to derender; `request_field` names the field with the request that it answers."""

    request_field: ClassVar[str]

    stream: bool = False
    model: str | None = None
    generate_chunk: TokensStreamResponse | None = None
    stream_state: JsonObject | None = None

    @property
    def client_request(self) -> JsonObject | None:
        """The client's request, as it was sent to the render route."""
        value: JsonObject | None = getattr(self, self.request_field)
        return value

    @property
    def responses(self) -> list[TokensResponse]:
        """The whole answers; empty for an event of a stream."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _is_whole_or_a_part(self) -> Self:
        if self.stream and self.generate_chunk is None:
            raise refuse("generate_chunk", "generate_chunk is required when stream is true")
        if self.stream and self.generate_chunk is not None and len(self.generate_chunk.choices) > 1:
            raise refuse(
                "generate_chunk.choices",
                "a chunk may have at most one choice: send one chunk, with its own stream_state, for each choice",
            )
        return self


class _OfOne(DerenderRequest):
    generate_response: TokensResponse | None = None
    prompt_tokens: Count | None = None
    prompt_token_ids: list[TokenId] | None = None

    @property
    def responses(self) -> list[TokensResponse]:
        return [] if self.generate_response is None else [self.generate_response]

    @model_validator(mode="after")
    def _has_its_response(self) -> Self:
        if not self.stream and self.generate_response is None:
            raise refuse("generate_response", "generate_response is required when stream is false")
        if self.generate_response is not None:
            _refuse_repeats(self.generate_response, "generate_response")
        return self


class ChatDerenderRequest(_OfOne):
    """The body of `POST /v1/chat/completions/derender`."""

    request_field = "chat_request"
    chat_request: JsonObject | None = None


class ResponsesDerenderRequest(_OfOne):
    """The body of `POST /v1/responses/derender`."""

    request_field = "responses_request"
    responses_request: JsonObject | None = None


class MessagesDerenderRequest(_OfOne):
    """The body of `POST /v1/messages/derender`."""

    request_field = "messages_request"
    messages_request: JsonObject | None = None


class CompletionDerenderRequest(DerenderRequest):
    """The body of `POST /v1/completions/derender`: one answer for each prompt."""

    request_field = "completion_request"
    generate_responses: list[TokensResponse] | None = None
    prompt_tokens: list[Count] | Count | None = None
    prompt_token_ids: list[list[TokenId] | None] | list[TokenId] | None = None
    completion_request: JsonObject | None = None

    @property
    def responses(self) -> list[TokensResponse]:
        return self.generate_responses or []

    @model_validator(mode="after")
    def _has_its_responses(self) -> Self:
        if self.stream:
            _must_be(isinstance(self.prompt_tokens, list), "prompt_tokens", "one number when stream is true")
            nested = any(not isinstance(entry, int) for entry in self.prompt_token_ids or ())
            _must_be(nested, "prompt_token_ids", "one list of token ids when stream is true")
            return self
        if not self.generate_responses:
            raise refuse("generate_responses", "generate_responses must not be empty")
        for place, response in enumerate(self.generate_responses):
            _refuse_repeats(response, f"generate_responses.{place}")
        for name in ("prompt_tokens", "prompt_token_ids"):
            given: Any = getattr(self, name)
            if given is None:
                continue
            if not isinstance(given, list) or len(given) != len(self.generate_responses):
                raise refuse(name, f"{name} must have one entry for each of generate_responses")
        flat = any(isinstance(entry, int) for entry in self.prompt_token_ids or ())
        _must_be(flat, "prompt_token_ids", "a list of lists of token ids")
        return self


def _must_be(wrong: bool, name: str, form: str) -> None:
    if wrong:
        raise refuse(name, f"{name} must be {form}")


def _refuse_repeats(response: TokensResponse, name: str) -> None:
    if len({choice.index for choice in response.choices}) < len(response.choices):
        raise refuse(f"{name}.choices", "two choices have the same index: merge them, or number them differently")


FormatName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
"""The name of a registered format. The pattern excludes paths, because clients must not name files."""


class StoredDerenderRequest(WireModel):
    """The body of `POST /v1/jobs/{id}/derender`: what to override in the model's settings."""

    source: str = ""
    """The job's id; the route sets it."""
    model: str | None = None
    """Another served model whose parsers to use; it must have the same tokenizer."""
    tool_parser: FormatName | None = None
    reasoning_parser: FormatName | None = None
    """Names of formats: null for no parser, omitted for the model's own."""
