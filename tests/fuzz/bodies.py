"""Request bodies for fuzzing: sound ones for every endpoint, and what may become of them on the way.

    rng = random.Random(7)
    path, body = mutated(rng)       # ("/v1/chat/completions", b'{"model": "echo", "messages": [{"role": 7, ...')

A mutation replaces, removes, repeats or nests values of a sound body, or flips bytes of its JSON. Everything follows
from the seed.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from typing import Any, Final

MODEL: Final = "echo"
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi 東京"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
]
CHAT = {
    "model": MODEL,
    "messages": HISTORY,
    "max_tokens": 6,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "seed": 7,
    "stop": ["END"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1.5},
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
    "chat_template_kwargs": {"enable_thinking": False},
    "stream_options": None,
    "metadata": {"a": "b"},
    "structured_outputs": None,
    "min_tokens": 0,
}
TEXT = {"model": MODEL, "prompt": ["Once", "upon"], "max_tokens": 4, "logprobs": 1, "echo": False, "stop": "END"}
RESPONSE = {
    "model": MODEL,
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "instructions": "Be brief.",
    "max_output_tokens": 5,
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
}
MESSAGE = {
    "model": MODEL,
    "max_tokens": 5,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "seen"}]},
    ],
    "tools": [{"name": "look", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["END"],
}
TOKENS = {
    "model": MODEL,
    "token_ids": [5, 6, 7],
    "sampling_params": {"max_tokens": 5, "temperature": 0, "logprobs": 1, "stop": ["END"]},
    "output_mode": "derender",
    "parse_context": {"tools": [TOOL], "tool_choice": "auto", "chat_template_kwargs": {}},
    "stream": False,
}
_LOGPROBS = {
    "content": [{"token_id": 5, "logprob": -0.5, "rank": 1, "top_logprobs": [{"token_id": 5, "logprob": -0.5}]}]
}
_CHOICE = {"index": 0, "token_ids": [5], "finish_reason": "stop", "stop_reason": None, "logprobs": _LOGPROBS}
ANSWER = {"request_id": "r", "model": MODEL, "created": 1, "choices": [_CHOICE], "usage": {"prompt_tokens": 3}}
DERENDER = {"model": MODEL, "generate_response": ANSWER, "prompt_tokens": 3, "prompt_token_ids": [5, 6, 7]}
EVENT = {
    "model": MODEL,
    "stream": True,
    "generate_chunk": {"request_id": "r", "choices": [{"index": 0, "token_ids": [5], "finish_reason": None}]},
    "prompt_token_ids": [5, 6],
    "chat_request": CHAT,
}
SOUND: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions/render", CHAT),
    ("/v1/completions/render", TEXT),
    ("/v1/responses/render", RESPONSE),
    ("/v1/messages/render", MESSAGE),
    ("/v1/chat/completions/derender", {**DERENDER, "chat_request": CHAT}),
    ("/v1/chat/completions/derender", EVENT),
    ("/v1/completions/derender", {"model": MODEL, "generate_responses": [ANSWER], "completion_request": TEXT}),
    ("/v1/responses/derender", {**DERENDER, "responses_request": RESPONSE}),
    ("/v1/messages/derender", {**DERENDER, "messages_request": MESSAGE}),
    ("/inference/v1/generate", TOKENS),
    ("/inference/v1/generate", {**TOKENS, "output_mode": "tokens", "stream": True}),
    ("/inference/v1/abort_requests", {"request_ids": ["a"]}),
    ("/tokenize", {"model": MODEL, "prompt": "Hi", "return_token_strs": True}),
    ("/tokenize", {"model": MODEL, "messages": HISTORY, "tools": [TOOL], "chat_template_kwargs": {}}),
    ("/detokenize", {"model": MODEL, "tokens": [5, 6]}),
    ("/v1/jobs", {"endpoint": "/v1/chat/completions", "body": CHAT, "metadata": {"a": 1}, "timeout_s": 30}),
]

ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, -1e-320, 2**31, 2**63, -(2**63) - 1, 10**400, 128_000),
    *(
        "",
        " ",
        "\x00",
        "\ud800",
        "a\udfffb",
        "\ud83d\ude42",
        "é",
        "\u202e",
        "true",
        "0",
        "{{ x }}",
        "{% for %}",
        "<|end|>",
    ),
    *(
        "[",
        "(",
        "a{1,99999}",
        "x" * 5000,
        "$ref",
        "null",
        "/etc/passwd",
        "http://127.0.0.1:1/",
        "data:image/png;base64,!",
    ),
    *([], {}, [[]], [{}], {"": ""}, {"a": None}, [None], [0, "a", []], {"type": "object"}, {"$ref": "#"}),
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    [{"role": "user", "content": ""}],
    list(range(300)),
)


def nested(depth: int) -> Any:
    """A value of so many levels."""
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def mutated(rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """A path, a body that may be wrong in any way, and its headers."""
    path, sound = rng.choice(SOUND)
    body: Any = copy.deepcopy(sound)
    try:
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            body = _mutate(rng, body)
        raw = _dump(rng, body)
    except RecursionError:  # deeper than Python itself writes
        raw = b'{"model": ' + b"[" * 100_000
    headers = {"Content-Type": "application/json"}
    if rng.random() < 0.15:
        raw = _flip(rng, raw)
    if rng.random() < 0.03:
        headers["Content-Encoding"] = rng.choice(("gzip", "deflate", "br", "identity", "x"))
        raw = gzip.compress(raw) if rng.random() < 0.5 else raw
    return path, raw, headers


def _places(body: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a body."""
    found, rest = [], [body]
    while rest:
        value = rest.pop()
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            found.append((value, key))
            if isinstance(inner, dict | list):
                rest.append(inner)
    return found


def _mutate(rng: random.Random, body: Any) -> Any:
    places = _places(body) if isinstance(body, dict | list) else []
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(ODD))
    container, key = rng.choice(places)
    change: Callable[[random.Random, Any, Any], None] = rng.choice(
        (_replace, _replace, _replace, _remove, _add, _double, _nest, _swap)
    )
    change(rng, container, key)
    return body


def _replace(rng: random.Random, container: Any, key: Any) -> None:
    container[key] = copy.deepcopy(rng.choice(ODD))


def _remove(rng: random.Random, container: Any, key: Any) -> None:
    del container[key]


def _add(rng: random.Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        names = [name for _, sound in SOUND for name in sound]
        container[rng.choice((*names, "x", "", "\ud800", "__class__"))] = copy.deepcopy(rng.choice(ODD))
    else:
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(rng.choice(ODD)))


def _double(rng: random.Random, container: Any, key: Any) -> None:
    container[key] = [copy.deepcopy(container[key])] * rng.choice((0, 2, 50))


def _nest(rng: random.Random, container: Any, key: Any) -> None:
    container[key] = rng.choice((nested(rng.choice((3, 60, 126, 200, 500))), {"a": container[key]}, [container[key]]))


def _swap(rng: random.Random, container: Any, key: Any) -> None:
    path_values = [value for _, sound in SOUND for value in sound.values()]
    container[key] = copy.deepcopy(rng.choice(path_values))


def _dump(rng: random.Random, body: Any) -> bytes:
    text = json.dumps(body, ensure_ascii=rng.random() < 0.7)
    return text.encode("utf-8", "surrogatepass")


def _flip(rng: random.Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(out) + 1)
        kind = rng.random()
        if kind < 0.4 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind < 0.7:
            out[at:at] = rng.choice((b"\x00", b"[", b"{", b'"', b"\\", b"\xff", b"\xed\xa0\x80", b"NaN", b"1e999"))
        else:
            del out[at : at + rng.choice((1, 5, 50))]
    return bytes(out)
