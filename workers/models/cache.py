"""The cache folder: `TOKENYARD_CACHE`, else `~/.cache/tokenyard`.

    models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf      a file that `pull` fetched
    tokenizers/SmolLM2-135M-Instruct.Q4_1-3f0c…/        a tokenizer from a model file
    locks/                                              allow each of them one writer at a time

Files and folders are never incomplete: they are written beside their place and then moved there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    chosen = os.environ.get("TOKENYARD_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "tokenyard"


@contextmanager
def hold_lock(name: str) -> Iterator[None]:
    """Waits until no other process holds `name`; the lock is released if its process ends, however it ends."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def staging_folder(place: Path) -> Iterator[Path]:
    """An empty folder beside `place`, on the same disk; removed at the end with all that is left in it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for leftover in place.parent.glob(f".{place.name}.part-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{place.name}.part-", dir=place.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
