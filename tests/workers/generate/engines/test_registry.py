"""The settings agree with the engine on what it can do."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.settings import EngineSettings
from workers.generate.engines.registry import create_engine


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "vllm", "urls": ["http://engine"]},
        {"kind": "vllm", "urls": ["http://engine"], "options": {"send_stop": False}},
        {"kind": "llamacpp", "urls": ["http://engine"]},
        {"kind": "scripted"},
    ],
)
def test_who_ends_a_text_at_a_stop_string(settings: dict[str, Any]) -> None:
    known = EngineSettings(**settings)
    assert known.stops_on_strings is create_engine(known).capabilities.stops_on_strings
