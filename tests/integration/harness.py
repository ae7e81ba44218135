"""A yard of real processes for the integration tests: Redis, Celery workers, the API, and a scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from api.cli.yard import answers, free_port, worker_command
from tests.conftest import RedisServer

WORDS = (
    "the yard runs every request through render and generate and derender on real queues with nothing lost "
    "when a process dies in the middle of a stream naïve café Zürich 東京 🙂 numbers 0 1 2 3 4 5 6 7 8 9 "
)


def write_tokenizer(folder: Path) -> Path:
    """A small byte-level BPE tokenizer whose chat template concatenates the messages' contents."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 50, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def scripted_model(name: str, tokenizer_folder: Path, **options: Any) -> dict[str, Any]:
    """Settings of a model that echoes its prompt; the options set its chunks and delays."""
    return {
        "name": name,
        "tokenizer": str(tokenizer_folder),
        "max_model_len": 4096,
        "engine": {"kind": "scripted", "concurrency": 256, "options": {"script": "echo", **options}},
    }


def echoed(tokenizer: Tokenizer, prompt: str, max_tokens: int, choice: int = 0) -> str:
    """The scripted engine's answer to a prompt: the prompt's tokens, repeated."""
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    return str(tokenizer.decode([ids[(choice + i) % len(ids)] for i in range(max_tokens)]))


UNHURRIED = {"lease_s": 60.0}
"""Queue settings of a yard beside an engine that takes the whole machine: one that kills nobody, whose workers may
stand still for seconds without another taking their work over, which would continue a seeded answer differently."""


class Yard:
    """Processes by name, all on one Redis; `kill` is SIGKILL, `start_*` brings them back."""

    def __init__(self, folder: Path, redis: RedisServer, models: list[dict[str, Any]], **settings: Any) -> None:
        self.folder, self.redis = folder, redis
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.model = models[0]["name"]
        merged: dict[str, Any] = {
            "models": models,
            "queue": {"lease_s": 2.0, "reap_interval_s": 0.3, "lost_after_s": 1.0},
            "api": {"port": self.port},
            **settings,
        }
        config = folder / "tokenyard.toml"
        config.touch()
        self.environment = {
            **os.environ,
            "TOKENYARD_REDIS_URL": merged.pop("redis_url", redis.url),
            "TOKENYARD_LOG_FORMAT": "text",
            "TOKENYARD_CONFIG": str(config),
            **{f"TOKENYARD_{key.upper()}": json.dumps(value) for key, value in merged.items()},
        }

    def start(self, name: str, command: tuple[str, ...]) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        log.close()

    def start_worker(self, kind: str, name: str) -> None:
        self.start(name, worker_command(kind, name))

    def start_api(self) -> None:
        self.start("api", (sys.executable, "-m", "api.cli.main", "api"))

    def start_all(self, cpu: int = 2, gpu: int = 2) -> None:
        for number in range(1, cpu + 1):
            self.start_worker("cpu", f"cpu{number}")
        for number in range(1, gpu + 1):
            self.start_worker("gpu", f"gpu{number}")
        self.start_api()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def name_of(self, pid: int) -> str:
        return next(name for name, process in self.processes.items() if process.pid == pid)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def await_ready(self, timeout_s: float = 90.0) -> None:
        """Block, without an event loop, until every stage and model is served."""
        give_up_at = time.monotonic() + timeout_s
        while not answers(f"{self.url}/health/ready")():
            if time.monotonic() > give_up_at:
                raise AssertionError(f"not ready in time\n{self.logs()}")
            time.sleep(0.1)

    # ---- as a client ---------------------------------------------------------------------------

    async def ready(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """The health report, without killed workers whose last heartbeat has not expired yet."""
        async with http.get(f"{self.url}/health/ready") as reply:
            report: dict[str, Any] = await reply.json()
        alive = {process.pid for process in self.processes.values()}
        report["workers"] = [worker for worker in report["workers"] if worker.get("pid") in alive]
        return report

    async def until(
        self, http: aiohttp.ClientSession, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 90.0
    ) -> dict[str, Any]:
        """Wait until the health report meets a condition."""
        give_up_at = time.monotonic() + timeout_s
        report: dict[str, Any] = {}
        while time.monotonic() < give_up_at:
            try:
                report = await self.ready(http)
                if condition(report):
                    return report
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
        raise AssertionError(f"not in time: {report}\n{self.logs()}")

    def body(self, prompt: str, max_tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            **more,
        }

    async def stream(self, http: aiohttp.ClientSession, prompt: str, max_tokens: int, **more: Any) -> str:
        """Return a streamed chat's text; fail on an error, a missing finish reason or a missing end."""
        text, finished, ended = [], False, False
        body = self.body(prompt, max_tokens, stream=True, **more)
        async with http.post(f"{self.url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    ended = True
                    break
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    text.append(choice["delta"].get("content") or "")
                    finished = finished or choice["finish_reason"] is not None
        assert finished and ended, f"cut off after {''.join(text)[-80:]!r}"
        return "".join(text)

    async def chat(self, http: aiohttp.ClientSession, prompt: str, max_tokens: int, **more: Any) -> dict[str, Any]:
        async with http.post(f"{self.url}/v1/chat/completions", json=self.body(prompt, max_tokens, **more)) as reply:
            answer: dict[str, Any] = await reply.json()
            return {"status": reply.status, "headers": dict(reply.headers), **answer}

    async def submit(self, http: aiohttp.ClientSession, prompt: str, max_tokens: int, **more: Any) -> str:
        job = {"endpoint": "/v1/chat/completions", "body": self.body(prompt, max_tokens, **more)}
        async with http.post(f"{self.url}/v1/jobs", json=job) as reply:
            assert reply.status == 202, await reply.text()
            return str((await reply.json())["id"])

    async def job(self, http: aiohttp.ClientSession, job_id: str, part: str = "") -> dict[str, Any]:
        async with http.get(f"{self.url}/v1/jobs/{job_id}{part}") as reply:
            job: dict[str, Any] = await reply.json()
            return job

    async def finished(self, http: aiohttp.ClientSession, job_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
        give_up_at = time.monotonic() + timeout_s
        while time.monotonic() < give_up_at:
            job = await self.job(http, job_id)
            if job["ended_at"]:
                return job
            await asyncio.sleep(0.1)
        raise AssertionError(f"the job is not done: {job}\n{self.logs()}")
