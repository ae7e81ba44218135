"""Starts the reference: `vllm serve` on a free port, until the block ends; or what was recorded of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.cli.yard import free_port
from tasks.protocol.base import JsonObject
from tests.peer.recordings import Recording, recorded_server
from tests.peer.reference import PEER

START_TIMEOUT_S = 300


@contextmanager
def answering_vllm(
    recording: Recording, folder: Path, model: Path, name: str, *flags: str, max_model_len: int = 2048
) -> Iterator[str]:
    """The base URL of a vLLM that serves a model folder, or of what answers as it was recorded to."""
    server: JsonObject = {"model": model.name, "name": name, "flags": list(flags), "max_model_len": max_model_len}
    if not recording.asks:
        with recorded_server(recording, server, None) as url:
            yield url
        return
    with serve_vllm(folder, model, name, *flags, max_model_len=max_model_len) as upstream:
        if recording.mode == "live":
            yield upstream
            return
        with recorded_server(recording, server, upstream) as url:
            yield url


@contextmanager
def serve_vllm(folder: Path, model: Path, name: str, *flags: str, max_model_len: int = 2048) -> Iterator[str]:
    """The base URL of a vLLM that serves a model folder; skips the test where it is not installed."""
    if not (PEER / "bin" / "vllm").is_file() or not (model / "config.json").is_file():
        pytest.skip("the reference or its model is not installed")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(PEER / "bin" / "vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", name, "--max-model-len", str(max_model_len), "--enforce-eager"]
    # Processors differ in how they round in bfloat16, up to another first word of an answer.
    command += ["--max-num-seqs", "16", "--dtype=float32", *flags]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    log = folder / "vllm.log"
    with (
        log.open("w") as file,
        subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True) as process,
    ):
        try:
            give_up_at = time.monotonic() + START_TIMEOUT_S
            while not _answers(f"{url}/health"):
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise AssertionError(f"vLLM did not come up: {log.read_text()[-3000:]}")
                time.sleep(0.5)
            yield url
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It has processes of its own, and one that is still starting does not listen to SIGTERM."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
