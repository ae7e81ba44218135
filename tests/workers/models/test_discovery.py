"""A model's renderer and parsers are found in its folder, each with the reason, and the settings win."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.settings import ModelSettings
from tests.golden.families import TOOLS
from tests.peer.reference import TOKENIZERS
from tests.peer.test_render_parity import MODELS
from tests.workers.renderers.mistral_files import write_tekken
from workers.models.discovery import FAMILIES, NONE, discover, resolve
from workers.parsing.registry import REASONING
from workers.parsing.registry import TOOLS as TOOL_PARSERS
from workers.renderers.base import RENDERERS

Names = tuple[str | None, str | None, str | None]
THINK = "<think>{{ m.reasoning_content }}</think>"


def write(folder: Path, template: str | None = None, **config: Any) -> Path:
    """A minimal folder: a chat template, and a config.json with these fields."""
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def names_of(source: Path, template: str | None = None) -> Names:
    found = discover(source, template)
    assert all(choice.why and "\n" not in choice.why for choice in found.choices.values())
    return found.renderer.name, found.tool_parser.name, found.reasoning_parser.name


def sample(parser: str) -> str:
    """A call as the family's template writes it."""
    return TOOLS[parser].write([("get_weather", {"city": "Oslo"})])


FUNCTIONS = "<function={{ c.name }}><parameter={{ k }}>{{ v }}</parameter></function>"
HERMES = """{{- '<tool_call>\\n{"name": "' ~ c.name ~ '", "arguments": ' ~ c.arguments ~ '}\\n</tool_call>' }}"""
ELEMENTS = "<tool_call>{{ c.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>"

FOLDERS: dict[str, tuple[str | None, dict[str, Any], Names]] = {
    "gpt-oss, as published with a template": (
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>",
        {"model_type": "gpt_oss"},
        ("harmony", "openai", "openai_gptoss"),
    ),
    "gpt-oss without a template": (None, {"architectures": ["GptOssForCausalLM"]}, ("harmony", "openai", "openai_gptoss")),
    "gpt-oss, its template alone": (
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{{ c }}<|call|>",
        {},
        ("harmony", "openai", "openai_gptoss"),
    ),
    "DeepSeek V3.2": (None, {"model_type": "deepseek_v32"}, ("deepseek_v32", "deepseek_v32", "deepseek_v3")),
    "DeepSeek V3.2 Exp": (
        "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>",
        {"model_type": "deepseek_v32"},
        ("jinja", "deepseek_v31", "deepseek_v3"),
    ),
    "DeepSeek V4": (None, {"architectures": ["DeepseekV4ForCausalLM"]}, ("deepseek_v4", "deepseek_v4", "deepseek_v4")),
    "DeepSeek V3": (sample("deepseek_v3"), {"model_type": "deepseek_v3"}, ("jinja", "deepseek_v3", None)),
    "DeepSeek R1": (sample("deepseek_v3") + "<think>\\n", {}, ("jinja", "deepseek_v3", "deepseek_r1")),
    "DeepSeek R1, distilled": (sample("deepseek_v3") + "<think>", {"model_type": "qwen2"}, ("jinja", "deepseek_v3", "deepseek_r1")),
    "DeepSeek V3.1": (sample("deepseek_v31") + "</think>", {}, ("jinja", "deepseek_v31", "deepseek_v3")),
    "MiniMax M2": (sample("minimax_m2") + THINK, {}, ("jinja", "minimax_m2", "minimax_m2")),
    "MiniMax M3": (sample("minimax_m3") + "<mm:think>", {}, ("jinja", "minimax_m3", "minimax_m3")),
    "Kimi K2": (sample("kimi_k2"), {"model_type": "kimi_k2"}, ("jinja", "kimi_k2", None)),
    "Kimi K2 Thinking": (sample("kimi_k2") + THINK, {"model_type": "kimi_k2"}, ("jinja", "kimi_k2", "kimi_k2")),
    "Seed-OSS": (sample("seed_oss") + "<seed:think>", {}, ("jinja", "seed_oss", "seed_oss")),
    "LongCat": (sample("longcat"), {}, ("jinja", "longcat", None)),
    "Step 3": (sample("step3") + THINK, {}, ("jinja", "step3", "step3")),
    "dots": (sample("dots"), {}, ("jinja", "dots", None)),
    "Muse": (sample("muse"), {}, ("jinja", "muse", "muse")),
    "Inkling": (sample("inkling") + "<|content_thinking|>", {}, ("jinja", "inkling", "inkling")),
    "PLaMo 3": (sample("plamo3"), {}, ("jinja", "plamo3", None)),
    "K2 Horizon": (sample("k2_horizon") + "<ifm|think>", {}, ("jinja", "k2_horizon", "k2_horizon")),
    "Command A": (sample("cohere_command3") + "<|START_THINKING|>", {}, ("jinja", "cohere_command3", "cohere_command3")),
    "Command, with texts": (
        sample("cohere_command4") + "<|START_TEXT|>", {}, ("jinja", "cohere_command4", "cohere_command4")
    ),
    "Apertus": (sample("apertus"), {}, ("jinja", "apertus", None)),
    "FunctionGemma": (sample("functiongemma"), {}, ("jinja", "functiongemma", None)),
    "Gemma 4": (sample("gemma4") + "<|channel>thought", {}, ("jinja", "gemma4", "gemma4")),
    "LFM2": (sample("lfm2"), {}, ("jinja", "lfm2", None)),
    "LFM2, whose template lists tools": ("<|tool_list_start|>", {"model_type": "lfm2"}, ("jinja", "lfm2", None)),
    "InternLM 2": (sample("internlm"), {}, ("jinja", "internlm", None)),
    "GigaChat 3": (sample("gigachat3"), {}, ("jinja", "gigachat3", None)),
    "Phi-4-mini": ("functools[{{ c }}]", {"model_type": "phi3"}, ("jinja", "phi4_mini_json", None)),
    "Mistral, by its template": ("[INST]{{ m }}[/INST][TOOL_CALLS]", {}, ("jinja", "mistral", None)),
    "Magistral, by its template": ("[THINK]{{ m }}[/THINK][TOOL_CALLS]", {}, ("jinja", "mistral", "mistral")),
    "Hunyuan 3": (sample("hy_v3") + THINK, {"model_type": "hy_v3"}, ("jinja", "hy_v3", "hy_v3")),
    "Hunyuan 4": (sample("hy_v4") + THINK, {"model_type": "hy_v4"}, ("jinja", "hy_v4", "hy_v4")),
    "Laguna": (ELEMENTS + THINK, {"model_type": "laguna"}, ("jinja", "poolside_v1", "poolside_v1")),
    "Ling 3": (ELEMENTS + THINK, {"architectures": ["BailingMoeV3ForCausalLM"]}, ("jinja", "ling3", "ling3")),
    "GLM 4.5": ("<tool_call>{function-name}\n<arg_key>" + THINK, {}, ("jinja", "glm45", "glm45")),
    "GLM 4.7": ("<tool_call>{function-name}<arg_key>" + THINK, {}, ("jinja", "glm47", "glm45")),
    "elements of nobody": (ELEMENTS, {}, ("jinja", None, None)),
    "Step 3.5": (FUNCTIONS + THINK, {"model_type": "step3p5"}, ("jinja", "step3p5", "step3p5")),
    "Step 5": (FUNCTIONS + THINK, {"model_type": "step5"}, ("jinja", "step5", "step5")),
    "MiMo": (FUNCTIONS + THINK, {"model_type": "mimo_v2_flash"}, ("jinja", "mimo", "mimo")),
    "Nemotron 3": (FUNCTIONS + THINK, {"model_type": "nemotron_h"}, ("jinja", "qwen3_coder", "nemotron_v3")),
    "Qwen3-Coder": (FUNCTIONS, {"model_type": "qwen3_moe"}, ("jinja", "qwen3_coder", None)),
    "Qwen3.5": (FUNCTIONS + THINK, {"model_type": "qwen3_5"}, ("jinja", "qwen3_coder", "qwen3")),
    "MiniCPM 5": (sample("minicpm5"), {}, ("jinja", "minicpm5", None)),
    "Granite 3": (sample("granite"), {"model_type": "granite"}, ("jinja", "granite", None)),
    "Granite 3.2": (
        sample("granite") + "Here is my thought process:", {"model_type": "granite"}, ("jinja", "granite", "granite")
    ),
    "Granite 4": (HERMES, {"model_type": "granitemoehybrid"}, ("jinja", "granite4", None)),
    "ERNIE 4.5": (HERMES + THINK, {"model_type": "ernie4_5_moe"}, ("jinja", "ernie45", "ernie45")),
    "Hunyuan A13B": (sample("hunyuan_a13b") + THINK, {"model_type": "hunyuan_v1_moe"}, ("jinja", "hunyuan_a13b", "hunyuan_a13b")),
    "Jamba": (sample("jamba"), {"model_type": "jamba"}, ("jinja", "jamba", None)),
    "OLMo 3": (sample("olmo3") + THINK, {"model_type": "olmo3"}, ("jinja", "olmo3", "olmo3")),
    "Qwen2.5": (HERMES, {"model_type": "qwen2"}, ("jinja", "hermes", None)),
    "Qwen3": (HERMES + THINK + "{% if enable_thinking %}", {"model_type": "qwen3"}, ("jinja", "hermes", "qwen3")),
    "QwQ": (HERMES + r"'assistant\n<think>\n'", {"model_type": "qwen2"}, ("jinja", "hermes", "deepseek_r1")),
    "Llama 4": ("<|python_start|>", {"model_type": "llama4"}, ("jinja", "llama4_pythonic", None)),
    "Llama 3.1": (
        'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
        {"model_type": "llama"},
        ("jinja", "llama3_json", None),
    ),
    "a chat model without tools": ("<|im_start|>{{ m.role }}\n{{ m.content }}", {"model_type": "llama"}, ("jinja", None, None)),
    "a model's name alone": (None, {"model_type": "qwen3"}, ("jinja", None, None)),
    "nothing": (None, {}, ("jinja", None, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_a_family_is_found_in_a_minimal_folder(tmp_path: Path, name: str) -> None:
    template, config, expected = FOLDERS[name]
    assert names_of(write(tmp_path, template, **config)) == expected


def test_the_table_names_parsers_and_renderers_that_exist_and_every_row_is_found() -> None:
    for family in FAMILIES:
        assert family.tools in TOOL_PARSERS and family.renderer in RENDERERS
        assert family.reasoning is None or family.reasoning in REASONING
        assert family.markers or family.types or family.tokens
        assert not family.tokens or family.bare
    found = {expected for _, _, expected in FOLDERS.values()}
    unfound = {(family.renderer, family.tools) for family in FAMILIES} - {(name, tools) for name, tools, _ in found}
    # Rows for a community's template for a model that is published without one.
    assert unfound == {("jinja", "deepseek_v32"), ("jinja", "deepseek_v4")}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (sample("deepseek_v32") + "</think>", ("jinja", "deepseek_v32", "deepseek_v3")),
        (sample("deepseek_v4"), ("jinja", "deepseek_v4", None)),
    ],
)
def test_a_template_wins_over_a_model_whose_prompts_are_written_in_code(
    tmp_path: Path, template: str, expected: Names
) -> None:
    assert names_of(write(tmp_path, template, model_type="deepseek_v4")) == expected


def test_templates_are_found_wherever_tokenizers_keep_them(tmp_path: Path) -> None:
    expected = ("jinja", "hermes", None)
    assert names_of(write(tmp_path), HERMES) == expected, "the settings' file"
    for place, text in (
        ("tokenizer_config.json", json.dumps({"chat_template": HERMES})),
        ("tokenizer_config.json", json.dumps({"chat_template": [{"name": "tool_use", "template": HERMES}]})),
        ("chat_template.json", json.dumps({"chat_template": HERMES})),
        ("additional_chat_templates/tool_use.jinja", HERMES),
    ):
        folder = tmp_path / str(abs(hash(text)))
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
        assert names_of(folder) == expected, place


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "chat_template.json"])
@pytest.mark.parametrize(
    "text", ["[1]", "{", "\udcff", '{"architectures": 3, "model_type": ["a"], "chat_template": 5}']
)
def test_malformed_files_say_nothing(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    assert names_of(tmp_path) == ("jinja", None, None)


def test_a_response_template_is_what_is_left(tmp_path: Path) -> None:
    write(tmp_path, "{{ messages }}")
    template = {
        "start_anchor": "a",
        "fields": {"thinking": {"open": "<t>", "close": "</t>"}, "content": {"close": "<e>"}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"response_template": template}))
    assert names_of(tmp_path) == ("jinja", None, "hf")
    assert "no field tool_calls" in discover(tmp_path).tool_parser.why
    (tmp_path / "chat_template.jinja").write_text(HERMES)
    assert names_of(tmp_path) == ("jinja", "hermes", None), "a table knows more, such as how to force a call"


def test_mistral_s_own_tokenizers_are_rendered_by_its_library(tmp_path: Path) -> None:
    def folder(name: str, version: str = "v7") -> Path:
        path = tmp_path / name
        path.mkdir()
        write_tekken(path, version)
        return path

    plain = folder("plain")
    assert names_of(plain) == names_of(plain / "tekken.json") == ("mistral", "mistral", None)
    assert names_of(folder("thinking", "v13")) == ("mistral", "mistral", "mistral")
    both = write(folder("both"), "[INST]{{ m }}[TOOL_CALLS]")
    assert names_of(both) == ("jinja", "mistral", None), "somebody else's model, with its own template"
    (both / "consolidated-00001.safetensors").write_text("")
    assert names_of(both) == ("mistral", "mistral", None), "Mistral's own weights"
    assert names_of(both, HERMES) == ("jinja", "hermes", None), "the settings name a template"
    first = tmp_path / "tokenizer.model.v1"
    first.write_text("")
    assert names_of(first) == ("mistral", None, None), "v1 knows no tools"
    old = tmp_path / "old"
    old.mkdir()
    (old / "tokenizer.model").write_text("")
    assert names_of(old) == ("jinja", None, None), "anybody's SentencePiece"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, ("jinja", "hermes", "qwen3")),
        ({"tool_parser": "pythonic"}, ("jinja", "pythonic", "qwen3")),
        ({"reasoning_parser": "deepseek_r1"}, ("jinja", "hermes", "deepseek_r1")),
        ({"tool_parser": NONE}, ("jinja", None, "qwen3")),
        ({"reasoning_parser": NONE}, ("jinja", "hermes", None)),
        ({"tool_parser": NONE, "reasoning_parser": NONE}, ("jinja", None, None)),
        ({"renderer": "harmony"}, ("harmony", "hermes", "qwen3")),
        ({"tool_parser": "mine.py:T", "reasoning_parser": "a", "renderer": "b"}, ("b", "mine.py:T", "a")),
        ({"tool_parser": "hf"}, ("jinja", "hf", None)),
        ({"reasoning_parser": "hf"}, ("jinja", None, "hf")),
    ],
)
def test_the_settings_win(tmp_path: Path, named: dict[str, str], expected: Names) -> None:
    write(tmp_path, HERMES + THINK + "enable_thinking")
    settings, found = resolve(ModelSettings(name="m", tokenizer=str(tmp_path), **named), tmp_path)
    assert (settings.renderer, settings.tool_parser, settings.reasoning_parser) == expected
    for name in named:
        assert found.choices[name].why == "the settings name it"


def test_an_explicit_jinja_or_template_forces_chat_templates(tmp_path: Path) -> None:
    write(tmp_path, model_type="gpt_oss")
    model = ModelSettings(name="m", tokenizer=str(tmp_path))
    assert resolve(model, tmp_path)[0].renderer == "harmony"
    assert resolve(model.model_copy(update={"renderer": "jinja"}), tmp_path)[0].renderer == "jinja"
    assert resolve(model, tmp_path, "{{ messages }}")[0].renderer == "jinja"


# Where the parity tests serve a tokenizer with other parsers, it is in spite of its folder.
REAL: dict[str, Names] = {
    "deepseek-r1": ("jinja", "deepseek_v3", "deepseek_r1"),
    "deepseek-v3": ("jinja", "deepseek_v3", None),
    "deepseek-v3.1": ("jinja", "deepseek_v31", "deepseek_v3"),
    "deepseek-v3.2": ("deepseek_v32", "deepseek_v32", "deepseek_v3"),
    "deepseek-v4": ("deepseek_v4", "deepseek_v4", "deepseek_v4"),
    "gemma3": ("jinja", None, None),  # its template knows no tools
    "glm-4.5v": ("jinja", "glm45", "glm45"),
    "glm-4.7-flash": ("jinja", "glm47", "glm45"),
    "glm-5": ("jinja", "glm47", "glm45"),
    "glm-5.2": ("jinja", "glm47", "glm45"),
    "gpt-oss": ("harmony", "openai", "openai_gptoss"),
    "llama2": ("jinja", None, None),  # it has no template
    "llama3.1": ("jinja", None, None),  # the base model's template, which knows no tools
    "minimax": ("jinja", "minimax_m2", "minimax_m2"),
    "minimax-m3": ("jinja", "minimax_m3", "minimax_m3"),
    "qwen3": ("jinja", "hermes", "qwen3"),
    "qwen3.5": ("jinja", "qwen3_coder", "qwen3"),
    "r1-distill-llama": ("jinja", "deepseek_v3", "deepseek_r1"),  # its template writes DeepSeek's calls
    "mistral-common/tokenizer.model.v1": ("mistral", None, None),
    "mistral-common/mistral_instruct_tokenizer_240323.model.v3": ("mistral", "mistral", None),
    "mistral-common/mistral_instruct_tokenizer_241114.model.v7": ("mistral", "mistral", None),
    "mistral-common/tekken_240718.json": ("mistral", "mistral", None),
    "mistral-common/tekken_240911.json": ("mistral", "mistral", None),
}
PUBLISHED = {
    "deepseek-r1": "deepseek_v3",
    "deepseek-v3": "deepseek_v3",
    "deepseek-v3.1": "deepseek_v3",
    "deepseek-v3.2": "deepseek_v32",
    "deepseek-v4": "deepseek_v4",
    "gemma3": "gemma3",
    "glm-4.5v": "glm4v_moe",
    "glm-4.7-flash": "glm4_moe_lite",
    "glm-5": "glm_moe_dsa",
    "glm-5.2": "glm_moe_dsa",
    "gpt-oss": "gpt_oss",
    "llama2": "llama",
    "llama3.1": "llama",
    "minimax": "minimax_m2",
    "minimax-m3": "minimax_m3_vl",
    "qwen3": "qwen3",
    "qwen3.5": "qwen3_5",
    "r1-distill-llama": "llama",
}
"""The model type of the published config.json; the tokenizers lie beside one that names Qwen3."""


@pytest.mark.parametrize("published", [False, True], ids=["as it lies there", "as published"])
@pytest.mark.parametrize("name", REAL)
def test_a_real_folder_is_recognized(tmp_path: Path, name: str, published: bool) -> None:
    source = TOKENIZERS / name
    if not source.exists():
        pytest.skip("the tokenizer is not there")
    if published and name in PUBLISHED:
        for path in source.iterdir():
            if path.name != "config.json":
                (tmp_path / path.name).symlink_to(path)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": PUBLISHED[name]}))
        source = tmp_path
    assert names_of(source) == REAL[name]


def test_the_parity_tests_serve_what_is_found_but_for_known_reasons() -> None:
    differ = set()
    for model in MODELS:
        served = (model.renderer, model.tool_parser, model.reasoning_parser)
        there = model.version is None and model.tokenizer is None and model.folder.exists()
        if there and names_of(model.folder) != served:
            differ.add(model.name)
    assert differ <= {"gemma3", "llama2", "llama3.1", "r1-distill-llama"}
