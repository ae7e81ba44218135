"""The routes of single stages on real queues: their answers are what a whole request would use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest
from tokenizers import Tokenizer

from tests.conftest import RedisServer
from tests.integration.harness import Yard, scripted_model, write_tokenizer


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("stages")
    yard = Yard(folder, redis_server, [scripted_model("echo", write_tokenizer(folder / "tokenizer"))])
    yard.start_all(cpu=1, gpu=1)
    try:
        yard.await_ready()
        yield yard
    finally:
        yard.stop()


async def _post(yard: Yard, path: str, body: object) -> tuple[int, object]:
    async with aiohttp.ClientSession() as http, http.post(yard.url + path, json=body) as reply:
        return reply.status, await reply.json()


async def test_every_surface_renders(yard: Yard) -> None:
    text = "the yard runs every request"
    tokenizer = Tokenizer.from_file(str(yard.folder / "tokenizer" / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    user = [{"role": "user", "content": text}]
    bodies = {
        "/v1/chat/completions/render": {"model": "echo", "messages": user, "max_tokens": 7, "stream": True},
        "/v1/responses/render": {"model": "echo", "input": text, "max_output_tokens": 7},
        "/v1/messages/render": {"model": "echo", "messages": user, "max_tokens": 7},
    }
    answers = await asyncio.gather(*(_post(yard, path, body) for path, body in bodies.items()))
    for (path, _), (status, answer) in zip(bodies.items(), answers, strict=True):
        assert status == 200, (path, answer)
        assert isinstance(answer, dict)
        assert answer["token_ids"] == ids and answer["model"] == "echo"
        assert answer["sampling_params"]["max_tokens"] == 7
        assert ("parse_context" in answer) == ("responses" not in path)
    status, several = await _post(yard, "/v1/completions/render", {"model": "echo", "prompt": [text, text]})
    assert status == 200 and isinstance(several, list)
    assert [one["token_ids"] for one in several] == [ids, ids]
    assert several[0]["request_id"].endswith("-0") and several[1]["request_id"].endswith("-1")


async def test_tokens_there_and_back(yard: Yard) -> None:
    text = "naïve café 東京 🙂"
    status, answer = await _post(yard, "/tokenize", {"prompt": text, "return_token_strs": True})
    assert status == 200 and isinstance(answer, dict)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) and answer["max_model_len"] == 4096
    status, back = await _post(yard, "/detokenize", {"model": "echo", "tokens": answer["tokens"]})
    assert (status, back) == (200, {"prompt": text})
    chat = {"model": "echo", "messages": [{"role": "user", "content": text}]}
    assert (await _post(yard, "/tokenize", chat))[1] == {**answer, "token_strs": None}


async def test_bad_stage_requests_name_the_field(yard: Yard) -> None:
    for path, body, param in (
        (
            "/v1/responses/render",
            {"model": "echo", "input": "x", "previous_response_id": "resp_1"},
            "previous_response_id",
        ),
        ("/v1/chat/completions/render", {"model": "echo", "messages": []}, "messages"),
        ("/v1/messages/render", {"model": "echo", "messages": [{"role": "user", "content": "x"}]}, "max_tokens"),
        ("/detokenize", {"model": "echo", "tokens": [-1]}, "tokens.0"),
    ):
        status, answer = await _post(yard, path, body)
        assert status == 400 and isinstance(answer, dict), (path, answer)
        assert answer["error"]["param"] == param, answer
