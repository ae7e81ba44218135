"""A streamed derender over HTTP, one token a call, as a client of `/inference/v1/generate` makes it.

Ours sends the request and its prompt with the first call; the reference wants them with each. What the reference needs
for more tokens than it can be waited for is estimated from single calls along the way.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httptools
import orjson
from tokenizers import Tokenizer

from tests.bench.servers import PEER, TOKENIZER, serve_reference, serve_yard
from tests.bench.table import Table

LENGTHS = (200, 1_000, 4_000, 16_000)
WAITED_FOR = 1_000
"""Tokens up to which the reference derenders the whole stream."""
PLACES = 12
REPEATS = 3
STREAMS = 64
SECONDS = 8.0
ONE_SHOT_TOKENS = 4_000
PATH = "/v1/chat/completions/derender"
PROMPT = "<|im_start|>user\nWhat is the weather in Kyoto?<|im_end|>\n<|im_start|>assistant\n"
REQUEST = {
    "model": "qwen3",
    "messages": [{"role": "user", "content": "What is the weather in Kyoto?"}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather of a city.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ],
}
THOUGHT = "I look at the map and the clouds over Zürich, then I think again about what was asked. "
CALL = '\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Kyōto"}}\n</tool_call>'

Post = Callable[[dict[str, Any]], tuple[dict[str, Any], int, int]]
AsyncPost = Callable[[dict[str, Any]], Awaitable[tuple[dict[str, Any], int, int]]]


@dataclass(frozen=True)
class Stream:
    """One stream's calls: seconds for each, bytes sent and received by each."""

    seconds: list[float]
    up: list[int]
    down: list[int]


def output(tokens: int) -> tuple[list[int], list[int]]:
    """The prompt's token ids, and so many of a reasoning that ends in a call."""
    backend = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    end = [*encode(CALL), *encode("<|im_end|>")]
    thought = encode("<think>\n" + THOUGHT * (tokens // 16 + 4))
    return encode(PROMPT), [*thought[: tokens - len(end)], *end]


def event(token_id: int, last: bool) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": [token_id], "finish_reason": "stop" if last else None}
    return {"request_id": "generate-tokens-chatcmpl-1", "choices": [choice]}


def whole_context(prompt: list[int]) -> dict[str, Any]:
    return {"chat_request": REQUEST, "prompt_token_ids": prompt, "prompt_tokens": len(prompt)}


def ours(post: Post, prompt: list[int], tokens: list[int]) -> Stream:
    """A whole stream; the request goes with its first call alone."""
    stream, state = Stream([], [], []), None
    for place, token_id in enumerate(tokens):
        body = {"stream": True, "model": "qwen3", "generate_chunk": event(token_id, place == len(tokens) - 1)}
        body |= {"stream_state": state} if state else whole_context(prompt)
        state = _call(post, body, stream)
    return stream


def theirs(post: Post, prompt: list[int], tokens: list[int]) -> Stream:
    """A whole stream at the reference, which reads the request and the prompt again with every call."""
    stream, state = Stream([], [], []), None
    for place, token_id in enumerate(tokens):
        last = place == len(tokens) - 1
        body = {"stream": True, "model": "qwen3", "generate_chunk": event(token_id, last), **whole_context(prompt)}
        state = _call(post, {**body, "stream_state": state}, stream)
    return stream


def _call(post: Post, body: dict[str, Any], stream: Stream) -> Any:
    began = time.perf_counter()
    answer, up, down = post(body)
    stream.seconds.append(time.perf_counter() - began)
    stream.up.append(up)
    stream.down.append(down)
    return answer["stream_state"]


def estimate(post: Post, prompt: list[int], tokens: list[int]) -> float:
    """Seconds for a whole stream at the reference, from its calls at places along the way."""
    places = [round(i * (len(tokens) - 2) / (PLACES - 1)) for i in range(PLACES)]
    taken: list[float] = []
    for place in places:
        state = {"output_token_ids": tokens[:place], "output_chunk_lens": [1] * place, "role_sent": place > 0}
        body = {"stream": True, "model": "qwen3", "generate_chunk": event(tokens[place], last=False)}
        stream = Stream([], [], [])
        for _ in range(REPEATS):
            _call(post, {**body, **whole_context(prompt), "stream_state": state}, stream)
        taken.append(statistics.median(stream.seconds))
    pairs = zip(zip(places, taken, strict=True), list(zip(places, taken, strict=True))[1:], strict=False)
    return sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairs)


class _Connection:
    """One HTTP/1.1 connection, of a client that takes little time itself."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname or "", address.port), timeout=600)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST {PATH} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        self._body = b""
        self._complete = False

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        self._complete = True

    def post(self, body: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
        payload = orjson.dumps(body)
        self._socket.sendall(f"{self._head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        self._body, self._complete = b"", False
        parser = httptools.HttpResponseParser(self)
        while not self._complete:
            received = self._socket.recv(1 << 18)
            assert received, "the server closed the connection"
            parser.feed_data(received)
        assert parser.get_status_code() == 200, self._body
        return orjson.loads(self._body), len(payload), len(self._body)


def _with_connection(url: str, work: Callable[[Post], Any]) -> Any:
    """Calls one after the other."""
    return work(_Connection(url).post)


async def _with_client(url: str, work: Callable[[AsyncPost], Awaitable[Any]]) -> Any:
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:

        async def post(body: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
            payload = orjson.dumps(body)
            headers = {"Content-Type": "application/json"}
            async with http.post(url + PATH, data=payload, headers=headers) as reply:
                raw = await reply.read()
                assert reply.status == 200, raw
                return orjson.loads(raw), len(payload), len(raw)

        return await work(post)


async def many(post: AsyncPost, prompt: list[int], tokens: list[int]) -> float:
    """Calls per second of many streams at once."""
    end_at = time.perf_counter() + SECONDS
    calls = 0

    async def one() -> None:
        nonlocal calls
        state = None
        for token_id in tokens:
            if time.perf_counter() > end_at:
                return
            body = {"stream": True, "model": "qwen3", "generate_chunk": event(token_id, last=False)}
            body |= {"stream_state": state} if state else whole_context(prompt)
            state = (await post(body))[0]["stream_state"]
            calls += 1

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(STREAMS)))
    return calls / (time.perf_counter() - began)


def one_shot(post: Post, prompt: list[int], tokens: list[int]) -> float:
    """Tokens per second of whole answers, one after the other."""
    choice = {"index": 0, "token_ids": tokens, "finish_reason": "stop"}
    response = {"request_id": "generate-tokens-chatcmpl-1", "choices": [choice]}
    body = {"model": "qwen3", "generate_response": response, **whole_context(prompt)}
    post(body)
    times = []
    for _ in range(15):
        began = time.perf_counter()
        post(body)
        times.append(time.perf_counter() - began)
    return len(tokens) / statistics.median(times)


def _measure_ours(post: Post) -> dict[str, Any]:
    ours(post, *output(200))  # warm
    streams = {length: ours(post, *output(length)) for length in LENGTHS}
    return {"streams": streams, "one-shot": one_shot(post, *output(ONE_SHOT_TOKENS))}


def _measure_theirs(post: Post) -> dict[str, Any]:
    waited = {length: theirs(post, *output(length)) for length in LENGTHS if length <= WAITED_FOR}
    estimated = {length: estimate(post, *output(length)) for length in LENGTHS if WAITED_FOR < length < 10_000}
    return {"streams": waited, "estimated": estimated, "one-shot": one_shot(post, *output(ONE_SHOT_TOKENS))}


def run() -> list[Table]:
    """The tables of this benchmark; none where the tokenizer is not there."""
    if not TOKENIZER.is_dir():
        return []
    with serve_yard() as url:
        found = _with_connection(url, _measure_ours)
        prompt, tokens = output(LENGTHS[-1])
        at_once = asyncio.run(_with_client(url, lambda post: many(post, prompt, tokens)))
    reference: dict[str, Any] = {"streams": {}, "estimated": {}, "one-shot": None}
    if (PEER / "bin" / "vllm").is_file():
        with serve_reference() as url:
            reference = _with_connection(url, _measure_theirs)
    rows = []
    for length, stream in found["streams"].items():
        other = reference["streams"].get(length)
        total = sum(stream.seconds)
        estimated = reference["estimated"].get(length)
        their_total = sum(other.seconds) if other else estimated
        rows.append(
            (
                str(length),
                f"{total:.1f}",
                "-" if their_total is None else f"{'' if other else '≈ '}{their_total:.1f}",
                "-" if their_total is None else f"{their_total / total:.0f}",
                f"{1e3 * statistics.median(stream.seconds):.2f}",
                " / ".join(f"{1e3 * s:.2f}" for s in _deciles(stream)),
                "-" if other is None else " / ".join(f"{1e3 * s:.1f}" for s in _deciles(other)),
                f"{statistics.median(stream.up):.0f} / {statistics.median(stream.down):.0f}",
                f"{max(stream.up[1:])} / {max(stream.down[1:])}",
                "-" if other is None else f"{other.up[-1]} / {other.down[-1]}",
            )
        )
    headings = (
        *("tokens", "ours, s", "reference, s", "ratio", "median call, ms"),
        *("first / last decile, ms", "reference's, ms"),
        *("bytes up / down, median", "largest", "reference's last"),
    )
    rate = reference["one-shot"]
    whole = [
        f"{found['one-shot']:.0f}",
        "-" if rate is None else f"{rate:.0f}",
        "-" if rate is None else f"{found['one-shot'] / rate:.1f}",
    ]
    return [
        Table(
            "A streamed derender over HTTP, one token a call (Qwen3's tokenizer, hermes and qwen3)",
            headings,
            rows,
            (
                "Reasoning that ends in a call; two CPU workers and one API process, whose client shares the cores.",
                "Deciles are medians of the calls in them.",
                f"≈: from the medians of {REPEATS} calls at {PLACES} places along the stream.",
                f"{STREAMS} streams at once: {at_once:.0f} calls per second.",
            ),
        ),
        Table(
            f"A whole answer of {ONE_SHOT_TOKENS} tokens derendered over HTTP, one after the other",
            ("ours, tokens per second", "reference, tokens per second", "ratio"),
            [whole],
        ),
    ]


def _deciles(stream: Stream) -> tuple[float, float]:
    tenth = max(1, len(stream.seconds) // 10)
    # The first call carries the request, and opens the connection.
    return statistics.median(stream.seconds[1 : tenth + 1]), statistics.median(stream.seconds[-tenth:])
