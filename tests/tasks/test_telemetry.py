"""Every log record is one line of JSON with its role; Celery's own info messages stay out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import logging
import structlog
from tasks.telemetry import configure_logging, get_logger
configure_logging({level!r}, {form!r}, "cpu")
log = get_logger("here")
with structlog.contextvars.bound_contextvars(job_id="job_1"):
    log.info("stage_ended", tokens=3)
log.debug("unseen")
logging.getLogger("celery.app.trace").info("Task succeeded: a prompt")
logging.getLogger("kombu").warning("connection lost")
try:
    raise ValueError("inside")
except ValueError:
    log.exception("stage_raised")
"""


def lines_of(level: str, form: str) -> list[str]:
    script = SCRIPT.format(level=level, form=form)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == ""
    return ended.stderr.splitlines()


@pytest.mark.parametrize("level", ["info", "debug"])
def test_lines_are_json_and_say_who_wrote_them(level: str) -> None:
    lines = [json.loads(line) for line in lines_of(level, "json")]
    shown = [line for line in lines if line["event"] != "unseen"]
    assert [line["event"] for line in shown] == ["stage_ended", "connection lost", "stage_raised"]
    assert shown[0] | {"at": ""} == {
        "event": "stage_ended",
        "level": "info",
        "role": "cpu",
        "module": "here",
        "job_id": "job_1",
        "tokens": 3,
        "at": "",
    }
    assert all(line["role"] == "cpu" and line["at"] for line in shown)
    assert "ValueError: inside" in shown[2]["exception"]
    assert (len(lines) > len(shown)) == (level == "debug")


def test_a_higher_level_keeps_quiet() -> None:
    assert [json.loads(line)["event"] for line in lines_of("error", "json")] == ["stage_raised"]


def test_text_is_for_people() -> None:
    first = lines_of("info", "text")[0]
    assert "stage_ended" in first and "job_id=job_1" in first and not first.startswith("{")
