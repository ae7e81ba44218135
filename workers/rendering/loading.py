"""Loads a model folder's tokenizer and chat templates, compiled once and kept on disk."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer as Backend

from tasks.errors import TokenyardError
from workers.text.tokenizer import Tokenizer, TokenizerInfo

_FORMAT = 1
_COMPILER = Path(__file__).with_name("compiling.py")
_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_TEMPLATE_FOLDER = "additional_chat_templates"
_COMPILE_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """`templates` are the folder's chat templates by name; one without a name is `default`."""

    tokenizer: Tokenizer
    templates: Mapping[str, str]


def load(folder: str | Path, *, cache: Path | None = None) -> LoadedTokenizer:
    """The tokenizer and templates of a model folder.

    The first call for a folder's files starts a process that compiles them (seconds) into the cache (by default
    `$TOKENYARD_CACHE/tokenizers`); later ones read that. Raises `TokenyardError` where the folder has no usable
    tokenizer.
    """
    folder = Path(folder)
    fingerprint = fingerprint_of(folder)
    compiled = (cache or _default_cache()) / f"{fingerprint}-{version('transformers')}-{_FORMAT}"
    if not (compiled / "info.json").exists():
        _compile(folder, compiled)
    info = json.loads((compiled / "info.json").read_text(encoding="utf-8"))
    backend = Backend.from_file(str(compiled / "tokenizer.json"))
    _release_freed_memory()
    tokenizer = Tokenizer(backend, TokenizerInfo.from_json({**info, "fingerprint": fingerprint}))
    return LoadedTokenizer(tokenizer, info["templates"])


def fingerprint_of(folder: Path) -> str:
    """Half of a sha256 over the files that a tokenizer is made from."""
    paths = [path for name in _FILES if (path := folder / name).is_file()]
    paths += sorted((folder / _TEMPLATE_FOLDER).glob("*.jinja"))
    if not paths:
        raise TokenyardError(f"{folder} has no tokenizer")
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _release_freed_memory() -> None:
    """Parsing a tokenizer leaves as much again as it keeps in the allocator's free lists; glibc gives it back if asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _default_cache() -> Path:
    base = os.environ.get("TOKENYARD_CACHE")
    if base:
        return Path(base).expanduser() / "tokenizers"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tokenyard" / "tokenizers"


def _compile(folder: Path, compiled: Path) -> None:
    compiled.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=compiled.parent) as scratch:
        output = Path(scratch) / "compiled"
        output.mkdir()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        # -P: this package's folder must not be searched for modules.
        result = subprocess.run(
            [sys.executable, "-P", str(_COMPILER), str(folder), str(output)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise TokenyardError(f"the tokenizer in {folder} cannot be loaded: {reason}")
        try:
            output.rename(compiled)
        except OSError:
            # Another process compiled the same files meanwhile.
            if not (compiled / "info.json").exists():
                raise
