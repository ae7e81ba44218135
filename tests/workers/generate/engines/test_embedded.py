"""The embedded server as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contract.test_engine import find_gguf, free_port
from workers.generate.engines.embedded import EmbeddedSettings, count_threads, parse_arguments


def test_arguments_become_settings() -> None:
    settings = parse_arguments(
        ["--gguf", "m.gguf", "--port", "1", "--parallel", "2", "--context", "3", "--threads", "4"]
    )
    assert settings == EmbeddedSettings(Path("m.gguf"), "127.0.0.1", 1, 2, 3, 4)


def test_every_core_decodes_unless_told_otherwise() -> None:
    assert count_threads(3) == 3
    assert count_threads(0) == len(os.sched_getaffinity(0))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workers.generate.engines.embedded", "--gguf", str(tmp_path / "none.gguf")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr == f"engine: there is no model file {tmp_path / 'none.gguf'}: check --gguf\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process when its parent ends")
def test_it_ends_with_its_parent_and_quickly() -> None:
    pytest.importorskip("xllamacpp")
    gguf = find_gguf()
    if gguf is None:
        pytest.skip("the model smollm2 is not in the cache")
    server = [
        sys.executable,
        "-m",
        "workers.generate.engines.embedded",
        "--gguf",
        str(gguf),
        "--port",
        str(free_port()),
    ]
    server += ["--parallel", "1", "--context", "256", "--die-with-parent"]
    program = f"import subprocess, time; print(subprocess.Popen({server!r}).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline().startswith("engine: ready")
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline_s = time.monotonic() + 20
        while _is_running(pid) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
