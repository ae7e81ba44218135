"""The recorded cases as real tokenizers write them, so that they can be read where no tokenizer is.

`NAME/token_ids.json`, one entry for each tokenizer of the family:

    {"qwen3": {"added": {"<tool_call>": [151657, false]},
               "tools": {"one call": {"ids": [151657, 198, 4913, ...], "lengths": [11, 1, 2, ...]}}}}

`added` are the added tokens that the ids hold, with their ids and whether they are special. The lengths cut a case's text
into what each id says; 0 where it ends inside a character, whose text comes with its last id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from workers.text.detokenizer import start, step
from workers.text.pieces import AddedToken, Piece
from workers.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("TOKENYARD_REAL_TOKENIZERS", "~/.cache/real-tokenizers")).expanduser()
"""One folder with a `tokenizer.json` for each tokenizer."""

TOKENIZERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("deepseek_r1", "reasoning"): ("deepseek-r1", "r1-distill-llama"),
    ("deepseek_v3", "reasoning"): ("deepseek-v3.1",),
    ("deepseek_v3", "tools"): ("deepseek-r1", "deepseek-v3"),
    ("deepseek_v31", "tools"): ("deepseek-v3.1",),
    ("deepseek_v32", "tools"): ("deepseek-v3.2",),
    ("deepseek_v4", "reasoning"): ("deepseek-v4",),
    ("deepseek_v4", "tools"): ("deepseek-v4",),
    ("functiongemma", "tools"): ("gemma3",),
    ("glm45", "reasoning"): ("glm-4.5v",),
    ("glm45", "tools"): ("glm-4.5v",),
    ("glm47", "reasoning"): ("glm-5.2",),
    ("glm47", "tools"): ("glm-4.7-flash", "glm-5"),
    ("hermes", "tools"): ("qwen3", "llama2"),
    ("llama3_json", "tools"): ("llama3.1",),
    ("minimax_m2", "reasoning"): ("minimax",),
    ("minimax_m2", "tools"): ("minimax",),
    ("minimax_m2_append_think", "reasoning"): ("minimax",),
    ("minimax_m3", "reasoning"): ("minimax-m3",),
    ("minimax_m3", "tools"): ("minimax-m3",),
    ("openai", "tools"): ("gpt-oss",),
    ("openai_gptoss", "reasoning"): ("gpt-oss",),
    ("pythonic", "tools"): ("llama3.1",),
    ("qwen3", "reasoning"): ("qwen3", "qwen3.5"),
    ("qwen3_coder", "tools"): ("qwen3.5",),
}
"""The tokenizers of a name's family, by name and kind."""


@dataclass(frozen=True)
class Recorded:
    """One tokenizer's ids for the cases of one name."""

    added: Mapping[str, AddedToken]
    cases: Mapping[str, Mapping[str, list[int]]]

    def pieces(self, case: Mapping[str, Any]) -> list[list[Piece]]:
        """What each id of a case says; nothing where its text comes with a later one.

        Raises:
            ValueError: the lengths are not of this text.
        """
        row, text, at = self.cases[case["case"]], case["text"], 0
        by_id = {token.token_id: token for token in self.added.values()}
        out: list[list[Piece]] = []
        for token_id, length in zip(row["ids"], row["lengths"], strict=True):
            said = text[at : at + length]
            at += length
            if token := by_id.get(token_id):
                if not said.endswith(token.text):
                    raise ValueError(f"{case['case']}: {token.text!r} is not in the text at {at}")
                before = said.removesuffix(token.text)
                out.append([before, token] if before else [token])
            else:
                out.append([said] if said else [])
        if at != len(text):
            raise ValueError(f"{case['case']}: the ids say {at} of {len(text)} characters")
        return out


def load(name: str, kind: str, tokenizer: str) -> Recorded:
    """What is recorded of one tokenizer."""
    entry = json.loads((HERE / name / "token_ids.json").read_text(encoding="utf-8"))[tokenizer]
    added = {text: AddedToken(token_id, text, special) for text, (token_id, special) in entry["added"].items()}
    return Recorded(added, entry[kind])


def tokenizer_of(folder: str) -> Tokenizer | None:
    """A real tokenizer, where it is installed."""
    path = FOLDER / folder / "tokenizer.json"
    return Tokenizer(Backend.from_file(str(path))) if path.exists() else None


def encode(tokenizer: Tokenizer, text: str) -> dict[str, list[int]] | None:
    """The ids of a text and how many characters each says; None where the tokenizer does not give the text back."""
    ids = tokenizer.encode(text)
    state = start(tokenizer, skip_special_tokens=False)
    said, lengths = "", []
    for token_id in ids:
        state, pieces = step(tokenizer, state, [token_id])
        new = "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
        lengths.append(len(new))
        said += new
    return {"ids": ids, "lengths": lengths} if said == text else None


def record(tokenizer: Tokenizer, cases: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The entry of one tokenizer. cases: kind → the recorded cases."""
    rows: dict[str, dict[str, Any]] = {}
    used: set[int] = set()
    for kind, some in cases.items():
        found = {case["case"]: row for case in some if (row := encode(tokenizer, case["text"]))}
        rows[kind] = found
        used |= {token_id for row in found.values() for token_id in row["ids"]}
    table = [tokenizer.table[token_id] for token_id in sorted(used)]
    added = {token.text: [token.token_id, token.special] for token in table if isinstance(token, AddedToken)}
    return {"added": added, **rows}


def write(name: str) -> None:
    """Records what the installed tokenizers make of a name's cases; what others made of them stays."""
    kinds: dict[str, list[str]] = {}
    for (folder, kind), tokenizers in TOKENIZERS.items():
        for tokenizer in tokenizers if folder == name else ():
            kinds.setdefault(tokenizer, []).append(kind)
    path = HERE / name / "token_ids.json"
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for folder, some in kinds.items():
        if found := tokenizer_of(folder):
            texts = {kind: (HERE / name / f"{kind}.json").read_text(encoding="utf-8") for kind in some}
            entries[folder] = record(found, {kind: json.loads(text)["cases"] for kind, text in texts.items()})
    if entries:
        path.write_text(_lines(entries), encoding="utf-8")


def _lines(entries: Mapping[str, Any]) -> str:
    """JSON with one case on a line."""

    def compact(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def rows(kind: str, cases: Mapping[str, Any]) -> str:
        if kind == "added":
            return f'  "added": {json.dumps(cases, ensure_ascii=False)}'
        return (
            f'  "{kind}": {{\n' + ",\n".join(f"   {compact(case)}: {compact(row)}" for case, row in cases.items()) + "}"
        )

    parts = [
        f' "{name}": {{\n' + ",\n".join(rows(*item) for item in entry.items()) + "}" for name, entry in entries.items()
    ]
    return "{\n" + ",\n".join(parts) + "}\n"
