"""A chat through the whole yard against the same chat at vLLM itself: content, finish reason, usage, tool calls.

`TOKENYARD_PEER` is the reference's virtual environment (default `~/.cache/vllm-peer`); `make peer` runs these tests
where it and the models are installed. One vLLM is at once the yard's engine and the server that it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.conftest import RedisServer
from tests.integration.harness import UNHURRIED, Yard
from tests.peer.serving import serve_vllm

pytestmark = pytest.mark.peer_live

SMOLLM2 = Path.home() / ".cache" / "smollm2-135m-instruct" / "hf"
QWEN3 = Path.home() / ".cache" / "tiny-qwen3"

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Zürich", "Kyoto"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def _user(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 40, **more}


PROMPTS: list[dict[str, Any]] = [
    _user("What is the capital of France?"),
    _user("Name three colors."),
    _user("Write one sentence about the sea."),
    # The reference takes no second choice at temperature 0; a seed makes two choices repeatable.
    _user("What is 2 + 2?", n=2, temperature=0.8, seed=11),
    _user("Count from one to ten.", n=2, max_tokens=30, temperature=0.8, seed=3),
    _user("Count from one to ten.", stop=["five"]),
    _user("Name the days of the week.", stop=["Wed", "Tue"]),
    _user("Name the days of the week.", stop=["Tuesday"], include_stop_str_in_output=True),
    _user("Name the months of the year.", stop="March", max_tokens=64),
    _user("Write a poem about rain.", max_tokens=1),
    _user("Say hello in Japanese: こんにちは 🙂"),
    _user("Translate 'Grüß Gott' into English.", max_tokens=24),
    _user("What is a tokenizer?", logprobs=True, top_logprobs=2, max_tokens=12),
    _user("List two fruits.", logprobs=True, max_tokens=8, n=2, temperature=0.7, seed=5),
    _user("What is the opposite of hot?", seed=7),
    _user("Describe a yard.", frequency_penalty=0.5, presence_penalty=0.3),
    _user("Repeat: a a a a a", logit_bias={"504": -100}),
    {
        "messages": [
            {"role": "system", "content": "You answer in one word."},
            {"role": "user", "content": "What animal barks?"},
        ],
        "max_tokens": 16,
    },
    {
        "messages": [
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Nice to meet you, Ada."},
            {"role": "user", "content": "What is my name?"},
        ],
        "max_completion_tokens": 20,
    },
    _user("Answer with a long text.", max_tokens=64, min_tokens=48),
]


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[tuple[OpenAI, OpenAI]]:
    """Clients of vLLM and of a yard whose engine it is."""
    name, folder, parsers = request.param
    flags = [f"--{kind.replace('_', '-')}={parser}" for kind, parser in parsers.items()]
    flags += ["--enable-auto-tool-choice"] if parsers else []
    flags += ["--enable-scale-out", "--no-enable-prefix-caching"]
    with serve_vllm(tmp_path_factory.mktemp("vllm"), folder, name, *flags) as url:
        model = {
            "name": name,
            "tokenizer": str(folder),
            "max_model_len": 2048,
            "tool_parser": parsers.get("tool_call_parser", "none"),
            "reasoning_parser": parsers.get("reasoning_parser", "none"),
            "engine": {"kind": "vllm", "urls": [url], "concurrency": 16},
        }
        yard = Yard(tmp_path_factory.mktemp("yard"), redis_server, [model], queue=UNHURRIED)
        yard.start_all(cpu=1, gpu=1)
        try:
            yard.await_ready(180)
            yield (
                OpenAI(base_url=f"{url}/v1", api_key="-"),
                OpenAI(base_url=f"{yard.url}/v1", api_key="-", max_retries=0),
            )
        finally:
            yard.stop()


def fold(stream: Any) -> dict[str, Any]:
    """A stream's chunks as one answer."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for part in chunk.choices:
            choice = choices.setdefault(
                part.index, {"content": "", "reasoning": "", "calls": {}, "finish": None, "logprobs": []}
            )
            choice["content"] += part.delta.content or ""
            choice["reasoning"] += getattr(part.delta, "reasoning", None) or ""
            for call in part.delta.tool_calls or []:
                made = choice["calls"].setdefault(call.index, {"name": "", "arguments": ""})
                made["name"] += call.function.name or ""
                made["arguments"] += call.function.arguments or ""
            choice["finish"] = part.finish_reason or choice["finish"]
            if part.logprobs:
                choice["logprobs"] += [(p.token, p.bytes, len(p.top_logprobs)) for p in part.logprobs.content]
    return {"choices": choices, "usage": usage and usage.model_dump(exclude_none=True)}


def whole(answer: Any) -> dict[str, Any]:
    """A one-shot answer in the same form."""
    choices = {}
    for choice in answer.choices:
        message = choice.message
        calls = {
            i: {"name": call.function.name, "arguments": call.function.arguments}
            for i, call in enumerate(message.tool_calls or [])
        }
        logprobs = choice.logprobs.content if choice.logprobs else []
        choices[choice.index] = {
            "content": message.content or "",
            "reasoning": getattr(message, "reasoning", None) or "",
            "calls": calls,
            "finish": choice.finish_reason,
            "logprobs": [(p.token, p.bytes, len(p.top_logprobs)) for p in logprobs],
        }
    return {"choices": choices, "usage": answer.usage.model_dump(exclude_none=True)}


def ask(client: OpenAI, model: str, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    known = {"include_stop_str_in_output", "min_tokens"}
    extra = {key: value for key, value in body.items() if key in known}
    rest = {key: value for key, value in body.items() if key not in known}
    create: Any = client.chat.completions.create
    if stream:
        options = {"include_usage": True}
        return fold(create(model=model, stream=True, stream_options=options, extra_body=extra, **rest))
    return whole(create(model=model, extra_body=extra, **rest))


smollm2 = pytest.mark.parametrize("pair", [("smollm2", SMOLLM2, {})], indirect=True, ids=["smollm2"])
qwen3 = pytest.mark.parametrize(
    "pair",
    [("qwen3", QWEN3, {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"})],
    indirect=True,
    ids=["qwen3"],
)


@smollm2
@pytest.mark.parametrize("body", PROMPTS, ids=lambda body: body["messages"][-1]["content"][:24])
def test_a_chat_is_the_same(pair: tuple[OpenAI, OpenAI], body: dict[str, Any]) -> None:
    reference, yard = pair
    body = {"temperature": 0, **body}
    for stream in (False, True):
        assert ask(yard, "smollm2", body, stream=stream) == ask(reference, "smollm2", body, stream=stream)


TOOL_CASES: list[dict[str, Any]] = [
    _user("Weather in Zürich for 3 days?", tools=[WEATHER], tool_choice="required", max_tokens=200),
    _user("Weather in Kyoto?", tools=[WEATHER], tool_choice="required", max_tokens=200, n=2, temperature=0.8, seed=4),
    _user(
        "Weather in Kyoto?",
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
    ),
    _user("Weather in Kyoto?", tools=[WEATHER], tool_choice="required", max_tokens=12),
]


@qwen3
@pytest.mark.peer_smoke
@pytest.mark.parametrize("body", TOOL_CASES, ids=["required", "two choices", "named", "cut off"])
def test_tool_calls_are_the_same(pair: tuple[OpenAI, OpenAI], body: dict[str, Any]) -> None:
    reference, yard = pair
    body = {"temperature": 0, **body}
    ours, theirs = (ask(client, "qwen3", body, stream=False) for client in (yard, reference))
    assert ours == theirs
    streamed = ask(yard, "qwen3", body, stream=True)
    for index, choice in streamed["choices"].items():
        assert choice["calls"] == theirs["choices"][index]["calls"]
        assert choice["finish"] == theirs["choices"][index]["finish"]
