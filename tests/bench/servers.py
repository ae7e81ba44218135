"""The two servers that benchmarks over HTTP compare: a yard without engines, and the reference's render server.

Both serve Qwen3's real tokenizer with the hermes and qwen3 parsers, under the name `qwen3`. `TOKENYARD_PEER` is the
reference's virtual environment.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from api.cli.yard import answers, free_port
from tests.conftest import RedisServer, redis_binary
from tests.integration.harness import Yard

PEER = Path(os.environ.get("TOKENYARD_PEER", "~/.cache/vllm-peer")).expanduser()
TOKENIZER = Path(os.environ.get("TOKENYARD_REAL_TOKENIZERS", "~/.cache/real-tokenizers")).expanduser() / "qwen3"
MAX_MODEL_LEN = 65_536


@contextmanager
def serve_yard() -> Iterator[str]:
    """Two CPU workers and one API process; its URL."""
    binary = redis_binary()
    assert binary is not None, "no Redis server"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        redis = RedisServer(binary, folder / "redis")
        redis.start()
        model = {
            "name": "qwen3",
            "tokenizer": str(TOKENIZER),
            "max_model_len": MAX_MODEL_LEN,
            "tool_parser": "hermes",
            "reasoning_parser": "qwen3",
            "engine": {"kind": "scripted"},
        }
        yard = Yard(folder, redis, [model])
        yard.start_all(cpu=2, gpu=0)
        try:
            give_up_at = time.monotonic() + 60
            while not _serves(yard.url):
                assert time.monotonic() < give_up_at, yard.logs()
                time.sleep(0.2)
            yield yard.url
        finally:
            yard.stop()
            redis.stop()


def _serves(url: str) -> bool:
    if not answers(f"{url}/health/live")():
        return False
    return asyncio.run(_once(url)) == 200


async def _once(url: str) -> int:
    chat = {"model": "qwen3", "messages": [{"role": "user", "content": "Hi"}]}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions/render", json=chat) as reply:
        await reply.read()
        return reply.status


@contextmanager
def serve_reference() -> Iterator[str]:
    """`vllm launch render`; its URL."""
    port = free_port()
    command = [str(PEER / "bin" / "vllm"), "launch", "render", str(TOKENIZER), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", "qwen3", "--max-model-len", str(MAX_MODEL_LEN)]
    command += ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--enable-auto-tool-choice"]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            give_up_at = time.monotonic() + 300
            while not answers(f"{url}/health")():
                assert time.monotonic() < give_up_at and server.poll() is None, "the reference did not come up"
                time.sleep(0.5)
            yield url
        finally:
            server.terminate()
            server.wait(60)
