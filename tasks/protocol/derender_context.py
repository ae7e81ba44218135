"""What the derender stage is told about a request, and the state that it carries from chunk to chunk.

{"surface": "openai_chat", "model": "qwen3-8b", "response_id": "chatcmpl-01h", "created": 1, "prompt_tokens": 12,
 "stops": ["\\n\\n"], "parse": {"tools": [...], "tool_choice": "auto"}}
{"v": 1, "fingerprint": "9f2c...", "text": [...], "stop": [...], "parse": [...], "surface": {...}}

A client of the derender routes carries the state as `stream_state`, with the context beside it under `context`: all but
the prompt and the tools, which the state has no more need of or holds already.
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
    """All that derendering needs to know of a request, settled when it is rendered.

    With the prompt's token ids and the token chunks it decides on every byte of the answer: ids and times are in it,
    so that a second run gives the same chunks.
    """

    surface: str
    model: str
    response_id: str
    created: int
    """Unix seconds."""
    prompt_tokens: int
    n: int = 1
    first_index: int = 0
    """What the first of the choices is numbered for the client."""
    stream: bool = False
    role: str = "assistant"
    echo: str = ""
    """Text that goes before each choice's own."""
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the stop string, or the token that stopped, in the text."""
    min_tokens: int = 0
    """Stop strings count only where they end behind so many tokens."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    """Candidates wanted for each position: None for no log-probabilities at all, -1 for as many as the engine sends."""
    tokens_as_ids: bool = False
    """Write tokens of log-probabilities as `token_id:<id>`."""
    return_token_ids: bool = False
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt, for requests that want it back as token ids."""
    include_usage: bool = False
    continuous_usage: bool = False
    parse: JsonObject = field(default_factory=dict)
    """`tools`, `tool_choice`, `parallel_tool_calls`, `include_reasoning`, `chat_template_kwargs` (with the model's
    defaults) and `history_tool_call_cnt`, as in vLLM's parse context."""
    tool_arguments: Literal["stream", "complete"] = "stream"
    call_ids: str = "random"
    """How ids of calls look that come without one."""
    tool_parser: bool = False
    """The model has a tool parser."""
    reasoning_parser: bool = False
    system_fingerprint: str | None = None
    prompt_text: str | None = None
    """The rendered prompt, for requests that want it back."""
    echoed: JsonObject = field(default_factory=dict)
    """Fields of the request that its answer repeats, as the answer has them."""

    @property
    def parsed(self) -> bool:
        """Whether the model's output has markup."""
        return self.tool_parser or self.reasoning_parser

    @property
    def include_reasoning(self) -> bool:
        return bool(self.parse.get("include_reasoning", True))

    @property
    def hides_tokens(self) -> bool:
        """Whether ids and log-probabilities stay back, because they would give away reasoning that was not asked for."""
        return self.parsed and not self.include_reasoning


_DEFAULTS: Final[tuple[tuple[str, Any], ...]] = tuple(
    (f.name, {} if f.default_factory is not MISSING else f.default) for f in fields(DerenderContext)
)


def context_to_json(context: DerenderContext) -> JsonObject:
    """The context's smallest JSON form: absent keys are defaults."""
    out: JsonObject = {}
    for name, default in _DEFAULTS:
        value = getattr(context, name)
        if value != default:
            out[name] = list(value) if isinstance(value, tuple) else value
    return out


def context_from_json(data: JsonObject) -> DerenderContext:
    """Restores what `context_to_json` gave; raises InvalidRequest for what is no context."""
    values = dict(data)
    try:
        for name in ("stops", "stop_token_ids", "prompt_token_ids"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        return DerenderContext(**values)
    except TypeError as error:
        raise InvalidRequest(f"This is no derender context: {error}") from error


def read_context(data: Any) -> DerenderContext:
    """A context that was out of our hands; raises InvalidState for one that no request leads to."""
    try:
        context = _adapter().validate_python(data)
    except ValidationError as error:
        raise InvalidState("The stream state's context does not add up.") from error
    choice = context.parse.get("tool_choice")
    named = isinstance(choice, dict) and isinstance(choice.get("function"), dict)
    if not (choice is None or isinstance(choice, str) or named):
        raise InvalidState("The stream state's context does not add up.")
    return context


@cache
def _adapter() -> TypeAdapter[DerenderContext]:
    return TypeAdapter(DerenderContext)


class DerenderStateJson(TypedDict):
    """The state between two chunks: opaque to whoever carries it, one entry per choice in all but `surface`."""

    v: int
    fingerprint: str
    text: list[Any]
    stop: list[Any]
    parse: list[Any]
    surface: Any
