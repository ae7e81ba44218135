"""The command line for models on disk.

$ python -m workers.models pull smollm2
$ python -m workers.models path smollm2
$ python -m workers.models list
$ python -m workers.models check
"""

from __future__ import annotations

import argparse
import json
import sys

from tasks.settings import load_settings
from workers.models.check import model_faults
from workers.models.download import MODELS, AssetError, find_model, pull_model
from workers.models.gguf import ensure_tokenizer


def print_list() -> int:
    """Prints the models that can be pulled by name, and where their files are."""
    for name, model in MODELS.items():
        place = find_model(name)
        where = str(place) if place else f"not downloaded, {model.wheel_bytes / 1e6:.0f} MB"
        print(f"{name}: {model.description} ({model.license}; {where})")
    return 0


def print_path(name: str) -> int:
    """Prints where a model's files are; returns the exit code, which is 1 if they are missing."""
    place = find_model(name)
    if place is None:
        print(f"{name} is not downloaded; run: python -m workers.models pull {name}", file=sys.stderr)
        return 1
    print(place)
    return 0


def print_faults(as_json: bool) -> int:
    """Prints what is wrong with the models of the settings; returns the exit code, which is 1 if anything is."""
    faults = model_faults(load_settings())
    print(json.dumps(faults) if as_json else "\n".join(faults) or "the models are in order")
    return 1 if faults else 0


def pull(name: str) -> int:
    """Fetches a model, with a progress bar on a terminal, and writes its tokenizer's folder."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"{name}: {what}", total=total)
            bar.update(tasks[what], completed=done)

        place = pull_model(name, report)
        if place.suffix == ".gguf":
            bar.add_task(f"{name}: writing the tokenizer", total=None)
            ensure_tokenizer(place)
    print(place)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.models", description="Fetch and find model files.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the models that can be pulled by name")
    check = commands.add_parser("check", help="say what is wrong with the models of the settings")
    check.add_argument("--json", action="store_true", help="print a JSON list")
    for command, what in (("pull", "fetch a model's files"), ("path", "print where a model's files are")):
        commands.add_parser(command, help=what).add_argument("name", help="a name from the list, ORG/NAME, or a path")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "list":
            return print_list()
        if chosen.command == "check":
            return print_faults(chosen.json)
        return print_path(chosen.name) if chosen.command == "path" else pull(chosen.name)
    except AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
