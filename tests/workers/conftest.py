"""A small model folder, written here: a byte-level tokenizer with a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workers.text.conftest import byte_level
from workers.models.loading import load
from workers.text.tokenizer import LoadedTokenizer, Tokenizer, TokenizerInfo

TEMPLATE = (
    "{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>\n{% endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }})"
    "{%- endfor %}<|end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    byte_level()._backend.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "T" + TEMPLATE}],
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def loaded(folder: Path, cache: Path) -> LoadedTokenizer:
    return load(folder, cache=cache)


@pytest.fixture(scope="session")
def small() -> LoadedTokenizer:
    """The same without any file."""
    info = TokenizerInfo(special_tokens={"eos_token": "<|end|>"})
    return LoadedTokenizer(Tokenizer(byte_level()._backend, info), {"default": TEMPLATE})
