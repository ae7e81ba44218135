"""`python random_model.py TOKENIZER_FOLDER TARGET`: a tiny model with random weights over a tokenizer, for the reference.

It runs with the reference's own Python. What such a model writes is noise, which is what incomplete characters, stray
markers and log-probabilities are tested with; held to a grammar, it writes calls.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


def write_model(source: Path, target: Path) -> None:
    """Copy the tokenizer to `target` and put weights beside it."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(target)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), Path(sys.argv[2]))
