"""Benchmark results as rows, and the file that they are written to."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True, slots=True)
class Table:
    """One benchmark: what was measured, under which headings, and what it says."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=tuple)

    def markdown(self) -> str:
        lines = [f"## {self.title}", ""]
        lines.append("| " + " | ".join(self.headings) + " |")
        lines.append("|" + " --- |" * len(self.headings))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.notes:
            lines += ["", *(f"* {note}" for note in self.notes)]
        return "\n".join(lines)


def write_results(tables: Sequence[Table]) -> None:
    """Replace the sections of these benchmarks in the results file and keep the others."""
    sections: dict[str, str] = {}
    if RESULTS.is_file():
        for section in RESULTS.read_text(encoding="utf-8").split("\n## ")[1:]:
            title, _, rest = section.partition("\n")
            sections[title] = f"## {title}\n{rest}".rstrip()
    sections |= {table.title: table.markdown() for table in tables}
    head = (
        "# Measured\n\n"
        f"`make bench`, last run {datetime.now(UTC):%Y-%m-%d} on {platform.machine()}, Python {platform.python_version()}. "
        "Absolute figures depend on the machine and what else runs on it: compare within a row.\n\n"
    )
    RESULTS.write_text(head + "\n\n".join(sections.values()) + "\n", encoding="utf-8")


def milliseconds(values_s: Sequence[float]) -> str:
    """Median and 95th percentile."""
    ordered = sorted(values_s)
    return f"{1e3 * statistics.median(ordered):.1f} / {1e3 * ordered[int(0.95 * (len(ordered) - 1))]:.1f}"
