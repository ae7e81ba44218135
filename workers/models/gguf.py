"""A tokenizer folder for any model: the model's own, or one written once from the vocabulary in its GGUF file.

    tokenizer.ggml.model = "gpt2"            tokenizer.ggml.pre = "smollm"
    tokenizer.ggml.tokens = ["<|endoftext|>", "<|im_start|>", ..., "Ġthe", ...]
    tokenizer.ggml.token_type = [3, 3, ..., 1, ...]      tokenizer.ggml.merges = ["Ġ t", "Ġ a", ...]
    tokenizer.ggml.eos_token_id = 2          tokenizer.chat_template = "{% for message in messages %}..."

becomes `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`, as transformers
reads them. This works for byte-level BPE vocabularies with a pre-tokenizer in `PRE_TOKENIZERS`; others are refused,
never guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from workers.models.cache import cache_folder, hold_lock, staging_folder
from workers.models.download import MODELS, AssetError, find_model, pull_repository

FORMAT = 1
CONTROL, USER_DEFINED = 3, 4
CHAT_TEMPLATE = "tokenizer.chat_template"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split_by(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS: Mapping[str, Any] = {
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": _single_digits,
    "llama-bpe": lambda: _split_by(_LLAMA3_WORDS),
    "qwen2": lambda: _split_by(_QWEN2_WORDS),
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe"})
_NFC = frozenset({"qwen2"})
_USE_OWN_FILES = "Point the setting `tokenizer` at a folder with the model's own tokenizer.json."


def ensure_tokenizer(source: str | Path) -> Path:
    """The path for `workers.models.loading.load`, for a folder, a file, a named model or a repository.

    For a `.gguf` file it is a folder written from it; a tokenizer's own file, such as `tekken.json`, is used as it is.

    Raises:
        AssetError: there is nothing at `source`, or the file's tokenizer is of an unknown kind.
    """
    name = str(source)
    path = find_model(name)
    if path is None:
        if name in MODELS:
            raise AssetError(f"the model {name} is not downloaded; run: tokenyard models pull {name}")
        if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith(".gguf"):
            return pull_repository(name)
        raise AssetError(
            f"there is no tokenizer at {name}: give an existing folder or file, ORG/NAME, or one of {', '.join(MODELS)}"
        )
    if path.suffix != ".gguf":
        return path
    return _ensure_from_gguf(path.resolve())


def _ensure_from_gguf(path: Path) -> Path:
    facts = path.stat()
    identity = f"{FORMAT}:{path}:{facts.st_size}:{facts.st_mtime_ns}"
    folder = cache_folder() / "tokenizers" / f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    with hold_lock(f"tokenizer-{folder.name}"):
        if not folder.is_dir():
            metadata = read_metadata(path)
            with staging_folder(folder) as staging:
                whole = staging / "whole"
                whole.mkdir()
                write_tokenizer(metadata, whole)
                whole.rename(folder)
    return folder


def read_metadata(path: Path) -> dict[str, Any]:
    """A GGUF file's key-value pairs.

    Raises:
        AssetError: `path` is not a GGUF file, or the package gguf is missing.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise AssetError("reading a .gguf file needs the package gguf: pip install 'tokenyard[embedded]'") from error
    try:
        reader = GGUFReader(path)
        return {name: value.contents() for name, value in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise AssetError(f"{path} is not a GGUF file: {error}") from error


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Writes the files into `folder`, which must exist."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds_bos(metadata),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{metadata.get('general.architecture')}.context_length", 1_000_000),
    }
    generation: dict[str, Any] = {}
    for short, long in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = metadata.get(f"tokenizer.ggml.{long}_token_id")
        if token_id is not None:
            config[f"{short}_token"] = tokens[token_id]
            if short != "unk":
                generation[f"{short}_token_id"] = token_id
    # If a model ends its turns with another token than its texts, it must stop at both.
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    distinct = list(dict.fromkeys(token_id for token_id in ends if token_id is not None))
    if len(distinct) > 1:
        generation["eos_token_id"] = distinct
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "generation_config.json", generation)
    if metadata.get(CHAT_TEMPLATE):
        (folder / "chat_template.jinja").write_text(metadata[CHAT_TEMPLATE], encoding="utf-8")


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The vocabulary as a tokenizer of the library `tokenizers`.

    Raises:
        AssetError: the vocabulary is not byte-level BPE, or has an unknown pre-tokenizer.
    """
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise AssetError(
            f"the file's tokenizer is of kind {kind!r}; only gpt2 (byte-level BPE) can be converted. {_USE_OWN_FILES}"
        )
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise AssetError(
            f"the file's pre-tokenizer is {pre!r}; known are {', '.join(PRE_TOKENIZERS)}. {_USE_OWN_FILES}"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, ignore_merges=pre in _WHOLE_WORDS_FIRST)
    )
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(metadata, tokens)
    tokenizer.add_special_tokens(_added(tokens, types, CONTROL, special=True))
    tokenizer.add_tokens(_added(tokens, types, USER_DEFINED, special=False))
    return tokenizer


def _added(tokens: list[str], types: list[int], wanted: int, *, special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, special=special, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == wanted
    ]


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("tokenizer.ggml.add_bos_token", False))


def _post_processor(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    if not _adds_bos(metadata):
        return processors.ByteLevel(trim_offsets=False)
    bos_id = metadata["tokenizer.ggml.bos_token_id"]
    bos = tokens[bos_id]
    return processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, bos_id)]
    )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
