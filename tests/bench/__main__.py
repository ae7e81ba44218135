"""`python -m tests.bench [NAME ...]`: run benchmarks, print their tables and write them to RESULTS.md."""

from __future__ import annotations

import sys
from importlib import import_module

from tests.bench.table import Table, write_results

BENCHMARKS = {
    "yard": "tests.bench.yard",
    "serving": "tests.bench.serving",
    "derendering": "tests.bench.derendering",
    "parsing": "tests.bench.parsing",
    "rendering": "tests.bench.rendering",
}


def main(names: list[str]) -> int:
    if unknown := set(names) - set(BENCHMARKS):
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        tables: list[Table] = import_module(BENCHMARKS[name]).run()
        for table in tables:
            print(table.markdown() + "\n", flush=True)
        write_results(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
