"""Requests made from the API's own description are answered as it says, and never with a 500."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.integration.harness import Yard

DURATION_S = int(os.environ.get("TOKENYARD_FUZZ_S", "0"))


def test_the_api_answers_as_it_describes_itself(yard: Yard) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{yard.url}/openapi.json", "--checks", checks]
    bounded = ["--phases", "examples,fuzzing", "--max-examples", "15", "--seed", "20260101"]
    thorough = ["--phases", "examples,coverage,fuzzing", "--max-time", str(DURATION_S), "--max-examples", "100000"]
    done = subprocess.run(
        [*command, "--workers", "2", *(thorough if DURATION_S else bounded)],
        cwd=yard.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}\n{yard.logs()}"
    assert "Tested: " in done.stdout
