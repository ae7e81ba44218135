"""The engine contract against a real vLLM, which serves SmolLM2's Hugging Face folder.

`TOKENYARD_PEER` is the reference's virtual environment (default `~/.cache/vllm-peer`); `make peer` runs these tests
where it and the model are installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tasks.errors import EngineRefused
from tasks.settings import EngineSettings
from tests.contract.test_engine import CHATML_QUESTION, EngineContract, collect, fold
from tests.peer.serving import serve_vllm
from workers.generate.engines.base import Engine
from workers.generate.engines.registry import create_engine

pytestmark = pytest.mark.peer_live

MODEL = Path.home() / ".cache" / "smollm2-135m-instruct" / "hf"


def _serve(tmp_path_factory: pytest.TempPathFactory, mode: str) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("vllm")
    with serve_vllm(folder, MODEL, "smollm2", "--enable-prompt-tokens-details", mode, max_model_len=4096) as url:
        yield url


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from _serve(tmp_path_factory, "--enable-scale-out")


async def _running(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    counted = [line for line in lines if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in counted))


class TestVllm(EngineContract):
    stop_text = " France is"

    @pytest.fixture
    async def engine(self, vllm_url: str) -> AsyncIterator[Engine]:
        engine = create_engine(EngineSettings(kind="vllm", urls=(vllm_url,), model="smollm2"))
        yield engine
        await engine.close()

    @pytest.fixture
    def prompt(self) -> list[int]:
        return list(CHATML_QUESTION)

    async def running(self, engine: Any) -> int:
        # Choices of one request count one by one there, and the gauge lags behind by a step.
        await asyncio.sleep(0.2)
        return min(1, await _running(engine.settings.urls[0]))

    async def test_the_end_token_is_the_last_and_no_stop_reason(self, engine: Engine, prompt: list[int]) -> None:
        (answer,) = await fold(engine, self.ask(prompt, max_tokens=64))
        assert answer.token_ids[-1] == 2
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)

    async def test_a_prompt_asked_twice_is_cached(self, engine: Engine) -> None:
        prompt = [1, *range(2000, 2300), 198]  # blocks of 128 tokens are what is cached
        await fold(engine, self.ask(prompt))
        (answer,) = await fold(engine, self.ask(prompt))
        assert answer.cached_tokens is not None and answer.cached_tokens > 0
        (at_once,) = await fold(engine, self.ask(prompt), stream=False)
        assert at_once.cached_tokens == answer.cached_tokens

    async def test_prompt_log_probabilities_are_passed_on(self, engine: Engine, prompt: list[int]) -> None:
        (answer,) = await fold(engine, self.ask(prompt, prompt_logprobs=1), stream=False)
        assert answer.extra is not None
        assert len(answer.extra["prompt_logprobs"]) == len(prompt)

    async def test_what_vllm_refuses_comes_with_its_words(self, engine: Engine, prompt: list[int]) -> None:
        with pytest.raises(EngineRefused, match="temperature"):
            await collect(engine, self.ask(prompt, temperature=-1))
        with pytest.raises(EngineRefused, match="4096"):
            await collect(engine, self.ask(prompt * 400))

    async def test_a_model_that_is_not_served_there_is_refused(self, vllm_url: str, prompt: list[int]) -> None:
        engine = create_engine(EngineSettings(kind="vllm", urls=(vllm_url,), model="another"))
        with pytest.raises(EngineRefused, match="another"):
            await collect(engine, self.ask(prompt))
        await engine.close()

    async def test_constraints_hold(self, engine: Engine, prompt: list[int]) -> None:
        (free,) = await fold(engine, self.ask(prompt))
        (answer,) = await fold(engine, self.ask(prompt, structured_outputs={"choice": ["yes", "no"]}))
        assert answer.token_ids != free.token_ids


class TestTokensOnly:
    """`vllm serve --tokens-only` has no tokenizer."""

    @pytest.fixture(scope="module")
    @classmethod
    def tokens_only_url(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        yield from _serve(tmp_path_factory, "--tokens-only")

    async def test_stop_strings_are_kept_from_it(self, tokens_only_url: str) -> None:
        params = {"temperature": 0, "max_tokens": 24, "stop": [" France is"], "include_stop_str_in_output": True}
        request = EngineContract().ask(list(CHATML_QUESTION), **params)
        plain = create_engine(EngineSettings(kind="vllm", urls=(tokens_only_url,)))
        with pytest.raises(EngineRefused, match="stop"):
            await collect(plain, request)
        await plain.close()
        engine = create_engine(EngineSettings(kind="vllm", urls=(tokens_only_url,), options={"send_stop": False}))
        assert not engine.capabilities.stops_on_strings
        (answer,) = await fold(engine, request)
        assert answer.token_ids[-1] == 2
        await engine.close()
