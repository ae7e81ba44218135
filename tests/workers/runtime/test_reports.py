"""Reports to Flower: the events of Celery's own consumer, the real outcome, and nothing that a user wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery.events.state import State
from celery.worker import state

from workers.runtime.reports import EventBatcher, Outcome, Report

HEADERS = {
    "id": "11d4c9f5",
    "task": "tokenyard.render",
    "shadow": "render[m]",
    "argsrepr": "(job=job_1, model=m)",
    "kwargsrepr": "",
    "root_id": "11d4c9f5",
    "parent_id": None,
    "job": "job_1",
}


class Dispatcher:
    enabled = True

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: Any) -> None:
        clock = len(self.sent) + 1
        at = {"hostname": "cpu1@here", "clock": clock, "timestamp": float(clock), "local_received": float(clock)}
        self.sent.append({"type": kind, "pid": 1, "utcoffset": 0, **at, **fields})


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher()
    monkeypatch.setattr(EventBatcher, "dispatcher", dispatcher)
    yield dispatcher


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        (Outcome.SUCCEEDED, "SUCCESS"),
        (Outcome.FAILED, "FAILURE"),
        (Outcome.RETRIED, "RETRY"),
        (Outcome.REVOKED, "REVOKED"),
    ],
)
def test_a_run_is_shown_from_its_start_to_its_outcome(dispatcher: Dispatcher, outcome: Outcome, shown: str) -> None:
    flower = State()

    def shown_now() -> Any:
        for event in dispatcher.sent[flower.event_count :]:
            flower.event(event)
        return flower.tasks[HEADERS["id"]]

    report = Report(HEADERS)
    assert shown_now().state == "STARTED" and shown_now().name == "render[m]"
    report.end(outcome, "engine_failed")
    task = shown_now()
    assert task.state == shown and task.args == "(job=job_1, model=m)"
    if outcome is Outcome.FAILED:
        assert task.exception == "engine_failed"


def test_a_run_is_among_the_active_requests_while_it_lasts(dispatcher: Dispatcher) -> None:
    before = state.all_total_count[0]
    report = Report(HEADERS, "cpu1@here")
    assert report in state.active_requests and state.all_total_count[0] == before + 1
    assert [one.info()["id"] for one in state.active_requests] == [HEADERS["id"]]
    report.end(Outcome.SUCCEEDED)
    assert report not in state.active_requests


def test_a_worker_without_a_connection_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventBatcher, "dispatcher", None)
    Report(HEADERS).end(Outcome.SUCCEEDED)
