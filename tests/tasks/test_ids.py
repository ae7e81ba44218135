"""Ids are prefixed, unique, and sort by creation time."""

from __future__ import annotations

import re
import time

from tasks.ids import new_id


def test_ids_are_prefixed_and_unique() -> None:
    ids = {new_id("job_") for _ in range(2000)}
    assert len(ids) == 2000
    assert all(re.fullmatch(r"job_[0-9a-hjkmnp-tv-z]{26}", made) for made in ids)


def test_ids_sort_by_time() -> None:
    made = []
    for _ in range(20):
        made.append(new_id("x"))
        time.sleep(0.002)
    assert made == sorted(made)
