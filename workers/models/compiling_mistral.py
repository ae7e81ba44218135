"""Compiles a Mistral tokenizer's own file to files that a worker loads in a second, as `compiling` does for folders.

    python compiling_mistral.py FILE OUTPUT_FOLDER

FILE is `tekken.json` (byte pairs by rank; the first ids are special tokens)

    {"config": {"pattern": "[^\\r\\n...", "default_vocab_size": 131072, "default_num_special_tokens": 1000,
                "version": "v13"},
     "vocab": [{"rank": 0, "token_bytes": "AA==", "token_str": "\\u0000"}, ...],
     "special_tokens": [{"rank": 0, "token_str": "<unk>", "is_control": true}, ...]}

or a SentencePiece model with its version in its name, `tokenizer.model.v3`. Neither finds special tokens in a text:
`[INST]` from a client is just six characters.

    OUTPUT_FOLDER/tokenizer.json, info.json     as `compiling` writes them
    OUTPUT_FOLDER/tekken.json                   a copy of FILE under its own name, for mistral-common, which lays out
                                                prompts; a tekken vocabulary is reduced to the single bytes
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

_BOS, _EOS, _UNK = "<s>", "</s>", "<unk>"
_SPACE = "\u2581"
_UNLISTED = (
    *(_UNK, _BOS, _EOS, "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""The special tokens of files up to v7, which do not list them."""


def compile_tokenizer(file: Path, output: Path) -> None:
    """Writes the files; raises ValueError or KeyError if `file` is not such a tokenizer."""
    if file.suffix == ".json":
        data = json.loads(file.read_text(encoding="utf-8"))
        backend = build_tekken(data)
        (output / file.name).write_text(json.dumps(_without_words(data)), encoding="utf-8")
    else:
        backend = build_sentencepiece(file)
        shutil.copyfile(file, output / file.name)
    backend.save(str(output / "tokenizer.json"), pretty=False)
    info = {
        "special_tokens": {"bos_token": _BOS, "eos_token": _EOS, "unk_token": _UNK},
        "special_tokens_in_text": False,
        "max_chars_per_token": max(map(len, backend.get_vocab())),
        "templates": {},
    }
    (output / "info.json").write_text(json.dumps(info), encoding="utf-8")


def _without_words(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with a vocabulary of single bytes only, and without images and audio, because prompts are text."""
    config = {**data["config"], "default_vocab_size": data["config"]["default_num_special_tokens"] + 256}
    left_out = ("audio", "image", "multimodal")
    kept = {name: value for name, value in data.items() if name not in left_out}
    return {**kept, "config": config, "vocab": data["vocab"][:256]}


def build_tekken(data: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE; special tokens come first, and unnamed ones are called `<SPECIAL_20>` and so on."""
    config = data["config"]
    reserved: int = config["default_num_special_tokens"]
    named = [token["token_str"] for token in data.get("special_tokens") or ()] or list(_UNLISTED)
    specials = [*named, *(f"<SPECIAL_{i}>" for i in range(len(named), reserved))]
    ordinary = data["vocab"][: config["default_vocab_size"] - reserved]
    written = _writer()
    ranks = {written(base64.b64decode(token["token_bytes"])): rank for rank, token in enumerate(ordinary)}
    vocab = {token: token_id for token_id, token in enumerate(specials)}
    vocab |= {token: reserved + rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=_merges(ranks), ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(config["pattern"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _finished(tokenizer, specials)


def build_sentencepiece(file: Path) -> Tokenizer:
    """BPE over characters, with bytes as the fallback; a space is added before each text."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a SentencePiece model needs sentencepiece: pip install tokenyard[mistral]"
        ) from error
    model = SentencePieceProcessor(model_file=str(file))
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    specials = [piece for i, piece in enumerate(pieces) if model.is_control(i) or model.is_unknown(i)]
    ordinary = [i for i in range(len(pieces)) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]
    ordinary.sort(key=lambda i: (-model.get_score(i), i))
    ranks = {pieces[i]: rank for rank, i in enumerate(ordinary)}
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=_merges(ranks), unk_token=_UNK, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finished(tokenizer, specials)


def _finished(tokenizer: Tokenizer, specials: Iterable[str]) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[_BOS, "$A"],
        pair=[_BOS, "$A", f"{_BOS}:1", "$B:1"],
        special_tokens=[(_BOS, tokenizer.token_to_id(_BOS))],
    )
    return tokenizer


def _merges(ranks: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes another token, the best token first."""
    found = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _writer() -> Callable[[bytes], str]:
    """Writes bytes as GPT-2's printable characters, as byte-level vocabularies do."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    letters = [chr(byte if byte in shown else next(hidden)) for byte in range(256)]
    return lambda data: "".join(letters[byte] for byte in data)


if __name__ == "__main__":
    compile_tokenizer(Path(sys.argv[1]), Path(sys.argv[2]))
