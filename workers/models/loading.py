"""Loads a model's tokenizer and chat templates, which are compiled once and kept on disk.

A folder has files for transformers (`tokenizer.json`, `tokenizer_config.json`), Mistral's own (`tekken.json`,
`tokenizer.model.v3`), or both.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer as Backend

from tasks.errors import TokenyardError
from workers.text.tokenizer import LoadedTokenizer, Tokenizer, TokenizerInfo

Origin = Literal["transformers", "mistral"]
"""Whose files a tokenizer is made from."""

_FORMAT = 1
_COMPILERS: Mapping[Origin, Path] = {
    "transformers": Path(__file__).with_name("compiling.py"),
    "mistral": Path(__file__).with_name("compiling_mistral.py"),
}
_MISTRAL_FILE = re.compile(r"tekken.*\.json|.+\.model\.v\d+(m\d+)?|tokenizer\.model")
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


def load(source: str | Path, *, cache: Path | None = None, origin: Origin | None = None) -> LoadedTokenizer:
    """The tokenizer and templates of a model folder, or of a file of Mistral's.

    The first call for a set of files starts a process that compiles them into the cache (by default
    `$TOKENYARD_CACHE/tokenizers`), which takes seconds; later calls read the cache. Without `origin`, a folder's files
    for transformers take precedence over Mistral's. Raises `TokenyardError` if there is no usable tokenizer.
    """
    source = Path(source)
    origin = origin or _origin_of(source)
    if origin == "mistral":
        source = find_mistral_file(source)
        fingerprint, compiler = _digest([source]), "mistral"
    else:
        fingerprint, compiler = fingerprint_of(source), version("transformers")
    compiled = (cache or _default_cache()) / f"{fingerprint}-{compiler}-{_FORMAT}"
    if not (compiled / "info.json").exists():
        _compile(origin, source, compiled)
    info = json.loads((compiled / "info.json").read_text(encoding="utf-8"))
    backend = Backend.from_file(str(compiled / "tokenizer.json"))
    _release_freed_memory()
    known = {**info, "fingerprint": fingerprint, "disputed_characters": _disputed_characters(compiled.parent)}
    tokenizer = Tokenizer(backend, TokenizerInfo.from_json(known))
    return LoadedTokenizer(tokenizer, info["templates"], compiled / source.name if origin == "mistral" else None)


def find_mistral_file(source: Path) -> Path:
    """The file itself, or a folder's `tekken.json`, or its SentencePiece model of the highest version.

    Raises TokenyardError if there is none.
    """
    if source.is_file():
        if _MISTRAL_FILE.fullmatch(source.name):
            return source
        raise TokenyardError(f"{source} is neither a folder, nor a .gguf file, nor a tokenizer of Mistral's own")
    names = [path.name for path in source.glob("*") if _MISTRAL_FILE.fullmatch(path.name)]
    known = sorted(name for name in names if name == "tekken.json" or not name.startswith("tekken"))
    if not known:
        raise TokenyardError(
            f"{source} has no tokenizer of Mistral's own: it needs a file such as tekken.json or tokenizer.model.v3"
        )
    return source / ("tekken.json" if "tekken.json" in known else known[-1])


def _origin_of(source: Path) -> Origin:
    if source.is_file():
        return "mistral"
    own = any((source / name).is_file() for name in _FILES if name != "config.json")
    return "transformers" if own or not any(source.glob("tekken.json")) else "mistral"


def fingerprint_of(folder: Path) -> str:
    """Half of a SHA-256 over the files that a tokenizer is made from; raises TokenyardError if there are none."""
    paths = [path for name in _FILES if (path := folder / name).is_file()]
    paths += sorted((folder / _TEMPLATE_FOLDER).glob("*.jinja"))
    if not paths:
        raise TokenyardError(f"{folder} has no tokenizer: it needs files such as tokenizer.json")
    return _digest(paths)


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _release_freed_memory() -> None:
    """Return memory to the system: parsing a tokenizer frees as much as it keeps, and glibc holds on to that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _default_cache() -> Path:
    base = os.environ.get("TOKENYARD_CACHE")
    if base:
        return Path(base).expanduser() / "tokenizers"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tokenyard" / "tokenizers"


def _disputed_characters(cache: Path) -> str:
    """`workers.text.words.disputed_characters()` for the installed libraries, computed once and kept in the cache."""
    versions = f"{version('tokenizers')}-{version('regex')}-{unicodedata.unidata_version}"
    kept = cache / f"characters-{versions}.txt"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Its own process, because it takes memory that a worker would never return.
        script = "from workers.text.words import disputed_characters; print(disputed_characters())"
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        with tempfile.NamedTemporaryFile("w", dir=cache, delete=False) as file:
            file.write(result.stdout.strip())
        Path(file.name).rename(kept)
    return kept.read_text()


def _compile(origin: Origin, source: Path, compiled: Path) -> None:
    compiled.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=compiled.parent) as scratch:
        output = Path(scratch) / "compiled"
        output.mkdir()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        # -P: this package's folder must not be searched for modules.
        result = subprocess.run(
            [sys.executable, "-P", str(_COMPILERS[origin]), str(source), str(output)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise TokenyardError(f"the tokenizer in {source} cannot be loaded: {reason}")
        try:
            output.rename(compiled)
        except OSError:
            # Another process compiled the same files in the meantime.
            if not (compiled / "info.json").exists():
                raise
