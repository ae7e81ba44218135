"""What the reference's coupled server answers to a request, and what we make of the same tokens that it generates.

One server is both: its chat or completions route answers the client's request as a whole, its render and generate
routes give the tokens of the same request, and these go through our derender routes' bodies, whole and event by event.
Qwen3's tokenizer is byte-level, Llama 2's SentencePiece with byte fallback; both models are random, and held to a grammar
where the request forces a call. `KNOWN` lists the wanted differences.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.protocol.base import JsonObject
from tasks.settings import ModelSettings
from tests.peer.recordings import Recording
from tests.peer.reference import PEER, TOKENIZERS
from tests.peer.serving import answering_vllm
from tests.peer.test_yard_parity import QWEN3, WEATHER
from workers.derender.answers import derender_request
from workers.models.catalog import ModelProfile, load_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def _chat(**fields: Any) -> JsonObject:
    base = {"messages": [{"role": "user", "content": "Weather in Kyōto? 🙂"}], "max_tokens": 40, "temperature": 0}
    return {"model": "m", **base, **fields}


def _text(**fields: Any) -> JsonObject:
    return {"model": "m", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, **fields}


SEEDED = {"temperature": 0.9, "seed": 7}
CHATS: dict[str, JsonObject] = {
    "plain": _chat(),
    "three choices": _chat(n=3, **SEEDED),
    "log-probabilities": _chat(logprobs=True, top_logprobs=0),
    "three candidates": _chat(logprobs=True, top_logprobs=3, n=3, **SEEDED),
    "twenty candidates": _chat(logprobs=True, top_logprobs=20, max_tokens=12),
    "candidates of answers": _chat(
        logprobs=True, top_logprobs=3, chat_template_kwargs={"enable_thinking": False}, max_tokens=12
    ),
    "reasoning hidden": _chat(include_reasoning=False, logprobs=True, return_token_ids=True),
    "token ids": _chat(return_token_ids=True),
    "a stop string": _chat(stop=["e", "a"]),
    "a stop string kept": _chat(stop=["e", "a"], include_stop_str_in_output=True),
    "no reasoning": _chat(chat_template_kwargs={"enable_thinking": False}),
    "tools, auto": _chat(tools=[WEATHER], tool_choice="auto"),
    "tools, none": _chat(tools=[WEATHER], tool_choice="none"),
    "tools, required": _chat(tools=[WEATHER], tool_choice="required", max_tokens=200),
    "tools, named": _chat(tools=[WEATHER], tool_choice=NAMED, max_tokens=200),
    "tools, required, one": _chat(
        tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=200, n=3, **SEEDED
    ),
    "a call cut": _chat(tools=[WEATHER], tool_choice="required", max_tokens=12),
}
TEXTS: dict[str, JsonObject] = {
    "plain": _text(),
    "three choices": _text(n=3, **SEEDED),
    "log-probabilities": _text(logprobs=0),
    "three candidates": _text(logprobs=3, n=3, **SEEDED),
    "twenty candidates": _text(logprobs=19, max_tokens=8),
    "tokens as ids": _text(logprobs=2, return_tokens_as_token_ids=True),
    "token ids": _text(return_token_ids=True),
    "a stop string": _text(stop=["e", "a"]),
    "special tokens": _text(skip_special_tokens=False, n=3, **SEEDED),
    "two prompts": _text(prompt=["Once upon a time", "日本語 🙂"]),
}

KNOWN: dict[tuple[str, str], str] = {}
"""(case, "whole" or "streamed") → why it differs."""


@pytest.fixture(scope="module")
def qwen3(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ModelProfile]]:
    if not (TOKENIZERS / "qwen3").is_dir():
        pytest.skip("the tokenizer is not there")
    flags = ["--enable-scale-out", "--tool-call-parser=hermes", "--reasoning-parser=qwen3"]
    flags += ["--enable-auto-tool-choice", "--no-enable-prefix-caching", "--max-logprobs=20"]
    settings = ModelSettings(
        name="m",
        tokenizer=str(TOKENIZERS / "qwen3"),
        tool_parser="hermes",
        reasoning_parser="qwen3",
        max_model_len=2048,
    )
    with answering_vllm(recording, tmp_path_factory.mktemp("vllm"), QWEN3, "m", *flags) as url:
        yield url, load_model(settings)


@pytest.fixture(scope="module")
def llama2(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ModelProfile]]:
    if not (TOKENIZERS / "llama2").is_dir():
        pytest.skip("the tokenizer is not there")
    folder = tmp_path_factory.mktemp("models") / "llama2"
    if recording.asks:
        script = Path(__file__).with_name("random_model.py")
        subprocess.run([str(PEER / "bin/python"), str(script), str(TOKENIZERS / "llama2"), str(folder)], check=True)
    settings = ModelSettings(name="m", tokenizer=str(TOKENIZERS / "llama2"), max_model_len=2048)
    flags = ["--enable-scale-out", "--no-enable-prefix-caching", "--max-logprobs=20"]
    with answering_vllm(recording, tmp_path_factory.mktemp("vllm"), folder, "m", *flags) as url:
        yield url, load_model(settings)


def post(url: str, body: JsonObject) -> Any:
    """The JSON of an answer, or of each event of a streamed one."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            if not body.get("stream"):
                return json.loads(reply.read())
            lines = [line[6:] for line in reply.read().decode().split("\n") if line.startswith("data: ")]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error
    return [json.loads(line) for line in lines if line != "[DONE]"]


def generate(url: str, route: str, body: JsonObject, *, stream: bool) -> tuple[list[JsonObject], list[Any]]:
    """The requests that rendering gives for a body, and what the engine answers to each."""
    rendered = post(url + route + "/render", body)
    requests = rendered if isinstance(rendered, list) else [rendered]
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return requests, [post(f"{url}/inference/v1/generate", {**request, **more}) for request in requests]


def plain(answer: JsonObject) -> JsonObject:
    """An answer without what no two answers share, calls' arguments as values."""
    choices = json.loads(json.dumps(answer["choices"]))
    for choice in choices:
        for call in (choice.get("message") or {}).get("tool_calls") or ():
            call["id"] = ""
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    usage = {name: value for name, value in answer["usage"].items() if name != "prompt_tokens_details"}
    return {"choices": choices, "usage": usage, "id": answer["id"][:5]}


def near(ours: Any, theirs: Any) -> bool:
    """Equal, log-probabilities but for what two runs of one engine differ in."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(near(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(near(*pair) for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) < 1e-2
    return bool(ours == theirs)


def told(chunks: list[JsonObject], what: str) -> JsonObject:
    """What all chunks of a stream say of each choice; white space at the ends of a chat's texts aside."""
    out: dict[int, JsonObject] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"] if what == CHAT else {"content": choice["text"]}
            one = out.setdefault(
                choice["index"], {"content": "", "reasoning": "", "calls": {}, "end": None, "ids": [], "logprobs": []}
            )
            one["content"] += delta.get("content") or ""
            one["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or ():
                made = one["calls"].setdefault(call["index"], ["", ""])
                made[0] += call["function"].get("name") or ""
                made[1] += call["function"].get("arguments") or ""
            if choice["finish_reason"]:
                one["end"] = [choice["finish_reason"], choice.get("stop_reason")]
            one["ids"] += choice.get("token_ids") or []
            logprobs = choice.get("logprobs") or {}
            if what == CHAT:
                one["logprobs"] += logprobs.get("content") or []
            elif logprobs:
                columns = (logprobs[name] for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"))
                one["logprobs"] += [list(row) for row in zip(*columns, strict=True)]
    return {str(index): {**one, "content": one["content"].strip("\n")} for index, one in out.items()}


def derendered(profile: ModelProfile, surface: str, body: JsonObject, requests: Any, responses: Any) -> JsonObject:
    prompts = [request["token_ids"] for request in requests]
    if surface == "openai_chat":
        about = {"generate_response": responses[0], "prompt_token_ids": prompts[0], "chat_request": body}
        return derender_request(profile, surface, {**about, "prompt_tokens": len(prompts[0])}, created=1)
    about = {"generate_responses": responses, "prompt_token_ids": prompts, "completion_request": body}
    return derender_request(profile, surface, {**about, "prompt_tokens": [len(p) for p in prompts]}, created=1)


def derendered_stream(
    profile: ModelProfile, surface: str, body: JsonObject, request: JsonObject, events: list[JsonObject]
) -> list[JsonObject]:
    """The chunks of an engine's stream, with one state for each choice."""
    field = "chat_request" if surface == "openai_chat" else "completion_request"
    about = {"prompt_token_ids": request["token_ids"], "prompt_tokens": len(request["token_ids"]), field: body}
    states: dict[int, JsonObject] = {}
    chunks = []
    for event in events:
        index = event["choices"][0]["index"] if event["choices"] else min(states)
        carried = {"stream_state": states[index]} if index in states else about
        answer = derender_request(profile, surface, {"stream": True, "generate_chunk": event, **carried}, created=1)
        states[index] = json.loads(json.dumps(answer["stream_state"]))
        chunks.append(answer["chunk"])
    return chunks


def compare(server: tuple[str, ModelProfile], surface: str, route: str, name: str, body: JsonObject) -> None:
    url, profile = server
    ours = plain(derendered(profile, surface, body, *generate(url, route, body, stream=False)))
    theirs = plain(post(url + route, body))
    assert near(ours, theirs) != ((name, "whole") in KNOWN), f"ours {ours}\ntheirs {theirs}"
    if isinstance(body.get("prompt"), list):
        return
    requests, (events,) = generate(url, route, body, stream=True)
    chunks = derendered_stream(profile, surface, body, requests[0], events)
    streamed = post(url + route, {**body, "stream": True, "stream_options": {"include_usage": True}})
    mine, other = told(chunks, route), told(streamed, route)
    assert near(mine, other) != ((name, "streamed") in KNOWN), f"ours {mine}\ntheirs {other}"
    assert chunks[-1]["usage"]["total_tokens"] == streamed[-1]["usage"]["total_tokens"]


@pytest.mark.parametrize("name", CHATS)
def test_chats(qwen3: tuple[str, ModelProfile], name: str) -> None:
    compare(qwen3, "openai_chat", CHAT, name, CHATS[name])


@pytest.mark.parametrize("name", TEXTS)
def test_completions_of_a_byte_level_tokenizer(qwen3: tuple[str, ModelProfile], name: str) -> None:
    compare(qwen3, "openai_completions", COMPLETIONS, name, TEXTS[name])


@pytest.mark.parametrize("name", TEXTS)
def test_completions_of_a_tokenizer_with_byte_fallback(llama2: tuple[str, ModelProfile], name: str) -> None:
    compare(llama2, "openai_completions", COMPLETIONS, name, TEXTS[name])
