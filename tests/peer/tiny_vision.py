"""A small model with eyes and random weights, for a real tokenizer. Runs with the reference's own interpreter.

    peer/bin/python tiny_vision.py TOKENIZER_FOLDER MODEL_FOLDER

The tokenizer has Qwen's tokens for images; the model is a Qwen2-VL of two layers. What it writes is noise, but the same
noise for the same prompt and image.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
}
VISION = {
    "depth": 1,
    "embed_dim": 64,
    "hidden_size": 64,
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 3136,
    "max_pixels": 50176,
}
TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build(source: Path, target: Path) -> None:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "tokenizer.json", target / "tokenizer.json")
    named = json.loads((source / "tokenizer_config.json").read_text())
    named.pop("chat_template", None)
    (target / "tokenizer_config.json").write_text(json.dumps({**named, "processor_class": "Qwen2VLProcessor"}))
    (target / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (target / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    size = -(-(max(tokenizer.get_vocab().values()) + 1) // 64) * 64
    torch.manual_seed(0)
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": size, "eos_token_id": tokenizer.eos_token_id},
        vision_config=VISION,
        tie_word_embeddings=True,
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in TOKENS.items()},
    )
    transformers.Qwen2VLForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(target)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
