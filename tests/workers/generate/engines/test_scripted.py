"""The scripted twin follows its script, also in another process and after a killed one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import EngineFailed, EngineRefused, EngineUnavailable, TokenyardError
from tasks.protocol.tokens import GenerateRequest, TokenChunk
from tasks.settings import EngineSettings
from workers.generate.engines.base import continue_request, fold_chunks
from workers.generate.engines.scripted import ScriptedEngine

PROMPT = [10, 11, 12, 13, 14]


def engine(**options: Any) -> ScriptedEngine:
    return ScriptedEngine(EngineSettings(kind="scripted", options=options))


def request(prompt: list[int] = PROMPT, **params: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=prompt, sampling_params=params)


async def chunks_of(scripted: ScriptedEngine, wanted: GenerateRequest) -> list[TokenChunk]:
    async with aclosing(scripted.generate(wanted, stream=True)) as chunks:
        return [chunk async for chunk in chunks]


async def fold(scripted: ScriptedEngine, wanted: GenerateRequest) -> list[TokenChunk]:
    async with aclosing(scripted.generate(wanted, stream=True)) as chunks:
        return await fold_chunks(chunks)


async def test_echo_repeats_the_prompt_up_to_max_tokens() -> None:
    (answer,) = await fold(engine(), request(max_tokens=7))
    assert answer.token_ids == (10, 11, 12, 13, 14, 10, 11)
    assert (answer.finish_reason, answer.prompt_tokens) == ("length", 5)


async def test_echo_leaves_out_the_ids_to_skip() -> None:
    (answer,) = await fold(engine(skip_ids=[10, 12], max_tokens=4), request())
    assert answer.token_ids == (11, 13, 14, 11)


async def test_choices_begin_one_token_apart() -> None:
    answers = await fold(engine(), request(n=2, max_tokens=3))
    assert [answer.token_ids for answer in answers] == [(10, 11, 12), (11, 12, 13)]


async def test_a_fixed_script_ends_by_itself() -> None:
    (answer,) = await fold(engine(script="fixed", token_ids=[5, 6], eos_token_id=2), request())
    assert (answer.token_ids, answer.finish_reason) == ((5, 6, 2), "stop")
    (answer,) = await fold(engine(script="fixed", token_ids=[5, 6]), request())
    assert (answer.token_ids, answer.finish_reason) == ((5, 6), "stop")


async def test_chunks_have_the_sizes_that_are_chosen() -> None:
    chunks = await chunks_of(engine(chunk_tokens=[1, 3]), request(max_tokens=9))
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 3, 1, 3, 1]
    chunks = await chunks_of(engine(chunk_tokens=4), request(max_tokens=9))
    assert [len(chunk.token_ids) for chunk in chunks] == [4, 4, 1]


async def test_delays_are_kept() -> None:
    began_s = time.monotonic()
    await chunks_of(engine(first_delay_s=0.1, delay_s=0.02), request(max_tokens=5))
    assert time.monotonic() - began_s >= 0.2


@pytest.mark.parametrize("index", [0, 2])
async def test_a_continued_choice_is_exactly_the_rest(index: int) -> None:
    scripted, wanted = engine(chunk_tokens=[2, 3]), request(n=3, max_tokens=23)
    whole = (await fold(scripted, wanted))[index].token_ids
    for done in (1, 4, 5, 11, 22):
        rest = continue_request(wanted, whole[:done], index=index)
        again = continue_request(rest, whole[done : done + 1]) if done < 22 else rest
        assert whole[:done] + (await fold(scripted, rest))[0].token_ids == whole
        if again is not rest:
            assert whole[: done + 1] + (await fold(scripted, again))[0].token_ids == whole


async def test_a_marker_finds_the_end_of_the_original_prompt() -> None:
    scripted = engine(prompt_end=[1, 9], skip_ids=[1, 9])
    whole = (await fold(scripted, request([1, 9, 20, 21, 1, 9], max_tokens=9)))[0].token_ids
    assert whole == (20, 21, 20, 21, 20, 21, 20, 21, 20)
    rest = await fold(scripted, request([1, 9, 20, 21, 1, 9, *whole[:4]], max_tokens=5))
    assert whole[:4] + rest[0].token_ids == whole


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("fail", EngineFailed, "script"),
        ("refuse", EngineRefused, "script"),
        ("unavailable", EngineUnavailable, "script"),
        ("drop", EngineFailed, "unfinished"),
    ],
)
@pytest.mark.parametrize("after_tokens", [0, 4])
async def test_a_fault_fires_after_its_tokens(
    kind: str, error: type[TokenyardError], message: str, after_tokens: int
) -> None:
    scripted = engine(chunk_tokens=3, faults=[{"kind": kind, "after_tokens": after_tokens}])
    seen: list[int] = []
    with pytest.raises(error, match=message):
        async with aclosing(scripted.generate(request(max_tokens=9), stream=True)) as chunks:
            async for chunk in chunks:
                seen += chunk.token_ids
    assert len(seen) == after_tokens
    assert (scripted.in_flight, scripted.aborted) == (0, 1)


async def test_a_hanging_request_can_be_cancelled() -> None:
    scripted = engine(faults=[{"kind": "hang", "after_tokens": 2}])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fold(scripted, request(max_tokens=9)), 0.2)
    assert (scripted.in_flight, scripted.aborted) == (0, 1)


async def test_a_fault_with_a_file_fires_once(tmp_path: Path) -> None:
    faults = [{"kind": "fail", "after_tokens": 2, "once_file": str(tmp_path / "fired")}]
    with pytest.raises(EngineFailed):
        await fold(engine(faults=faults), request(max_tokens=5))
    assert len((await fold(engine(faults=faults), request(max_tokens=5)))[0].token_ids) == 5


def test_a_process_is_killed_in_the_middle(tmp_path: Path) -> None:
    program = f"""
import asyncio
from tests.workers.generate.engines.test_scripted import chunks_of, engine, request
faults = [{{"kind": "kill", "after_tokens": 2, "once_file": {str(tmp_path / "fired")!r}}}]
print(len(asyncio.run(chunks_of(engine(faults=faults), request(max_tokens=3)))))
"""
    command = [sys.executable, "-c", program]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=False) for _ in "12")
    assert (first.returncode, first.stdout) == (-9, "")
    assert (second.returncode, second.stdout) == (0, "3\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"script": "sing"}, "no script 'sing'"),
        ({"chunk_tokens": 0}, "positive"),
        ({"chunk_tokens": []}, "positive"),
        ({"faults": [{"kind": "explode"}]}, "no fault 'explode'"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine(**options)
