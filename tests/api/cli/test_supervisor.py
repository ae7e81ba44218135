"""The supervisor: start order, restarts, one log, and a stop that leaves no process behind and touches no others."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.cli.supervisor import Service, ServiceFailed, Supervisor


def sleeper(name: str, folder: Path, code: str = "") -> Service:
    """A process that records its start and its end, and sleeps in between."""
    script = (
        "import pathlib, signal, sys, time\n"
        f"note = lambda what: open({str(folder / 'notes')!r}, 'a').write(f'{{what}} {name}\\n')\n"
        "def end(*_):\n    note('end')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"note('begin')\npathlib.Path({str(folder / name)!r}).touch()\nprint('hello from {name}')\n{code}\ntime.sleep(60)"
    )
    return Service(name, (sys.executable, "-c", script), ready=(folder / name).exists, ready_timeout_s=10)


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def wait_until(holds: Callable[[], object], within_s: float = 15.0) -> None:
    give_up_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(io.StringIO())
    yield supervisor
    supervisor.stop()


def test_services_start_in_order_and_stop_in_reverse(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(sleeper("first", tmp_path))
    supervisor.start(sleeper("second", tmp_path))
    supervisor.start(sleeper("third", tmp_path))
    pids = supervisor.pids()
    assert list(pids) == ["first", "second", "third"]
    supervisor.stop()
    assert notes(tmp_path) == [f"begin {n}" for n in ("first", "second", "third")] + [
        f"end {n}" for n in ("third", "second", "first")
    ]
    assert all(gone(pid) for pid in pids.values())


def test_what_dies_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(sleeper("one", tmp_path), sleeper("two", tmp_path))
    supervisor.watch()
    before = supervisor.pids()
    os.kill(before["one"], signal.SIGKILL)
    wait_until(lambda: notes(tmp_path).count("begin one") == 2)
    after = supervisor.pids()
    assert after["one"] != before["one"] and after["two"] == before["two"]


def test_what_dies_again_and_again_is_started_less_and_less_often(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.cli.supervisor.RESTART_PAUSES_S", (0.1, 0.4, 0.8, 30.0))
    started: list[float] = []
    popen = subprocess.Popen

    def noted(*arguments: object, **options: object) -> object:
        started.append(time.monotonic())
        return popen(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("api.cli.supervisor.subprocess.Popen", noted)
    supervisor.start(Service("broken", (sys.executable, "-c", "raise SystemExit(3)")))
    supervisor.watch()
    time.sleep(4)
    gaps = [later - sooner for sooner, later in itertools.pairwise(started)]
    assert len(gaps) == 3, gaps
    assert gaps[1] >= 0.4 and gaps[2] >= 0.8


def test_a_service_that_exits_before_it_is_ready_is_said(supervisor: Supervisor) -> None:
    service = Service("broken", (sys.executable, "-c", "raise SystemExit(3)"), ready=lambda: False)
    with pytest.raises(ServiceFailed, match="broken exited with status 3"):
        supervisor.start(service)


def test_a_service_that_is_not_ready_in_time_is_said_and_stopped(tmp_path: Path) -> None:
    supervisor = Supervisor(io.StringIO())
    service = Service(
        "slow", (sys.executable, "-c", "import time; time.sleep(60)"), ready=lambda: False, ready_timeout_s=0.3
    )
    with pytest.raises(ServiceFailed, match="slow was not ready in time"):
        supervisor.start(service)
    pid = supervisor.pids()["slow"]
    supervisor.stop()
    assert gone(pid)


def test_a_service_that_ignores_the_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.cli.supervisor.STOP_TIMEOUT_S", 0.5)
    supervisor = Supervisor(io.StringIO())
    supervisor.start(sleeper("stubborn", tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN); note('deaf')"))
    wait_until(lambda: "deaf stubborn" in notes(tmp_path))
    pid = supervisor.pids()["stubborn"]
    supervisor.stop()
    assert gone(pid)


def test_it_stops_nothing_that_is_not_its_own(supervisor: Supervisor, tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        supervisor.start(sleeper("own", tmp_path))
        supervisor.stop()
        time.sleep(0.1)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_every_line_of_the_log_has_a_time_and_a_name(tmp_path: Path) -> None:
    log = io.StringIO()
    supervisor = Supervisor(log)
    supervisor.start(sleeper("one", tmp_path))
    wait_until(lambda: "hello from one" in log.getvalue())
    supervisor.stop()
    assert log.getvalue() == "00:00:00 one     | hello from one\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the parent's death")
def test_services_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import io, sys, time\nfrom pathlib import Path\n"
        "from api.cli.supervisor import Supervisor\nfrom tests.api.cli.test_supervisor import sleeper\n"
        f"supervisor = Supervisor(io.StringIO())\nsupervisor.start(sleeper('child', Path({str(tmp_path)!r})))\n"
        "print(supervisor.pids()['child'], flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: "end child" in notes(tmp_path))
    wait_until(lambda: gone(pid) or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")
