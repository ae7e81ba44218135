"""The catalog loads what the settings name, or else the model's folder, once."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tasks.errors import ModelNotFound
from tasks.protocol.conversation import Conversation
from tasks.settings import ModelSettings, Settings
from workers.models import catalog as catalog_module
from workers.models.catalog import Catalog, ModelProfile, load_model

TEMPLATE = "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer of single bytes."""
    folder = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>", "<tool_call>")])
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<|end|>", "<|turn|>")])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": TEMPLATE})
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    turn = backend.token_to_id("<|turn|>")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [turn], "temperature": 0.6, "top_k": 20, "do_sample": True, "max_new_tokens": 99})
    )
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_CACHE", str(tmp_path_factory.getbasetemp() / "tokenyard-cache"))


def model(folder: Path, **fields: Any) -> ModelSettings:
    return ModelSettings(name="m", tokenizer=str(folder), max_model_len=256, **fields)


def test_a_model_is_what_its_settings_say(folder: Path) -> None:
    profile = load_model(model(folder, generation_defaults={"temperature": 0.1}))
    tokenizer = profile.tokenizer
    assert profile.eos_token_ids == (tokenizer.id_of("<|end|>"), tokenizer.id_of("<|turn|>"))
    assert profile.generation_defaults == {"temperature": 0.1, "top_k": 20, "max_tokens": 99}
    assert profile.max_model_len == 256
    rendered = profile.renderer.render(Conversation(messages=({"role": "user", "content": "Hi"},)))
    assert tokenizer.decode(rendered.token_ids) == "<|turn|>user:Hi<|end|>"
    # No parser was named, so the model's markup is text.
    assert profile.parser.format.prompt.opens == ()


def test_what_the_settings_leave_out_is_found_in_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(catalog_module, "log", SimpleNamespace(info=lambda event, **fields: logged.append(fields)))
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    template = (
        TEMPLATE + """{# <tool_call>{"name": "f", "arguments": {}}</tool_call> <think></think> enable_thinking #}"""
    )
    (tmp_path / "chat_template.jinja").write_text(template)
    profile = load_model(model(tmp_path))
    used = profile.settings
    assert (used.renderer, used.tool_parser, used.reasoning_parser) == ("jinja", "hermes", "qwen3")
    assert profile.parser.format.prompt.opens != ()
    bare = load_model(model(tmp_path, tool_parser="none", reasoning_parser="none"))
    assert (bare.settings.tool_parser, bare.settings.reasoning_parser) == (None, None)
    assert bare.fingerprint != profile.fingerprint
    named = load_model(model(tmp_path, tool_parser="hermes", reasoning_parser="qwen3"))
    assert named.fingerprint == profile.fingerprint, "named or found is the same"
    assert [(row["model"], row["tool_parser"], row["reasoning_parser"]) for row in logged] == [
        ("m", "hermes", "qwen3"),
        ("m", None, None),
        ("m", "hermes", "qwen3"),
    ]
    assert logged[0]["why"]["tool_parser"] == "the chat template has '<tool_call>'"
    assert logged[1]["why"]["tool_parser"] == "the settings name it"


def test_the_fingerprint_tells_models_and_settings_apart(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("other")
    prints = [
        load_model(settings).fingerprint
        for settings in (
            model(folder),
            model(folder, reasoning_parser="qwen3"),
            model(folder, tool_parser="hermes"),
            model(folder, chat_template=str(template)),
            model(folder),
        )
    ]
    assert prints[0] == prints[4]
    assert len(set(prints)) == 4


def test_an_unknown_parser_or_renderer_is_an_error(folder: Path) -> None:
    for fields in ({"tool_parser": "nobody"}, {"reasoning_parser": "nobody"}, {"renderer": "nobody"}):
        with pytest.raises(ValueError, match="nobody"):
            load_model(model(folder, **fields))


class Loader:
    """Loads slowly, and counts its calls."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, settings: ModelSettings) -> ModelProfile:
        with self._lock:
            self.loads.append(settings.name)
        time.sleep(0.02)
        return cast(ModelProfile, settings)


def served(*models: ModelSettings) -> Settings:
    return Settings(models=models)


def test_many_threads_load_a_model_once() -> None:
    loader = Loader()
    catalog = Catalog(served(ModelSettings(name="a", aliases=("b",), tokenizer="t")), load_profile=loader)
    with ThreadPoolExecutor(8) as pool:
        profiles = list(pool.map(catalog.get, ["a", "b"] * 8))
    assert loader.loads == ["a"]
    assert all(profile is profiles[0] for profile in profiles)
    assert set(catalog.loaded) == {"a"}
    assert catalog.loaded["a"] >= 0.02


def test_preload_takes_the_models_that_want_it() -> None:
    loader = Loader()
    models = (ModelSettings(name="a", tokenizer="t"), ModelSettings(name="c", tokenizer="t", preload=False))
    catalog = Catalog(served(*models), load_profile=loader)
    catalog.preload()
    assert loader.loads == ["a"]
    assert catalog.names == ("a", "c")
    catalog.get("c")
    assert loader.loads == ["a", "c"]


def test_a_model_that_failed_to_load_is_tried_again() -> None:
    loader = Loader()

    def fail_once(settings: ModelSettings) -> ModelProfile:
        profile = loader(settings)
        if len(loader.loads) == 1:
            raise OSError("not there yet")
        return profile

    catalog = Catalog(served(ModelSettings(name="a", tokenizer="t")), load_profile=fail_once)
    with pytest.raises(OSError, match="not there yet"):
        catalog.preload()
    assert catalog.loaded == {}
    assert catalog.get("a")


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound) as caught:
        Catalog(served()).get("nobody")
    assert caught.value.param == "model"
