"""The scripted twin: an engine without a model that replays given tokens, chunk sizes, delays and faults.

It takes everything from its settings, so it runs in real worker processes:

    engine = { kind = "scripted", options = { script = "echo", chunk_tokens = [1, 3], delay_s = 0.01 } }

Token `j` of choice `i` is a pure function of the original prompt. A test therefore knows every answer in advance, and a
continued request resumes exactly where the first one stopped:

* `echo`: the prompt's ids (without `skip_ids`) repeated: `prompt[(i + j) % len(prompt)]`, until `max_tokens`.
* `fixed`: `token_ids[j]`, then `eos_token_id` if there is one, and the finish reason `stop`.

`continue_request` records the original prompt. For callers that only append tokens there is the option `prompt_end`
(the ids of the generation prompt, such as `<|im_start|>assistant\\n`): the original prompt ends with its last
occurrence.

A fault, `{"kind": ..., "after_tokens": k, "once_file": path}`, fires when a choice has produced `k` tokens, counted
from the original prompt: `fail` (502), `refuse` (400), `unavailable` (503), `drop` (the stream ends without a finish
reason), `hang` (nothing more comes), `kill` (SIGKILL of this process). With `once_file` a fault fires once across all
processes: in the one that creates the file.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields
from itertools import cycle
from typing import Any, Literal, get_args

from tasks.errors import EngineFailed, EngineRefused, EngineUnavailable, InvalidRequest
from tasks.protocol.tokens import CandidateLogprob, GenerateRequest, PositionLogprobs, TokenChunk
from tasks.settings import EngineSettings
from workers.generate.engines.base import Capabilities, Health, choice_count, ensure_whole, find_origin, fold_chunks

FaultKind = Literal["fail", "refuse", "unavailable", "drop", "hang", "kill"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong once a choice has `after_tokens` tokens."""

    kind: FaultKind
    after_tokens: int = 0
    once_file: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ValueError(f"there is no fault {self.kind!r}; known are {', '.join(get_args(FaultKind))}")

    def claim(self) -> bool:
        """Whether the fault fires; with `once_file`, only the first call says so."""
        if self.once_file is None:
            return True
        try:
            os.close(os.open(self.once_file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Script:
    """The engine's options."""

    script: Literal["echo", "fixed"] = "echo"
    token_ids: tuple[int, ...] = ()
    eos_token_id: int | None = None
    skip_ids: tuple[int, ...] = ()
    prompt_end: tuple[int, ...] = ()
    max_tokens: int = 64
    """The default of requests without one."""
    chunk_tokens: tuple[int, ...] = (1,)
    """Sizes of the chunks, repeated."""
    first_delay_s: float = 0.0
    delay_s: float = 0.0
    """Before each chunk."""
    faults: tuple[Fault, ...] = ()

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Script:
        """Reads an engine's options; raises `ValueError` for one that is unknown or invalid."""
        unknown = options.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"the scripted engine has no option {', '.join(sorted(unknown))}")
        values = dict(options)
        if isinstance(values.get("chunk_tokens"), int):
            values["chunk_tokens"] = (values["chunk_tokens"],)
        for name in ("token_ids", "skip_ids", "prompt_end", "chunk_tokens"):
            if name in values:
                values[name] = tuple(values[name])
        values["faults"] = tuple(Fault(**fault) for fault in values.get("faults", ()))
        script = cls(**values)
        if script.script not in ("echo", "fixed"):
            raise ValueError(f"there is no script {script.script!r}; known are echo and fixed")
        if not script.chunk_tokens or min(script.chunk_tokens) < 1:
            raise ValueError("chunk_tokens must be one or more positive integers")
        return script

    def token_at(self, prompt: Sequence[int], choice: int, position: int) -> int | None:
        """Output token `position` of `choice` for the original `prompt`; None after the script's end."""
        if self.script == "fixed":
            if position < len(self.token_ids):
                return self.token_ids[position]
            return self.eos_token_id if position == len(self.token_ids) else None
        echoed = [t for t in prompt if t not in self.skip_ids] if self.skip_ids else prompt
        return echoed[(choice + position) % len(echoed)] if echoed else None


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a request continues: the original prompt, the number of tokens produced so far, the first choice's index."""

    prompt: tuple[int, ...]
    done: int
    choice: int


class ScriptedEngine:
    """Replays a script; `aborted` and `in_flight` let tests check that no request runs on without a reader."""

    capabilities = Capabilities(stops_on_strings=False, prompt_logprobs=False)

    def __init__(self, settings: EngineSettings) -> None:
        self.script = Script.from_options(settings.options)
        self.in_flight = 0
        self.aborted = 0

    async def generate(self, request: GenerateRequest, *, stream: bool) -> AsyncGenerator[TokenChunk, None]:
        choices = choice_count(request)
        chunks = ensure_whole(self._generate(request, choices), choices)
        self.in_flight += 1
        whole = False
        try:
            async with aclosing(chunks):
                if stream:
                    async for chunk in chunks:
                        yield chunk
                else:
                    for chunk in await fold_chunks(chunks):
                        yield chunk
            whole = True
        finally:
            self.in_flight -= 1
            self.aborted += not whole

    async def _generate(self, request: GenerateRequest, choices: int) -> AsyncGenerator[TokenChunk, None]:
        script = self.script
        origin = self._origin(request)
        await asyncio.sleep(script.first_delay_s)
        open_choices = {i: _Choice(script, request, origin, i) for i in range(choices)}
        while open_choices:
            await asyncio.sleep(script.delay_s)
            for index, choice in list(open_choices.items()):
                fault = choice.due_fault()
                if fault is not None and fault.claim():
                    if fault.kind == "drop":
                        return
                    await _inject(fault)
                chunk = choice.step()
                yield chunk
                if chunk.finish_reason is not None:
                    del open_choices[index]

    def _origin(self, request: GenerateRequest) -> _Origin:
        ids = tuple(request.token_ids)
        length, choice = find_origin(request)
        if length == len(ids) and self.script.prompt_end:
            end = self.script.prompt_end
            starts = range(len(ids) - len(end), -1, -1)
            length = next((s + len(end) for s in starts if ids[s : s + len(end)] == end), length)
        return _Origin(ids[:length], len(ids) - length, choice)

    async def health(self) -> Health:
        return Health(ok=True)

    async def close(self) -> None:
        return None


class _Choice:
    """One choice's progress; positions count from the original prompt."""

    def __init__(self, script: Script, request: GenerateRequest, origin: _Origin, index: int) -> None:
        params = request.sampling_params
        max_tokens = params.get("max_tokens")
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        limit = max_tokens if max_tokens is not None else max(1, script.max_tokens - origin.done)
        self.index = index
        self._script = script
        self._prompt = origin.prompt
        self._choice = origin.choice + index
        self._position = origin.done
        self._end = origin.done + limit
        self._sizes = cycle(script.chunk_tokens)
        self._stop_ids = set(params.get("stop_token_ids") or ())
        self._logprobs: int | None = params.get("logprobs")
        self._prompt_tokens = len(request.token_ids)
        self._faults = sorted(
            (f for f in script.faults if f.after_tokens >= origin.done), key=lambda fault: fault.after_tokens
        )

    def due_fault(self) -> Fault | None:
        """The fault that is due at this position; each is returned once."""
        if self._faults and self._faults[0].after_tokens <= self._position:
            return self._faults.pop(0)
        return None

    def step(self) -> TokenChunk:
        """The next chunk, cut where the next fault is due."""
        size = next(self._sizes)
        tokens: list[int] = []
        reason: str | None = None
        stop_reason: int | None = None
        while len(tokens) < size and reason is None:
            if tokens and self._faults and self._faults[0].after_tokens <= self._position:
                break
            token = self._script.token_at(self._prompt, self._choice, self._position)
            if token is None:
                reason = "stop"
                break
            tokens.append(token)
            self._position += 1
            if token in self._stop_ids:
                reason, stop_reason = "stop", token
            elif self._script.token_at(self._prompt, self._choice, self._position) is None:
                reason = "stop"
            elif self._position >= self._end:
                reason = "length"
        return TokenChunk(
            index=self.index,
            token_ids=tuple(tokens),
            logprobs=None if self._logprobs is None else tuple(_made_up(t, self._logprobs) for t in tokens),
            finish_reason=reason,
            stop_reason=stop_reason,
            prompt_tokens=None if reason is None else self._prompt_tokens,
        )


def _made_up(token_id: int, count: int) -> PositionLogprobs:
    """Made-up log-probabilities: -0.5 for the sampled token, then -1.5, -2.5, ... for the other candidates."""
    step = -1 if token_id >= count else 1
    candidates = (CandidateLogprob(token_id + step * rank, -0.5 - rank, rank + 1) for rank in range(max(1, count)))
    return PositionLogprobs(CandidateLogprob(token_id, -0.5, 1), tuple(candidates))


async def _inject(fault: Fault) -> None:
    if fault.kind == "fail":
        raise EngineFailed("the script injects the fault fail")
    if fault.kind == "refuse":
        raise EngineRefused("the script injects the fault refuse")
    if fault.kind == "unavailable":
        raise EngineUnavailable("the script injects the fault unavailable", retry_after_s=1)
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.Event().wait()
