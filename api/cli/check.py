"""Checks everything that a start needs, and names all faults at once: `tokenyard check`, and before `up`.

error: tokenyard.toml: unknown key redis_ur; did you mean redis_url?
error: api.port: port 8000 is already in use; stop what listens there, or set another (TOKENYARD_API__PORT)
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Final, NoReturn

import click

from api.cli.yard import listens, python, redis_binary
from tasks.faults import Fault, redis_faults
from tasks.settings import Settings

MODELS_TIMEOUT_S: Final = 30.0


def check_yard(settings: Settings) -> list[Fault]:
    """What keeps a whole yard from starting on this machine: Redis, models, ports."""
    models = _ask_for_model_faults()
    faults: list[Fault] = []
    if "redis_url" in settings.model_fields_set:
        faults += redis_faults(settings)
    else:
        try:
            redis_binary()
        except click.ClickException as missing:
            faults.append(Fault(missing.message))
    for key, variable, port in (
        ("api.port", "TOKENYARD_API__PORT", settings.api.port),
        ("flower.port", "TOKENYARD_FLOWER__PORT", settings.flower.port),
    ):
        if listens(port)():
            faults.append(
                Fault(f"{key}: port {port} is already in use; stop what listens there, or set another ({variable})")
            )
    return faults + _model_faults_from(models)


def show(faults: Iterable[Fault]) -> None:
    """Print faults to standard error, one a line."""
    for fault in faults:
        click.echo(f"{'error' if fault.fatal else 'warning'}: {fault.text}", err=True)


def refuse(faults: Iterable[Fault]) -> NoReturn:
    """Print faults, and end the command."""
    show(faults)
    raise SystemExit(2)


def _ask_for_model_faults() -> subprocess.Popen[str]:
    # The API's side of the house has no tokenizer: the workers' side looks at the models' files.
    return subprocess.Popen(
        python("workers.models", "check", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _model_faults_from(process: subprocess.Popen[str]) -> list[Fault]:
    answer, problem = process.communicate(timeout=MODELS_TIMEOUT_S)
    if process.returncode not in (0, 1):
        return [Fault(f"the models could not be checked: {(problem.strip().splitlines() or ['no reason given'])[-1]}")]
    return [Fault(text) for text in json.loads(answer)]
