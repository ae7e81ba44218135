"""Maps format names, those of vLLM's `--tool-call-parser` and `--reasoning-parser`, to tables."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from workers.parsing.formats.response_template import format_from_template
from workers.parsing.spec import Format, compose

_FORMATS = "workers.parsing.formats."

TOOLS: dict[str, str] = {
    "apertus": "apertus:APERTUS",
    "cohere_command3": "cohere:TOOLS",
    "cohere_command4": "cohere:TOOLS",
    "deepseek_v3": "named_json:DEEPSEEK_V3",
    "deepseek_v31": "named_json:DEEPSEEK_V31",
    "deepseek_v32": "invokes:DEEPSEEK_V32",
    "deepseek_v4": "invokes:DEEPSEEK_V4",
    "deepseek_v41": "invokes:DEEPSEEK_V41",
    "dots": "invokes:DOTS",
    "ernie45": "json_calls:ERNIE45",
    "functiongemma": "gemma:FUNCTIONGEMMA",
    "gemma4": "gemma:GEMMA4",
    "gigachat3": "json_calls:GIGACHAT3",
    "glm45": "arg_keys:GLM45",
    "glm47": "arg_keys:GLM45",
    "granite": "json_calls:GRANITE",
    "granite-20b-fc": "json_calls:GRANITE_20B_FC",
    "granite4": "json_calls:GRANITE4",
    "hermes": "hermes:HERMES",
    "hunyuan_a13b": "json_calls:HUNYUAN_A13B",
    "hy_v3": "arg_keys:HY_V3",
    "hy_v4": "arg_keys:HY_V4",
    "inkling": "inkling:INKLING",
    "internlm": "json_calls:INTERNLM",
    "jamba": "json_calls:JAMBA",
    "k2_horizon": "arg_keys:K2_HORIZON",
    "kimi_k2": "named_json:KIMI_K2",
    "kimi_k3": "kimi_k3:TOOLS",
    "lfm2": "bare:LFM2",
    "ling3": "arg_keys:LING3",
    "llama3_json": "bare:LLAMA_JSON",
    "llama4_json": "bare:LLAMA_JSON",
    "llama4_pythonic": "bare:LLAMA4_PYTHONIC",
    "longcat": "json_calls:LONGCAT",
    "mimo": "xml_functions:MIMO",
    "minicpm5": "minicpm:MINICPM5",
    "minimax_m2": "invokes:MINIMAX_M2",
    "minimax_m3": "minimax_m3:MINIMAX_M3",
    "mistral": "mistral:TOOLS",
    "muse": "muse:MUSE",
    "muse_glimmer": "muse:MUSE",
    "musespark1x": "muse:MUSE",
    "olmo3": "bare:OLMO3",
    "openai": "harmony:HARMONY",
    "phi4_mini_json": "json_calls:PHI4_MINI_JSON",
    "plamo3": "named_json:PLAMO3",
    "poolside_v1": "arg_keys:POOLSIDE_V1",
    "pythonic": "bare:PYTHONIC",
    "qwen3_coder": "xml_functions:QWEN3_CODER",
    "qwen3_json": "hermes:HERMES",
    "qwen3_xml": "xml_functions:QWEN3_CODER",
    "seed_oss": "xml_functions:SEED_OSS",
    "step3": "step3:STEP3",
    "step3p5": "xml_functions:STEP3P5",
    "step5": "xml_functions:STEP3P5",
    "xlam": "bare:XLAM",
}

REASONING: dict[str, str] = {
    "cohere_command3": "cohere:THINKING",
    "cohere_command4": "cohere:THINKING",
    "deepseek_r1": "think:DEEPSEEK_R1",
    "deepseek_v3": "think:DEEPSEEK_V3",
    "deepseek_v4": "think:DEEPSEEK_V4",
    "deepseek_v41": "think:DEEPSEEK_V41",
    "ernie45": "think:ERNIE45",
    "gemma4": "gemma:GEMMA4_THINKING",
    "glm45": "think:GLM45",
    "glm47": "think:GLM45",
    "granite": "think:GRANITE",
    "granite_thinking_parser": "think:GRANITE_THINKING",
    "holo2": "think:HOLO2",
    "hunyuan_a13b": "think:HUNYUAN_A13B",
    "hy_v3": "think:HY_V3",
    "hy_v4": "think:HY_V4",
    "identity": "plain:PLAIN",
    "inkling": "inkling:INKLING",
    "k2_horizon": "think:K2_HORIZON",
    "kimi_k2": "think:KIMI_K2",
    "kimi_k3": "kimi_k3:THINKING",
    "ling3": "think:LING3",
    "mimo": "think:MIMO",
    "minicpmv": "think:MINICPMV",
    "minimax_m2": "think:MINIMAX_M2",
    "minimax_m2_append_think": "think:MINIMAX_M2_APPEND_THINK",
    "minimax_m3": "think:MINIMAX_M3",
    "mistral": "mistral:THINKING",
    "muse": "muse:MUSE",
    "muse_glimmer": "muse:MUSE",
    "musespark1x": "muse:MUSE",
    "nemotron_v3": "think:NEMOTRON_V3",
    "olmo3": "think:OLMO3",
    "openai_gptoss": "harmony:HARMONY",
    "plamo3": "think:PLAMO3",
    "poolside_v1": "think:POOLSIDE_V1",
    "qwen3": "think:QWEN3",
    "seed_oss": "think:SEED_OSS",
    "step3": "think:STEP3",
    "step3p5": "think:STEP3P5",
    "step5": "think:DEEPSEEK_R1",
}


GROUP = "tokenyard.formats"
"""The entry-point group for formats of other packages (name = "module:ATTRIBUTE"), both for tools and for reasoning."""


TEMPLATED = ("hf", "beam")
"""Names of formats that come from the tokenizer's own files."""


def load_format(
    tool_parser: str | None, reasoning_parser: str | None, response_template: Mapping[str, Any] | None = None
) -> Format:
    """Load the format for a tool parser's name and a reasoning parser's name; either may be None.

    A name is a key of `TOOLS` or `REASONING`, an entry point of the group `tokenyard.formats`, or a Python file and an
    attribute in it, such as `formats/mine.py:MINE`. The names `hf` and `beam` select `response_template`, a field of
    the tokenizer's configuration.

    Raises:
        ValueError: an unknown name (the message lists the known ones), a missing file or attribute, or a table that
            cannot work (the message says why).
    """
    if tool_parser in TEMPLATED or reasoning_parser in TEMPLATED:
        return _templated(tool_parser, reasoning_parser, response_template)
    return _composed(tool_parser, reasoning_parser)


def _templated(
    tool_parser: str | None, reasoning_parser: str | None, response_template: Mapping[str, Any] | None
) -> Format:
    if response_template is None:
        name = tool_parser if tool_parser in TEMPLATED else reasoning_parser
        raise ValueError(
            f"The parser {name!r} needs a tokenizer with a response_template in its configuration; "
            "name another parser, or add the template."
        )
    if {tool_parser, reasoning_parser} - {None, *TEMPLATED}:
        raise ValueError(
            f"The tool parser {tool_parser!r} and the reasoning parser {reasoning_parser!r} cannot be combined; "
            f"use {' or '.join(TEMPLATED)} for both or for neither."
        )
    tools, reasoning = tool_parser is not None, reasoning_parser is not None
    return format_from_template(response_template, tools=tools, reasoning=reasoning)


@cache
def _composed(tool_parser: str | None, reasoning_parser: str | None) -> Format:
    tools = _load(TOOLS, tool_parser, "tool parser") if tool_parser else None
    reasoning = _load(REASONING, reasoning_parser, "reasoning parser") if reasoning_parser else None
    return compose(tools, reasoning)


def _load(names: dict[str, str], name: str, what: str) -> Format:
    path, colon, attribute = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _checked(_attribute(_from_path(Path(path)), attribute, name), name)
    if name in names:
        module, attribute = names[name].split(":")
        return _checked(_attribute(import_module(_FORMATS + module), attribute, name), name)
    elsewhere = entry_points(group=GROUP)
    if name in elsewhere.names:
        return _checked(elsewhere[name].load(), name)
    known = sorted({*names, *elsewhere.names})
    meant = get_close_matches(name, known, n=1)
    hint = f"; did you mean {meant[0]!r}? Otherwise" if meant else ""
    raise ValueError(
        f"There is no {what} {name!r}{hint or ';'} use one of {', '.join(known)}, or a file as PATH.py:NAME."
    )


def _from_path(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"tokenyard_format_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"There is no format file {str(path)!r}; check the path.")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, attribute: str, name: str) -> object:
    if not hasattr(module, attribute):
        raise ValueError(f"The format {name!r} does not exist: its file defines no {attribute!r}.")
    return getattr(module, attribute)


def _checked(table: object, name: str) -> Format:
    if not isinstance(table, Format):
        kind = type(table).__name__
        raise ValueError(f"{name!r} is not a format: it must be a Format, not {kind}.")  # noqa: TRY004
    return table
