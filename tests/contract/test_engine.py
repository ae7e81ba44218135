"""What every engine must do.

`EngineContract` is the suite. A subclass provides the fixtures `engine` and `prompt`, and the method `running`, which
returns how many requests the engine's servers are working on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tasks.errors import EngineRefused, InvalidRequest
from tasks.protocol.tokens import GenerateRequest, TokenChunk
from tasks.settings import EngineSettings
from workers.generate.engines.base import Engine, continue_request, fold_chunks
from workers.generate.engines.registry import create_engine
from workers.generate.engines.scripted import ScriptedEngine

CHATML_QUESTION = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
"""`What is the capital of France?` in SmolLM2's ids."""


async def collect(engine: Engine, request: GenerateRequest, *, stream: bool = True) -> list[TokenChunk]:
    async with aclosing(engine.generate(request, stream=stream)) as chunks:
        return [chunk async for chunk in chunks]


async def fold(engine: Engine, request: GenerateRequest, *, stream: bool = True) -> list[TokenChunk]:
    async with aclosing(engine.generate(request, stream=stream)) as chunks:
        return await fold_chunks(chunks)


class EngineContract:
    """The tests; a subclass provides `engine`, `prompt` and `running`."""

    stop_text: str | None = None
    """Text in the middle of the greedy answer, for engines that stop on strings."""

    async def running(self, engine: Any) -> int:
        raise NotImplementedError

    def ask(self, prompt: list[int], **params: Any) -> GenerateRequest:
        return GenerateRequest(
            request_id="contract", token_ids=prompt, sampling_params={"temperature": 0, "max_tokens": 12} | params
        )

    async def becomes_idle(self, engine: Engine) -> None:
        for _ in range(400):
            if await self.running(engine) == 0:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the engine still works on an aborted request")

    async def test_a_stream_ends_once_with_its_reason_and_counts(self, engine: Engine, prompt: list[int]) -> None:
        chunks = await collect(engine, self.ask(prompt, max_tokens=5, ignore_eos=True))
        assert [c.finish_reason for c in chunks if c.finish_reason] == ["length"]
        assert chunks[-1].finish_reason == "length"
        assert sum(len(c.token_ids) for c in chunks) == 5
        assert chunks[-1].prompt_tokens == len(prompt)
        assert all(c.logprobs is None for c in chunks)

    async def test_a_stream_comes_in_parts(self, engine: Engine, prompt: list[int]) -> None:
        chunks = await collect(engine, self.ask(prompt, max_tokens=8, ignore_eos=True))
        assert len([c for c in chunks if c.token_ids]) > 1

    async def test_one_shot_is_the_folded_stream(self, engine: Engine, prompt: list[int]) -> None:
        request = self.ask(prompt, logprobs=2)
        at_once = await collect(engine, request, stream=False)
        assert len(at_once) == 1
        (streamed,) = await fold(engine, request)
        assert at_once[0].token_ids == streamed.token_ids
        assert at_once[0].finish_reason == streamed.finish_reason
        assert at_once[0].stop_reason == streamed.stop_reason
        assert at_once[0].prompt_tokens == streamed.prompt_tokens == len(prompt)
        assert at_once[0].logprobs is not None and streamed.logprobs is not None
        assert [p.sampled.token_id for p in at_once[0].logprobs] == [p.sampled.token_id for p in streamed.logprobs]

    async def test_one_shot_has_one_chunk_for_each_choice(self, engine: Engine, prompt: list[int]) -> None:
        chunks = await collect(engine, self.ask(prompt, n=2, temperature=1, max_tokens=4), stream=False)
        assert [c.index for c in chunks] == [0, 1]
        assert all(c.finish_reason for c in chunks)

    async def test_every_choice_of_a_stream_finishes(self, engine: Engine, prompt: list[int]) -> None:
        request = self.ask(prompt, n=3, max_tokens=4, temperature=1, seed=1, ignore_eos=True)
        chunks = await collect(engine, request)
        assert sorted(c.index for c in chunks if c.finish_reason) == [0, 1, 2]
        assert {i: sum(len(c.token_ids) for c in chunks if c.index == i) for i in range(3)} == {0: 4, 1: 4, 2: 4}

    @pytest.mark.parametrize("count", [0, 1, 4])
    async def test_each_token_has_its_log_probabilities(self, engine: Engine, prompt: list[int], count: int) -> None:
        (answer,) = await fold(engine, self.ask(prompt, logprobs=count))
        assert answer.logprobs is not None
        assert [p.sampled.token_id for p in answer.logprobs] == list(answer.token_ids)
        for position in answer.logprobs:
            assert position.sampled.logprob <= 0
            assert position.top[0].token_id == position.sampled.token_id
            assert max(1, count) <= len(position.top) <= count + 1
            others = [c.logprob for c in position.top[1:]]
            assert others == sorted(others, reverse=True)

    async def test_a_stop_token_ends_the_choice_and_is_its_last(self, engine: Engine, prompt: list[int]) -> None:
        (free,) = await fold(engine, self.ask(prompt))
        stop = free.token_ids[2]
        (answer,) = await fold(engine, self.ask(prompt, stop_token_ids=[stop]))
        assert answer.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
        await self.becomes_idle(engine)

    async def test_a_stop_string_ends_the_choice_and_its_tokens_stay(self, engine: Engine, prompt: list[int]) -> None:
        if not engine.capabilities.stops_on_strings or self.stop_text is None:
            pytest.skip("the derender stage finds the stop strings")
        (free,) = await fold(engine, self.ask(prompt))
        (answer,) = await fold(engine, self.ask(prompt, stop=[self.stop_text, "no such text"]))
        assert (answer.finish_reason, answer.stop_reason) == ("stop", self.stop_text)
        assert 0 < len(answer.token_ids) < len(free.token_ids)
        assert answer.token_ids == free.token_ids[: len(answer.token_ids)]

    async def test_a_continued_request_goes_on_where_it_stopped(self, engine: Engine, prompt: list[int]) -> None:
        request = self.ask(prompt)
        (whole,) = await fold(engine, request)
        for done in (1, 3, len(whole.token_ids) - 1):
            (rest,) = await fold(engine, continue_request(request, whole.token_ids[:done]))
            assert whole.token_ids[:done] + rest.token_ids == whole.token_ids
            assert rest.finish_reason == whole.finish_reason

    async def test_closing_a_stream_aborts_it(self, engine: Engine, prompt: list[int]) -> None:
        chunks = engine.generate(self.ask(prompt, max_tokens=1500, ignore_eos=True), stream=True)
        await anext(chunks)
        assert await self.running(engine) == 1
        await chunks.aclose()
        await self.becomes_idle(engine)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_cancelling_the_reader_aborts_all_choices(
        self, engine: Engine, prompt: list[int], stream: bool
    ) -> None:
        request = self.ask(prompt, max_tokens=1500, n=2, temperature=1, ignore_eos=True)
        reader = asyncio.create_task(collect(engine, request, stream=stream))
        for _ in range(1000):
            await asyncio.sleep(0.02)
            if await self.running(engine):
                break
        assert not reader.done()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await self.becomes_idle(engine)

    async def test_many_at_once(self, engine: Engine, prompt: list[int]) -> None:
        requests = [self.ask(prompt[:-1] + [1000 + i] + prompt[-1:], max_tokens=3, ignore_eos=True) for i in range(12)]
        answers = await asyncio.gather(*(fold(engine, request) for request in requests))
        assert [len(answer.token_ids) for (answer,) in answers] == [3] * 12

    @pytest.mark.parametrize("params", [{"n": 0}, {"max_tokens": 0}])
    async def test_a_wrong_parameter_is_refused(
        self, engine: Engine, prompt: list[int], params: dict[str, Any]
    ) -> None:
        with pytest.raises((InvalidRequest, EngineRefused)) as caught:
            await collect(engine, self.ask(prompt, **params))
        assert caught.value.status == 400
        assert next(iter(params)) in (caught.value.param or caught.value.message)

    async def test_it_is_healthy_and_closes_twice(self, engine: Engine) -> None:
        assert (await engine.health()).ok
        await engine.close()
        await engine.close()


class TestScripted(EngineContract):
    @pytest.fixture
    def engine(self) -> ScriptedEngine:
        return ScriptedEngine(EngineSettings(kind="scripted", options={"chunk_tokens": [1, 2], "delay_s": 0.002}))

    @pytest.fixture
    def prompt(self) -> list[int]:
        return list(range(100, 117))

    async def running(self, engine: ScriptedEngine) -> int:
        return engine.in_flight


def find_gguf() -> Path | None:
    """A SmolLM2 file that is already on this machine; tests download nothing."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    cache = Path(os.environ.get("TOKENYARD_CACHE", Path.home() / ".cache" / "tokenyard"))
    places = [cache / "models" / "smollm2" / name, Path.home() / ".cache" / "smollm2-135m-instruct" / name]
    return next((path for path in places if path.is_file()), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def embedded_url() -> Iterator[str]:
    pytest.importorskip("xllamacpp")
    gguf = find_gguf()
    if gguf is None:
        pytest.skip("the model smollm2 is not in the cache")
    port = free_port()
    command = [sys.executable, "-m", "workers.generate.engines.embedded", "--gguf", str(gguf), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("engine: ready at"), line
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


class TestLlamaCpp(EngineContract):
    stop_text = " France is"

    @pytest.fixture
    async def engine(self, embedded_url: str) -> AsyncIterator[Engine]:
        engine = create_engine(EngineSettings(kind="llamacpp", urls=(embedded_url,)))
        yield engine
        await engine.close()

    @pytest.fixture
    def prompt(self) -> list[int]:
        return list(CHATML_QUESTION)

    async def running(self, engine: Any) -> int:
        async with aiohttp.ClientSession() as session, session.get(f"{engine.settings.urls[0]}/slots") as response:
            return sum(slot["is_processing"] for slot in await response.json())

    async def test_the_end_token_is_the_last_and_no_stop_reason(self, engine: Engine, prompt: list[int]) -> None:
        (answer,) = await fold(engine, self.ask(prompt, max_tokens=24))
        assert answer.token_ids[-1] == 2
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)

    @pytest.mark.parametrize("logprobs", [None, 2])
    @pytest.mark.parametrize("stream", [True, False])
    async def test_tokens_inside_a_character_are_not_lost(
        self, engine: Engine, prompt: list[int], logprobs: int | None, stream: bool
    ) -> None:
        constraint = {"grammar": 'root ::= "a\U0001f600é日本 b"'}
        request = self.ask(prompt, max_tokens=24, structured_outputs=constraint, logprobs=logprobs)
        (answer,) = await fold(engine, request, stream=stream)
        # 😀 is the ids 10813 242 218, é 142 119, 日 23274 115: the server sends the last of each alone.
        assert answer.token_ids[:11] == (81, 10813, 242, 218, 142, 119, 23274, 115, 40993, 216, 82)
        if logprobs is not None:
            assert answer.logprobs is not None
            assert [p.sampled.token_id for p in answer.logprobs] == list(answer.token_ids)

    async def test_an_output_cut_inside_a_character_has_all_its_tokens(self, engine: Engine, prompt: list[int]) -> None:
        constraint = {"grammar": 'root ::= "a\U0001f600"'}
        (answer,) = await fold(engine, self.ask(prompt, max_tokens=3, structured_outputs=constraint))
        assert len(answer.token_ids) == 3
        assert answer.finish_reason == "length"

    @pytest.mark.parametrize(
        "constraint",
        [{"regex": "^[0-9]{3}/[a-z]$"}, {"choice": ["yes", "no"]}, {"json_object": True}],
    )
    async def test_constraints_hold(self, engine: Engine, prompt: list[int], constraint: dict[str, Any]) -> None:
        (free,) = await fold(engine, self.ask(prompt))
        (answer,) = await fold(engine, self.ask(prompt, structured_outputs=constraint))
        assert answer.token_ids and answer.token_ids != free.token_ids

    async def test_a_prompt_over_the_context_is_refused(self, engine: Engine, prompt: list[int]) -> None:
        with pytest.raises(EngineRefused, match="context"):
            await collect(engine, self.ask(prompt * 600))
