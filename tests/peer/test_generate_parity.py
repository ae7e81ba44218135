"""Bodies of the generate route, at vLLM itself and at a yard whose engine it is: the same answers, field by field.

`TOKENYARD_PEER` is the reference's virtual environment (default `~/.cache/vllm-peer`); `make peer` runs these tests
where it and the model are installed. A second vLLM has no tokenizer (`--tokens-only`): over it a yard must find stop strings
by itself, and answer as the first one does.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import RedisServer
from tests.integration.harness import UNHURRIED, Yard
from tests.peer.serving import serve_vllm
from tests.peer.test_yard_parity import WEATHER

pytestmark = pytest.mark.peer_live

QWEN3 = Path.home() / ".cache" / "tiny-qwen3"
GENERATE = "/inference/v1/generate"
CHAT = {"model": "qwen3", "messages": [{"role": "user", "content": "Weather in Zürich for 3 days?"}]}
RANDOM = {"temperature": 0.8, "seed": 5}
MAX_MODEL_LEN = 16_384
"""So much takes the engine a minute to write, many times what it takes to stop it on a machine with other things to do."""


@dataclass(frozen=True)
class Pair:
    """Clients of vLLM and of the yard, and the URL of the engine without a tokenizer."""

    reference: httpx.Client
    yard: httpx.Client
    bare: str

    def render(self, **asked: Any) -> dict[str, Any]:
        """A chat as the yard's render route prepares it."""
        body: dict[str, Any] = self.yard.post("/v1/chat/completions/render", json={**CHAT, **asked}).json()
        return body


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Pair]:
    parsers = ("--tool-call-parser=hermes", "--reasoning-parser=qwen3", "--enable-auto-tool-choice")
    with ExitStack() as stack:
        start = stack.enter_context
        url = start(
            serve_vllm(
                tmp_path_factory.mktemp("vllm"),
                QWEN3,
                "qwen3",
                "--enable-scale-out",
                "--no-enable-prefix-caching",
                *parsers,
                max_model_len=MAX_MODEL_LEN,
            )
        )
        bare = start(
            serve_vllm(
                tmp_path_factory.mktemp("bare"),
                QWEN3,
                "qwen3",
                "--tokens-only",
                "--no-enable-prefix-caching",
                max_model_len=MAX_MODEL_LEN,
            )
        )
        no_parsers = {"tool_parser": "none", "reasoning_parser": "none"}
        shared = {"tokenizer": str(QWEN3), "max_model_len": MAX_MODEL_LEN}
        engine = {"kind": "vllm", "concurrency": 16, "model": "qwen3"}
        models = [
            {
                "name": "qwen3",
                **shared,
                "tool_parser": "hermes",
                "reasoning_parser": "qwen3",
                "engine": {**engine, "urls": [url]},
            },
            {
                "name": "bare",
                **shared,
                **no_parsers,
                "engine": {**engine, "urls": [bare], "options": {"send_stop": False}},
            },
        ]
        yard = Yard(tmp_path_factory.mktemp("yard"), redis_server, models, queue=UNHURRIED)
        yard.start_all(cpu=1, gpu=1)
        stack.callback(yard.stop)
        yard.await_ready(180)
        reference, ours = (start(httpx.Client(base_url=base, timeout=60)) for base in (url, yard.url))
        yield Pair(reference, ours, bare)


def ask(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer, without what differs from one run to the next; a stream put together, with the form of its events."""
    if not body.get("stream"):
        reply = client.post(GENERATE, json=body)
        answer: dict[str, Any] = reply.json()
        if reply.status_code != 200:
            return {"status": reply.status_code}
        return dict(_neutral({**answer, "created": None}))
    with client.stream("POST", GENERATE, json=body) as reply:
        lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
    if reply.status_code != 200:
        return {"status": reply.status_code}
    assert lines[-1] == "[DONE]"
    return dict(_neutral(_folded([json.loads(line) for line in lines[:-1]])))


def _folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    forms = set()
    told = [at for at, event in enumerate(events) if "prompt_token_ids" in event]
    for event in events:
        forms.add(tuple(sorted(event.keys() - {"prompt_token_ids"})))
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"token_ids": [], "text": "", "logprobs": []})
            choice["form"] = sorted(part)
            choice["token_ids"] += part["token_ids"]
            choice["text"] += part.get("text", "")
            choice["logprobs"] += (part["logprobs"] or {"content": []})["content"]
            choice["end"] = part["finish_reason"], part["stop_reason"]
            if event["usage"] is not None:
                assert event["usage"]["completion_tokens"] == len(choice["token_ids"])
    last = events[-1] if not events[-1]["choices"] else None
    return {
        "choices": choices,
        "forms": sorted(forms),
        "prompt told in": told,
        "prompt": events[0].get("prompt_token_ids"),
        "running usage": [sorted(event["usage"]) for event in events if event["usage"] is not None][:1],
        "last": last,
        "request_id": events[0]["request_id"],
    }


def _neutral(value: Any) -> Any:
    """Numbers of log-probabilities rounded, ids of calls left out."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, list):
        return [_neutral(one) for one in value]
    if isinstance(value, dict):
        return {name: _neutral(one) for name, one in value.items()}
    if isinstance(value, str):
        return re.sub(r"chatcmpl-tool-\w+", "chatcmpl-tool", value)
    return value


def usage(*, continuous: bool = False) -> dict[str, Any]:
    return {"include_usage": True, "continuous_usage_stats": continuous}


PLAIN: dict[str, dict[str, Any]] = {
    "greedy": {},
    "three choices": {"sampling_params": {**RANDOM, "n": 3}},
    "sampled log-probabilities": {"sampling_params": {"logprobs": 0}},
    "three candidates": {"sampling_params": {"logprobs": 3, **RANDOM, "n": 2}},
    "stop tokens": {"stop_at": 7},
    "as much as there is room for": {"sampling_params": {"max_tokens": None}, "prompt_tokens": 2030},
    "its prompt back": {"return_token_ids": True},
    "usage": {"stream_options": usage()},
    "usage as it goes": {"stream_options": usage(continuous=True), "sampling_params": {**RANDOM, "n": 2}},
    "a short one": {"sampling_params": {"max_tokens": 1}},
    "the end of text ignored": {"sampling_params": {"ignore_eos": True, "min_tokens": 5}},
}


def plain(pair: Pair, **changes: Any) -> dict[str, Any]:
    token_ids = pair.render()["token_ids"]
    if "prompt_tokens" in changes:
        token_ids = (token_ids * 2030)[: changes.pop("prompt_tokens")]
    params = {"temperature": 0, "max_tokens": 24, **(changes.pop("sampling_params", None) or {})}
    if params["max_tokens"] is None:
        del params["max_tokens"]
    if "stop_at" in changes:
        greedy = pair.reference.post(GENERATE, json=plain(pair)).json()
        params["stop_token_ids"] = [greedy["choices"][0]["token_ids"][changes.pop("stop_at")]]
    body = {"request_id": "same", "model": "qwen3", "token_ids": token_ids, "sampling_params": params}
    return {**body, **changes}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("mode", ["tokens", "text"])
def test_tokens_and_texts_are_the_same(pair: Pair, name: str, stream: bool, mode: str) -> None:
    body = plain(pair, **PLAIN[name], stream=stream, output_mode=mode)
    ours = ask(pair.yard, body)
    assert ours == ask(pair.reference, body) and "status" not in ours


def test_log_probabilities_of_the_prompt_are_the_same(pair: Pair) -> None:
    body = plain(pair, sampling_params={"prompt_logprobs": 1, "max_tokens": 2})
    ours = ask(pair.yard, body)
    assert ours == ask(pair.reference, body) and len(ours["prompt_logprobs"]) == len(body["token_ids"])


# The tiny model is random: its reasoning never ends, and a call must be all that it may write.
CALL: dict[str, Any] = {
    "tools": [WEATHER],
    "tool_choice": "required",
    "max_tokens": 80,
    "chat_template_kwargs": {"enable_thinking": False},
}
CHATS: dict[str, dict[str, Any]] = {
    "a required call": CALL,
    "a named call": {**CALL, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    "a call cut off": {**CALL, "max_tokens": 9},
    "reasoning": {"max_tokens": 30},
    "hidden reasoning": {"include_reasoning": False, "max_tokens": 30, "logprobs": True},
    "candidates": {"max_tokens": 12, "logprobs": True, "top_logprobs": 2},
    "no thinking": {"max_tokens": 20, "chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.mark.parametrize("name", CHATS)
def test_messages_are_the_same(pair: Pair, name: str) -> None:
    body = {**pair.render(**{"temperature": 0, **CHATS[name]}), "output_mode": "derender", "request_id": "same"}
    ours, theirs = (ask(client, body) for client in (pair.yard, pair.reference))
    assert ours == theirs and "status" not in ours


UNTOLD = {"weight_versions": "The engine tells them with the end of its own output, which it never comes to."}
"""Fields of a choice that an answer lacks whose end is not the engine's, and why."""


def stop_body(pair: Pair, mode: str, **more: Any) -> dict[str, Any]:
    """A request whose answer holds its stop string in its middle."""
    sampled = plain(pair, output_mode="text", sampling_params={**RANDOM, "max_tokens": 40})
    text = pair.reference.post(GENERATE, json=sampled).json()["choices"][0]["text"]
    stop = next(text[at:][:3] for at in range(len(text) // 2, len(text)) if "\ufffd" not in text[at:][:3])
    params = {**RANDOM, "stop": [stop], "max_tokens": MAX_MODEL_LEN - 500}
    return plain(pair, output_mode=mode, sampling_params=params, **more)


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["qwen3", "bare"])
def test_stop_strings_end_the_same_answer(pair: Pair, mode: str, stream: bool, model: str) -> None:
    body = stop_body(pair, mode, stream=stream)
    expected = ask(pair.reference, body)
    before = generated(pair.bare)
    ours = ask(pair.yard, {**body, "model": model})
    for answer in (expected, ours) if model == "bare" and not stream else ():
        answer["model"] = model
        answer["choices"][0] |= dict.fromkeys(UNTOLD)
    assert ours == expected
    if model == "bare":
        assert httpx.post(pair.bare + GENERATE, json=body).status_code == 400, "it knows no texts"
        while running(pair.bare):
            time.sleep(0.1)
        assert 0 < generated(pair.bare) - before < MAX_MODEL_LEN / 2, "the engine went on to its end"


def metric(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))


def generated(url: str) -> float:
    return metric(url, "generation_tokens_total")


def running(url: str) -> float:
    return metric(url, "num_requests_running") + metric(url, "num_requests_waiting")


BAD: dict[str, dict[str, Any]] = {
    "no prompt": {"token_ids": []},
    "a negative id": {"token_ids": [-1]},
    "an id that is a word": {"token_ids": ["x"]},
    "no sampling parameters": {"sampling_params": None},
    "sampling parameters of another kind": {"sampling_params": 5},
    "no choices": {"sampling_params": {"n": 0}},
    "greedy choices": {"sampling_params": {"n": 2, "temperature": 0}},
    "too hot": {"sampling_params": {"temperature": 3}},
    "no tokens": {"sampling_params": {"max_tokens": 0}},
    "an empty stop": {"sampling_params": {"stop": [""]}},
    "another mode": {"output_mode": "verse"},
    "text that is not decoded": {"output_mode": "text", "sampling_params": {"detokenize": False}},
    "stops that are not decoded": {"sampling_params": {"detokenize": False, "stop": ["x"]}},
    "a message without context": {"output_mode": "derender"},
    "a context from the future": {"output_mode": "derender", "parse_context": {"tense": "future"}},
    "a context from the future, ignored": {"parse_context": {"tense": "future"}},
    "a context of another kind": {"parse_context": {"tools": 5}},
    "a tool that is not there": {
        "output_mode": "derender",
        "parse_context": {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    },
    "prompt scores in a stream": {"stream": True, "sampling_params": {"prompt_logprob_token_ids": [1]}},
    "a salt with a slash": {"cache_salt": "a/b"},
    "a salt that is too long": {"cache_salt": "a" * 200},
    "a large priority": {"priority": 2**63},
    "parts and features": {
        "content_parts": [{"type": "image_url", "url": "x"}],
        "features": {"mm_hashes": {}, "mm_placeholders": {}},
    },
    "features of unequal length": {"features": {"mm_hashes": {"image": ["x"]}, "mm_placeholders": {"image": []}}},
    "features beyond the prompt": {
        "features": {
            "mm_hashes": {"image": ["x"]},
            "mm_placeholders": {"image": [{"offset": 1, "length": 2}]},
        },
        "token_ids": [1, 2],
    },
    "other arguments for the parser": {"reasoning_parser_kwargs": {"model": "x"}},
    "a prompt that is too long": {"token_ids": [5] * MAX_MODEL_LEN},
    "a model that nobody serves": {"model": "other"},
    "an id that the model does not have": {"token_ids": [10**7]},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bodies_have_the_same_status(pair: Pair, name: str) -> None:
    body = {"model": "qwen3", "token_ids": [5, 6], "sampling_params": {"max_tokens": 2}, **BAD[name]}
    if body["sampling_params"] is None:
        del body["sampling_params"]
    theirs, ours = (client.post(GENERATE, json=body) for client in (pair.reference, pair.yard))
    assert ours.status_code == theirs.status_code, (theirs.text, ours.text)
    if ours.status_code != 200:
        assert ours.json()["error"]["message"]
