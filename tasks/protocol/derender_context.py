"""The derender context, and the derender state that goes from chunk to chunk.

{"surface": "openai_chat", "model": "qwen3-8b", "response_id": "chatcmpl-01h", "created": 1, "prompt_tokens": 12,
 "stops": ["\\n\\n"], "parse": {"tools": [...], "tool_choice": "auto"}}
{"v": 1, "fingerprint": "9f2c...", "text": [...], "stop": [...], "parse": [...], "surface": {...}}

A client of the derender routes sends the state back as `stream_state`, with the context in it as `context`: without the
prompt, which is no longer needed, and without the tools, which the state already holds.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Final, Literal, TypedDict

from pydantic import TypeAdapter, ValidationError

from tasks.errors import InvalidRequest, InvalidState
from tasks.protocol.base import JsonObject

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class DerenderContext:
    """Everything that derendering needs to know of a request besides its tokens; rendering fixes it.

    Together with the prompt's token ids and the token chunks, it determines every byte of the answer. It includes ids
    and times, so a second run yields the same chunks.
    """

    surface: str
    model: str
    response_id: str
    created: int
    """Unix seconds."""
    prompt_tokens: int
    n: int = 1
    first_index: int = 0
    """The client's index of the first choice."""
    stream: bool = False
    role: str = "assistant"
    echo: str = ""
    """Text to put before each choice's own text."""
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the stop string, or the text of the stop token."""
    min_tokens: int = 0
    """A stop string counts only if it ends after this many tokens."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    """Number of candidates for each position; None for no log-probabilities, -1 for as many as the engine sends."""
    tokens_as_ids: bool = False
    """Write the tokens in log-probabilities as `token_id:<id>`."""
    return_token_ids: bool = False
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt's token ids, if the request wants them returned."""
    include_usage: bool = False
    continuous_usage: bool = False
    parse: JsonObject = field(default_factory=dict)
    """vLLM's parse context: `tools`, `tool_choice`, `parallel_tool_calls`, `include_reasoning`, `chat_template_kwargs`
    (with the model's defaults) and `history_tool_call_cnt`."""
    tool_arguments: Literal["stream", "complete"] = "stream"
    call_ids: str = "random"
    """The scheme of ids for calls that come without one."""
    tool_parser: bool = False
    """The model has a tool parser."""
    reasoning_parser: bool = False
    system_fingerprint: str | None = None
    prompt_text: str | None = None
    """The rendered prompt as text, if the request wants it returned."""
    echoed: JsonObject = field(default_factory=dict)
    """Fields of the request that its answer repeats, in the answer's form."""

    @property
    def parsed(self) -> bool:
        """Whether a tool or reasoning parser reads the model's output."""
        return self.tool_parser or self.reasoning_parser

    @property
    def include_reasoning(self) -> bool:
        return bool(self.parse.get("include_reasoning", True))

    @property
    def hides_tokens(self) -> bool:
        """Whether to hide token ids and log-probabilities, because they would reveal hidden reasoning."""
        return self.parsed and not self.include_reasoning


_DEFAULTS: Final[tuple[tuple[str, Any], ...]] = tuple(
    (f.name, {} if f.default_factory is not MISSING else f.default) for f in fields(DerenderContext)
)


def context_to_json(context: DerenderContext) -> JsonObject:
    """Return the context as JSON without the keys that have default values."""
    out: JsonObject = {}
    for name, default in _DEFAULTS:
        value = getattr(context, name)
        if value != default:
            out[name] = list(value) if isinstance(value, tuple) else value
    return out


def context_from_json(data: JsonObject) -> DerenderContext:
    """Restore a context from `context_to_json`.

    Raises:
        InvalidRequest: `data` has unknown keys, or lacks required ones.
    """
    values = dict(data)
    try:
        for name in ("stops", "stop_token_ids", "prompt_token_ids"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        return DerenderContext(**values)
    except TypeError as error:
        raise InvalidRequest(f"The derender context is invalid: {error}") from error


def read_context(data: Any) -> DerenderContext:
    """Validate a context that a client sent back.

    Raises:
        InvalidState: no request has such a context.
    """
    try:
        context = _adapter().validate_python(data)
    except ValidationError as error:
        raise InvalidState(_INVALID_CONTEXT) from error
    choice = context.parse.get("tool_choice")
    named = isinstance(choice, dict) and isinstance(choice.get("function"), dict)
    if not (choice is None or isinstance(choice, str) or named):
        raise InvalidState(_INVALID_CONTEXT)
    return context


_INVALID_CONTEXT = "stream_state.context is invalid. Send the stream_state of the previous answer back unchanged."


@cache
def _adapter() -> TypeAdapter[DerenderContext]:
    return TypeAdapter(DerenderContext)


class DerenderStateJson(TypedDict):
    """The derender state between two chunks, opaque to clients. Each list has one entry for each choice."""

    v: int
    fingerprint: str
    text: list[Any]
    stop: list[Any]
    parse: list[Any]
    surface: Any
