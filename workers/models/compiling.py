"""Compiles a model's folder to files that a worker loads in a second; runs once for each folder, in its own process.

    python compiling.py MODEL_FOLDER OUTPUT_FOLDER

`AutoTokenizer` decides what a folder's files mean, but it is large and slow. Saving its result avoids loading it again:

    OUTPUT_FOLDER/tokenizer.json    the tokenizer as `AutoTokenizer` set it up
    OUTPUT_FOLDER/info.json         {"special_tokens": {"eos_token": "<|im_end|>"}, "max_chars_per_token": 128,
                                     "templates": {"default": "{%- for message in messages ..."}}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer


def compile_tokenizer(folder: Path, output: Path) -> None:
    """Writes the two files; raises what `AutoTokenizer` raises, and TypeError if there is no fast backend."""
    # `compiling_mistral` reads Mistral's own files, whatever else is in the folder or installed.
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, mistral_format=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TypeError(f"{type(tokenizer).__name__} has no backend in the tokenizers library")
    backend.no_truncation()
    backend.no_padding()
    backend.save(str(output / "tokenizer.json"), pretty=False)
    template = tokenizer.chat_template
    info = {
        "special_tokens": tokenizer.special_tokens_map,
        "max_chars_per_token": max(map(len, backend.get_vocab()), default=1),
        "templates": template if isinstance(template, dict) else {} if template is None else {"default": template},
    }
    (output / "info.json").write_text(json.dumps(info, ensure_ascii=False, default=str), encoding="utf-8")


if __name__ == "__main__":
    compile_tokenizer(Path(sys.argv[1]), Path(sys.argv[2]))
