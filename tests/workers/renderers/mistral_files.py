"""Writes small tokenizers in Mistral's format: bytes, some words, and the special tokens of a version."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]"),
    *("[/THINK]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"),
)
WORDS = ("th", "the", " t", " the", "in", "ing", "é", "  ", "    ", "ab", "aba", "\n\n", "is", " is")
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def write_tekken(folder: Path, version: str = "v13") -> Path:
    """`tekken.json` of that version in a folder; up to v7 it does not list its special tokens."""
    tokens = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
    data: dict[str, Any] = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens) + 1,
            "default_vocab_size": len(tokens) + 40,
            "default_num_special_tokens": 40,
            "version": version,
        },
        # One token more than the model has, as the real files have thousands.
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate([*tokens, b"unused"])
        ],
    }
    if version not in ("v3", "v7"):
        data["special_tokens"] = [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIALS)
        ]
    if version == "v15":
        effort = {"type": "enum", "accepts_none": True, "default": "none", "values": ["none", "high"]}
        data["model_settings_builder"] = {"reasoning_effort": effort}
    path = folder / "tekken.json"
    path.write_text(json.dumps(data))
    return path
