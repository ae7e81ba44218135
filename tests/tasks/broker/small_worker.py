"""A worker with one task, which naps: `celery -A tests.tasks.broker.small_worker worker`, told by its environment what to be.

TEST_REDIS     URL
TEST_QUEUES    with commas between
TEST_RUNS      file to which each run appends its task's name, as it begins
TEST_THREADS   slots
TEST_VISIBILITY_S  visibility timeout
TEST_STOCK     set: kombu's own transport
TEST_RENEWER   "no": leases are not renewed
TEST_GATE      file without which no batch work is taken
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from kombu.transport import TRANSPORT_ALIASES

from tasks.broker.app import LeaseRenewer, create_app
from tasks.broker.transport import set_gate
from tests.conftest import quick_settings

settings = quick_settings(
    os.environ["TEST_REDIS"],
    queue={
        "lease_s": 0.4,
        "reap_interval_s": 0.1,
        "lost_after_s": 0.3,
        "visibility_timeout_s": int(os.environ["TEST_VISIBILITY_S"]),
    },
)
app = create_app(
    settings, queues=os.environ["TEST_QUEUES"].split(","), threads=int(os.environ.get("TEST_THREADS", "4"))
)
if os.environ.get("TEST_STOCK"):
    TRANSPORT_ALIASES["redis"] = "kombu.transport.redis:Transport"
if os.environ.get("TEST_RENEWER") == "no":
    app.steps["consumer"].discard(LeaseRenewer)
if gate := os.environ.get("TEST_GATE"):
    opened = Path(gate)
    set_gate(lambda queue: not queue.endswith("batch") or opened.exists())


def nap(name: str, seconds: float) -> None:
    with Path(os.environ["TEST_RUNS"]).open("a") as runs:
        runs.write(f"{name}\n")
    time.sleep(seconds)


app.task(nap, name="nap")
