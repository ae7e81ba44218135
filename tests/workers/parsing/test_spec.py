"""Building a table that cannot work fails with the format's name and the mistake."""

from __future__ import annotations

from typing import Any

import pytest

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink, compose

GOOD: dict[str, Any] = {
    "name": "mine",
    "markers": {"CALL": "<call>", "/CALL": "</call>"},
    "modes": {"call": Mode(Sink.BODY, "json_call", "after"), "after": Mode(Sink.GAP)},
    "rules": {(CONTENT, "CALL"): Go("call", Emit.CALL), ("after", "/CALL"): Go(CONTENT)},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"markers": {"CALL": "<call>"}}, "undeclared markers: /CALL"),
        ({"markers": {**GOOD["markers"], "X": "x"}}, "markers without a rule: X"),
        ({"markers": {**GOOD["markers"], "CALL": ""}}, "empty markers: CALL"),
        ({"modes": {"after": Mode(Sink.GAP)}}, "lead to undeclared modes: call"),
        ({"modes": {**GOOD["modes"], "island": Mode(Sink.SKIP)}}, "unreachable modes: island"),
        (
            {"modes": {**GOOD["modes"], "call": Mode(Sink.BODY, "morse", "after")}},
            "mode call: unknown style 'morse'; a mode with sink body may have 'json_object'",
        ),
        ({"start": "nowhere"}, "undeclared modes: nowhere"),
        ({"rules": {**GOOD["rules"], ("limbo", "CALL"): Go(CONTENT)}}, "rules from undeclared modes: limbo"),
        (
            {
                "markers": {**GOOD["markers"], "TWIN": "<call>"},
                "rules": {**GOOD["rules"], (CONTENT, "TWIN"): Go(CONTENT)},
            },
            "mode content has two rules for one literal: <call>",
        ),
    ],
)
def test_a_bad_table_is_refused(change: dict[str, Any], says: str) -> None:
    Format(**GOOD)
    with pytest.raises(ValueError, match="format mine") as refused:
        Format(**{**GOOD, **change})
    assert says in str(refused.value)


def test_composed_tables_meet_in_the_answer() -> None:
    reasoning = Format(
        name="thinking",
        markers={"END": "[end]", "CALL": "<call>"},
        rules={("reasoning", "END"): Go(CONTENT), ("reasoning", "CALL"): Go(CONTENT, Emit.KEEP)},
        start="reasoning",
        interrupts=("<call>",),
    )
    probing = Format(**{**GOOD, "start": "call", "answer": "call"})
    both = compose(probing, reasoning)
    rules = {(source, both.markers[marker]): go.to for (source, marker), go in both.rules.items()}
    assert rules["reasoning", "[end]"] == "mine.call"
    assert rules["reasoning", "<call>"] == "mine.call"
    assert (both.start, both.answer) == ("reasoning", "mine.call")
