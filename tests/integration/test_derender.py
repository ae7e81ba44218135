"""A client that renders, generates and derenders in three requests, whole and streamed; and derendering jobs again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.conftest import RedisServer
from tests.integration.harness import Yard, scripted_model, write_tokenizer

CHAT = "/v1/chat/completions"
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
# The scripted engine repeats the prompt.
PROMPT = '<think>Hm, naïve 東京 🙂.</think>I look.<tool_call>{"name": "look", "arguments": {"at": "é"}}</tool_call>'


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("derender")
    tokenizer = write_tokenizer(folder / "tokenizer")
    thinker = scripted_model("thinker", tokenizer, chunk_tokens=2)
    thinker |= {"tool_parser": "hermes", "reasoning_parser": "qwen3"}
    yard = Yard(folder, redis_server, [thinker, scripted_model("echo", tokenizer)])
    yard.start_all(cpu=2, gpu=1)
    try:
        yard.await_ready()
        yield yard
    finally:
        yard.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, url: str, body: object) -> Any:
    async with http.post(url, json=body) as reply:
        answer = await reply.json()
        assert reply.status == 200, answer
        return answer


async def events(http: aiohttp.ClientSession, url: str, body: object) -> AsyncIterator[dict[str, Any]]:
    async with http.post(url, json=body) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[6:])


async def prompt_of(http: aiohttp.ClientSession, yard: Yard) -> list[int]:
    answer = await post(http, f"{yard.url}/tokenize", {"model": "echo", "prompt": PROMPT})
    return list(answer["tokens"])


def chat(count: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "thinker",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": count,
        "tools": [LOOK],
        **more,
    }


async def test_a_client_of_the_three_routes(yard: Yard, http: aiohttp.ClientSession) -> None:
    """vLLM's example client: render, generate, derender, each answer passed on to the next request."""
    asked = chat(len(await prompt_of(http, yard)))
    rendered = await post(http, f"{yard.url}{CHAT}/render", asked)
    generated = await post(http, f"{yard.url}/inference/v1/generate", rendered)
    ids = rendered["token_ids"]
    response = await post(
        http,
        f"{yard.url}{CHAT}/derender",
        {
            "model": "thinker",
            "generate_response": generated,
            "prompt_tokens": len(ids),
            "prompt_token_ids": ids,
            "chat_request": asked,
        },
    )
    coupled = await post(http, yard.url + CHAT, asked)
    for answer in (response, coupled):
        message = answer["choices"][0]["message"]
        assert message["reasoning"] == "Hm, naïve 東京 🙂." and message["content"] == "I look."
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"at": "é"}
    assert response["usage"] == coupled["usage"] and response["usage"]["completion_tokens"] == len(ids)
    assert response["id"] == rendered["request_id"] and response["id"].startswith("chatcmpl-")


@pytest.mark.parametrize("every_time", [True, False], ids=["all with every call", "the state alone"])
async def test_a_streaming_client_of_the_three_routes(
    yard: Yard, http: aiohttp.ClientSession, every_time: bool
) -> None:
    """vLLM's example client, and one that sends the request and its prompt only with the first call."""
    asked = chat(len(await prompt_of(http, yard)), stream=True, stream_options={"include_usage": True})
    rendered = await post(http, f"{yard.url}{CHAT}/render", asked)
    ids = rendered["token_ids"]
    about = {"prompt_tokens": len(ids), "prompt_token_ids": ids, "chat_request": asked}
    state, chunks = None, []
    async for event in events(http, f"{yard.url}/inference/v1/generate", rendered):
        body = {"stream": True, "model": "thinker", "generate_chunk": event, "stream_state": state}
        body |= about if every_time or state is None else {}
        derendered = await post(http, f"{yard.url}{CHAT}/derender", body)
        state = derendered["stream_state"]
        chunks.append(derendered["chunk"])
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert [delta["role"] for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert "".join(delta["reasoning"] or "" for delta in deltas) == "Hm, naïve 東京 🙂."
    assert "".join(delta["content"] or "" for delta in deltas) == "I look."
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert json.loads("".join(call.get("arguments", "") for call in calls)) == {"at": "é"}
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert len(ends) == 1 and chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 2 * len(ids) and not any(chunk["usage"] for chunk in chunks[:-1])


async def test_each_choice_of_a_stream_has_its_own_state(yard: Yard, http: aiohttp.ClientSession) -> None:
    asked = chat(30, stream=True, n=3, temperature=1)
    rendered = await post(http, f"{yard.url}{CHAT}/render", asked)
    about = {"prompt_token_ids": rendered["token_ids"], "chat_request": asked}
    states: dict[int, Any] = {}
    texts = {0: "", 1: "", 2: ""}
    async for event in events(http, f"{yard.url}/inference/v1/generate", rendered):
        index = event["choices"][0]["index"]
        carried = {"stream_state": states[index]} if index in states else about
        body = {"stream": True, "model": "thinker", "generate_chunk": event, **carried}
        derendered = await post(http, f"{yard.url}{CHAT}/derender", body)
        states[index] = derendered["stream_state"]
        (choice,) = derendered["chunk"]["choices"]
        assert choice["index"] == index
        texts[index] += (choice["delta"]["reasoning"] or "") + (choice["delta"]["content"] or "")
    coupled = await post(http, yard.url + CHAT, {**asked, "stream": False})
    for choice in coupled["choices"]:
        message = choice["message"]
        assert texts[choice["index"]] == (message["reasoning"] or "") + (message["content"] or "")


async def test_bad_derender_requests_name_the_field(yard: Yard, http: aiohttp.ClientSession) -> None:
    good = {"index": 0, "token_ids": [5], "finish_reason": "stop"}
    response = {"request_id": "r", "choices": [good]}
    event = {"request_id": "r", "choices": [{"index": 0, "token_ids": [5]}]}
    first = {"stream": True, "generate_chunk": event, "prompt_token_ids": [5], "chat_request": chat(4)}
    state = (await post(http, f"{yard.url}{CHAT}/derender", {"model": "thinker", **first}))["stream_state"]
    late = {"stream": True, "generate_chunk": event}
    many = [{"token_id": i, "logprob": -1.0} for i in range(40)]
    for path, body, param in (
        (CHAT, {}, "generate_response"),
        (CHAT, {"stream": True}, "generate_chunk"),
        (CHAT, {"generate_response": response}, "chat_request"),
        (CHAT, {"generate_response": response, "chat_request": {"messages": []}}, "chat_request.messages"),
        (CHAT, {**first, "chat_request": None}, "chat_request"),
        (CHAT, {**first, "prompt_token_ids": None}, "prompt_token_ids"),
        (CHAT, {**first, "prompt_token_ids": [5] * 5000}, "prompt_token_ids"),
        (CHAT, {**first, "generate_chunk": {"choices": [good, {**good, "index": 1}]}}, "generate_chunk.choices"),
        (CHAT, {**first, "generate_chunk": {"choices": [{**good, "token_ids": [5] * 4096}]}}, "generate_chunk"),
        (CHAT, {**late, "stream_state": {}}, "stream_state"),
        (CHAT, {**late, "stream_state": {**state, "v": 99}}, "stream_state"),
        (CHAT, {**late, "stream_state": {**state, "fingerprint": "other"}}, "stream_state"),
        (CHAT, {**late, "stream_state": {**state, "context": {**state["context"], "n": 2}}}, "stream_state"),
        (CHAT, {"generate_response": {**response, "output_mode": "text"}}, "generate_response.output_mode"),
        (CHAT, {"generate_response": {"choices": [good, good]}}, "generate_response.choices"),
        (CHAT, {"generate_response": {"choices": [{**good, "token_ids": [-1]}]}}, None),
        (
            CHAT,
            {
                "generate_response": {
                    "choices": [
                        {**good, "logprobs": {"content": [{"token_id": 5, "logprob": -1.0, "top_logprobs": many}]}}
                    ]
                },
                "chat_request": chat(4),
            },
            "generate_response.choices.0.logprobs",
        ),
        ("/v1/completions", {"generate_responses": []}, "generate_responses"),
        ("/v1/completions", {"generate_responses": [response], "prompt_tokens": [1, 2]}, "prompt_tokens"),
        ("/v1/responses", {"generate_response": {"choices": []}, "responses_request": {"input": "x"}}, None),
    ):
        async with http.post(f"{yard.url}{path}/derender", json={"model": "thinker", **body}) as reply:
            answer = await reply.json()
            assert reply.status == 400, (path, body, answer)
            assert param is None or answer["error"]["param"] == param, answer


async def test_a_stream_goes_on_when_a_worker_dies(yard: Yard, http: aiohttp.ClientSession) -> None:
    ids = await prompt_of(http, yard)
    state, content = None, ""
    try:
        for place, token_id in enumerate(ids):
            if place == 10:
                yard.kill("cpu1")
            body: dict[str, Any] = {
                "stream": True,
                "generate_chunk": {"choices": [{"index": 0, "token_ids": [token_id]}]},
            }
            body |= {"stream_state": state} if state else {"prompt_token_ids": ids, "chat_request": chat(len(ids))}
            derendered = await post(http, f"{yard.url}{CHAT}/derender", {"model": "thinker", **body})
            state = derendered["stream_state"]
            content += derendered["chunk"]["choices"][0]["delta"]["content"] or ""
        assert content == "I look."
    finally:
        yard.start_worker("cpu", "cpu1")
        await yard.until(http, lambda report: len(report["workers"]) >= 3 if "workers" in report else True)


async def test_what_a_job_generated_is_read_again(yard: Yard, http: aiohttp.ClientSession) -> None:
    count = len(await prompt_of(http, yard))
    async with http.post(f"{yard.url}/v1/jobs", json={"endpoint": CHAT, "body": chat(count, stream=True)}) as reply:
        job_id = (await reply.json())["id"]
    await yard.finished(http, job_id)
    result = await yard.job(http, job_id, "/result")
    yard.kill("gpu1")
    try:
        url = f"{yard.url}/v1/jobs/{job_id}/derender"
        async with http.post(url) as reply:
            again = await reply.json()
        assert reply.status == 200 and again["choices"] == result["choices"] and again["id"] == result["id"]
        other = await post(http, url, {"reasoning_parser": "deepseek_r1", "tool_parser": None})
        message = other["choices"][0]["message"]
        assert message["content"] == PROMPT.split("</think>")[1] and "tool_calls" not in message
        plain = await post(http, url, {"reasoning_parser": None, "tool_parser": None})
        assert plain["choices"][0]["message"]["content"] == PROMPT
        assert (await post(http, url, {"model": "echo"}))["choices"][0]["message"]["content"] == PROMPT
        for body, status, param in (
            ({"tool_parser": "nobody"}, 400, "tool_parser"),
            ({"tool_parser": "/tmp/mine.py:TABLE"}, 400, "tool_parser"),
            ({"model": "nobody"}, 404, "model"),
        ):
            async with http.post(url, json=body) as reply:
                answer = await reply.json()
                assert (reply.status, answer["error"]["param"]) == (status, param), answer
        async with http.post(f"{yard.url}/v1/jobs/job_0/derender") as reply:
            assert reply.status == 404
        # No GPU worker runs now, so the job waits.
        waiting = await yard.submit(http, "later", 5)
        async with http.post(f"{yard.url}/v1/jobs/{waiting}/derender") as reply:
            assert reply.status == 409
        async with http.delete(f"{yard.url}/v1/jobs/{waiting}") as reply:
            await reply.read()
        async with http.post(f"{yard.url}/v1/jobs/{waiting}/derender") as reply:
            assert reply.status == 404, "nothing was generated"
    finally:
        yard.start_worker("gpu", "gpu1")
        await asyncio.sleep(0)
