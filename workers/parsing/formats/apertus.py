"""Apertus: a list of objects with one key each, the function's name.

<|tools_prefix|>[{"get_weather": {"city": "Oslo"}}, {"ping": {}}]<|tools_suffix|>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

APERTUS = Format(
    name="apertus",
    forced="json",
    markers={"CALLS": "<|tools_prefix|>", "/CALLS": "<|tools_suffix|>"},
    modes={"calls": Mode(Sink.BODY, "json_keyed", "after"), "after": Mode(Sink.GAP)},
    rules={
        (CONTENT, "CALLS"): Go("calls", Emit.CALL),
        ("after", "/CALLS"): Go(CONTENT),
        ("after", "CALLS"): Go("calls", Emit.CALL),
    },
)
