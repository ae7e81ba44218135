"""What a model's folder says of its renderer and its parsers, for settings that name none.

    found = discover(Path("/models/Qwen3-8B"))
    found.tool_parser.name, found.tool_parser.why       # ("hermes", "the chat template has '<tool_call>'")

`FAMILIES` is the whole of it: what a family's chat template writes, or what its `config.json` is called. A model whose
folder says nothing sure gets no parser; the settings always win.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tasks.errors import TokenyardError
from tasks.protocol.base import JsonObject
from tasks.settings import ModelSettings
from workers import parsing
from workers.models.loading import find_mistral_file
from workers.parsing.registry import TEMPLATED

NONE = "none"
"""What settings say for no parser at all."""


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: its parsers' names, and all that must be true of a folder for it to be of the family."""

    tools: str | None
    reasoning: str | None = None
    markers: tuple[str, ...] = ()
    """What the chat template has, all of it."""
    types: tuple[str, ...] = ()
    """`model_type` or an architecture in config.json, any of them."""
    tokens: tuple[str, ...] = ()
    """What the tokenizer's vocabulary has, all of it."""
    thinks: str = ""
    """What the template of a model of the family has if that model reasons."""
    renderer: str = "jinja"
    bare: bool = False
    """Only for folders without a chat template."""


_QWEN3_CALL = ("<tool_call>", '"arguments"')
_FUNCTION = ("<function=", "<parameter=")

# Markers are those of the published templates and of the tables in workers/parsing/formats; types and the renderers
# that go with them are the reference's (vLLM 0.33: model_executor/models/registry.py, config/model.py).
FAMILIES: tuple[Family, ...] = (
    # Models whose prompts are written in code.
    Family("openai", "openai_gptoss", types=("gpt_oss", "GptOssForCausalLM"), renderer="harmony"),
    Family("openai", "openai_gptoss", markers=("<|channel|>analysis<|message|>", "<|call|>"), renderer="harmony"),
    Family(
        "deepseek_v4",
        "deepseek_v4",
        types=("deepseek_v4", "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"),
        renderer="deepseek_v4",
        bare=True,
    ),
    Family(
        "deepseek_v32",
        "deepseek_v3",
        types=("deepseek_v32", "DeepseekV32ForCausalLM"),
        renderer="deepseek_v32",
        bare=True,
    ),
    Family(
        "deepseek_v4",
        "deepseek_v4",
        tokens=("｜DSML｜", "<｜latest_reminder｜>"),
        renderer="deepseek_v4",
        bare=True,
    ),
    Family("deepseek_v32", "deepseek_v3", tokens=("｜DSML｜", "<｜User｜>"), renderer="deepseek_v32", bare=True),
    # Markers that one family alone has.
    Family("deepseek_v32", "deepseek_v3", markers=("｜DSML｜", "function_calls>"), thinks="</think>"),
    Family("deepseek_v4", "deepseek_v4", markers=("｜DSML｜", "tool_calls>"), thinks="</think>"),
    Family("deepseek_v3", "deepseek_r1", markers=("<｜tool▁calls▁begin｜>", "```json"), thinks="<think>"),
    Family("deepseek_v31", "deepseek_v3", markers=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"), thinks="</think>"),
    Family("minimax_m3", "minimax_m3", markers=("]<]minimax[>[", "<invoke"), thinks="<mm:think>"),
    Family("minimax_m2", "minimax_m2", markers=("<minimax:tool_call>", "<invoke"), thinks="<think>"),
    Family("kimi_k2", "kimi_k2", markers=("<|tool_calls_section_begin|>",), thinks="<think>"),
    Family("seed_oss", "seed_oss", markers=("<seed:tool_call>",), thinks="<seed:think>"),
    Family("longcat", markers=("<longcat_tool_call>",)),
    Family("step3", "step3", markers=("steptml:invoke",), thinks="<think>"),
    Family("dots", markers=("<dots_function_call>",)),
    Family("muse", "muse", markers=("<atem:function_calls>",)),
    Family("inkling", "inkling", markers=("<|content_invoke_tool_json|>",), thinks="<|content_thinking|>"),
    Family("plamo3", "plamo3", markers=("<|plamo:begin_tool_name:plamo|>",), thinks="<|plamo:begin_think:plamo|>"),
    Family("k2_horizon", "k2_horizon", markers=("<ifm|tool_call>",), thinks="<ifm|think>"),
    Family("cohere_command4", "cohere_command4", markers=("<|START_ACTION|>", "<|START_TEXT|>")),
    Family("cohere_command3", "cohere_command3", markers=("<|START_ACTION|>",), thinks="<|START_THINKING|>"),
    Family("apertus", markers=("<|tools_prefix|>",)),
    Family("functiongemma", markers=("<start_function_call>",)),
    Family("gemma4", "gemma4", markers=("<|tool_call>", "<tool_call|>"), thinks="<|channel>"),
    Family("lfm2", markers=("<|tool_call_start|>",)),
    Family("lfm2", markers=("<|tool_list_start|>",), types=("lfm2", "lfm2_moe", "Lfm2ForCausalLM")),
    Family("internlm", markers=("<|action_start|>", "<|plugin|>")),
    Family("gigachat3", markers=("<|function_call|>",)),
    Family("phi4_mini_json", markers=("functools[",)),
    Family("mistral", "mistral", markers=("[TOOL_CALLS]",), thinks="[THINK]"),
    # Calls with keys and values in elements.
    Family("hy_v4", "hy_v4", markers=("arg_key",), types=("hy_v4", "HYV4ForCausalLM"), thinks="think"),
    Family("hy_v3", "hy_v3", markers=("arg_key",), types=("hy_v3", "HYV3ForCausalLM"), thinks="think"),
    Family(
        "poolside_v1", "poolside_v1", markers=("<arg_key>",), types=("laguna", "LagunaForCausalLM"), thinks="</think>"
    ),
    Family("ling3", "ling3", markers=("<arg_key>",), types=("BailingMoeV3ForCausalLM",), thinks="</think>"),
    Family("glm47", "glm45", markers=("{function-name}<arg_key>",), thinks="</think>"),
    Family("glm45", "glm45", markers=("{function-name}", "<arg_key>"), thinks="</think>"),
    # Calls as functions with parameters.
    Family("step5", "step5", markers=_FUNCTION, types=("step5", "step5_vl", "Step5ForCausalLM"), thinks="<think>"),
    Family("step3p5", "step3p5", markers=_FUNCTION, types=("step3p5", "Step3p5ForCausalLM"), thinks="<think>"),
    Family(
        "mimo",
        "mimo",
        markers=_FUNCTION,
        types=("mimo", "mimo_v2", "mimo_v2_flash", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"),
        thinks="</think>",
    ),
    Family(
        "qwen3_coder", "nemotron_v3", markers=_FUNCTION, types=("nemotron_h", "NemotronHForCausalLM"), thinks="</think>"
    ),
    Family("qwen3_coder", "qwen3", markers=_FUNCTION, thinks="</think>"),
    Family("minicpm5", markers=('<function name="', "<param name=")),
    # Calls as JSON in an element, or in a list.
    Family("granite4", markers=("<tool_call>",), types=("granite", "granitemoe", "granitemoehybrid")),
    Family(
        "granite",
        "granite",
        markers=("<|tool_call|>",),
        types=("granite", "granitemoe", "granitemoehybrid"),
        thinks="Here is my thought process:",
    ),
    Family("ernie45", "ernie45", markers=("<tool_call>",), types=("ernie4_5", "ernie4_5_moe"), thinks="<think>"),
    Family(
        "hunyuan_a13b",
        "hunyuan_a13b",
        markers=("<tool_calls>",),
        types=("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"),
        thinks="<think>",
    ),
    Family("jamba", markers=("<tool_calls>",), types=("jamba", "JambaForCausalLM")),
    Family("olmo3", "olmo3", markers=("<function_calls>",), types=("olmo3", "Olmo3ForCausalLM"), thinks="<think>"),
    Family("hermes", "qwen3", markers=(*_QWEN3_CALL, "enable_thinking"), thinks="</think>"),
    # Qwen's models that always reason open it in the prompt.
    Family("hermes", "deepseek_r1", markers=_QWEN3_CALL, thinks=r"assistant\n<think>\n"),
    # Calls as bare JSON or Python, which only the template's words for the model tell.
    Family("llama4_pythonic", markers=("<|python_start|>",), types=("llama4", "Llama4ForConditionalGeneration")),
    Family("llama3_json", markers=('Respond in the format {"name": function name, "parameters": dictionary',)),
)
"""The first family of which all is true is the folder's."""

_MISTRAL_WEIGHTS = ("consolidated*.safetensors", "params.json")


@dataclass(frozen=True, slots=True)
class Choice:
    """A name, or None for nothing, and the reason in a line."""

    name: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a folder is for."""

    renderer: Choice
    tool_parser: Choice
    reasoning_parser: Choice

    @property
    def choices(self) -> dict[str, Choice]:
        """By the setting's name."""
        return {
            "renderer": self.renderer,
            "tool_parser": self.tool_parser,
            "reasoning_parser": self.reasoning_parser,
        }


@dataclass(frozen=True)
class ModelFiles:
    """A model's folder, or a tokenizer's file of Mistral's, as far as discovery reads it. What is malformed is absent."""

    source: Path
    chat_template: str | None = None
    """The settings' template, which replaces the folder's."""

    @cached_property
    def tokenizer_config(self) -> JsonObject:
        return _json(self.source / "tokenizer_config.json")

    @cached_property
    def templates(self) -> dict[str, str]:
        """The chat templates by name."""
        if self.chat_template is not None:
            return {"default": self.chat_template}
        given = self.tokenizer_config.get("chat_template") or _json(self.source / "chat_template.json").get(
            "chat_template"
        )
        found = {"default": given} if isinstance(given, str) else {}
        for named in given if isinstance(given, list) else ():
            if isinstance(named, dict) and isinstance(named.get("template"), str):
                found[str(named.get("name"))] = named["template"]
        for path in self.source.glob("additional_chat_templates/*.jinja"):
            found[path.stem] = _text(path)
        if own := _text(self.source / "chat_template.jinja"):
            found["default"] = own
        return found

    @cached_property
    def template(self) -> str:
        """All chat templates in one text."""
        return "\n".join(self.templates.values())

    @cached_property
    def types(self) -> dict[str, str]:
        """Model types and architectures, and what config.json calls each."""
        config = _json(self.source / "config.json")
        architectures = config.get("architectures")
        named = [(name, "architecture") for name in (architectures if isinstance(architectures, list) else ())]
        return {
            name: what for name, what in [*named, (config.get("model_type"), "model_type")] if isinstance(name, str)
        }

    @cached_property
    def vocabulary(self) -> str:
        """The tokenizer's file as text: only whole special tokens are looked for in it."""
        return _text(self.source / "tokenizer.json")

    @cached_property
    def mistral_file(self) -> Path | None:
        """The tokenizer of Mistral's own, if prompts are to be made with it."""
        try:
            path = find_mistral_file(self.source)
        except (TokenyardError, OSError):
            return None
        if self.source.is_file():
            return path
        # The reference takes it where the weights are Mistral's own as well; others may have changed the template.
        own = any(any(self.source.glob(name)) for name in _MISTRAL_WEIGHTS)
        return path if path.name != "tokenizer.model" and (own or not self.templates) else None


_NAMED = "the settings name it"
_TEMPLATED = Choice("jinja", "there is a chat template")
_NOTHING = Choice(None, "neither the chat template nor config.json is of a known family")
_SETTINGS_ALONE = Discovery(_NOTHING, _NOTHING, _NOTHING)


def discover(source: Path, chat_template: str | None = None) -> Discovery:
    """What a folder's config.json, tokenizer and chat template say; `chat_template`, if given, is used for all prompts."""
    files = ModelFiles(source, chat_template)
    if chat_template is not None:
        return replace(_discover(files), renderer=Choice("jinja", "the settings name a chat template"))
    return _discover(files) if files.mistral_file is None else _mistral(files.mistral_file)


def resolve(model: ModelSettings, source: Path, chat_template: str | None = None) -> tuple[ModelSettings, Discovery]:
    """The settings with the renderer and parsers that are used (None for no parser), and why.

    What the settings name is used, and what they leave out is found.
    """
    renderer, tools, reasoning = model.renderer, model.tool_parser, model.reasoning_parser
    found = _SETTINGS_ALONE
    if None in (renderer, tools, reasoning):
        found = discover(source, chat_template)
    # A tokenizer's response_template and a table cannot be combined: the one that is named stands alone.
    if tools is not None and reasoning is None:
        found = replace(found, reasoning_parser=_beside(tools, found.reasoning_parser))
    if reasoning is not None and tools is None:
        found = replace(found, tool_parser=_beside(reasoning, found.tool_parser))
    chosen = Discovery(
        found.renderer if renderer is None else Choice(renderer, _NAMED),
        found.tool_parser if tools is None else Choice(None if tools == NONE else tools, _NAMED),
        found.reasoning_parser if reasoning is None else Choice(None if reasoning == NONE else reasoning, _NAMED),
    )
    return model.model_copy(update={name: choice.name for name, choice in chosen.choices.items()}), chosen


def _discover(files: ModelFiles) -> Discovery:
    for family in FAMILIES:
        reasons = list(_reasons(family, files))
        if all(reasons):
            return _of_family(family, files, " and ".join(reasons))
    if not files.templates:
        return Discovery(Choice("jinja", "there is no chat template: plain completions alone"), _NOTHING, _NOTHING)
    return Discovery(
        _TEMPLATED, _from_response_template(files, "tool_parser"), _from_response_template(files, "reasoning_parser")
    )


def _beside(named: str, found: Choice) -> Choice:
    if named == NONE or found.name is None or (named in TEMPLATED) == (found.name in TEMPLATED):
        return found
    return Choice(None, f"{found.name} cannot be combined with {named}, which the settings name")


def _reasons(family: Family, files: ModelFiles) -> Iterator[str]:
    """A reason for each thing that must be true of the folder; an empty one for what is not."""
    if family.bare:
        yield "" if files.templates else "there is no chat template"
    if family.types:
        known = [name for name in family.types if name in files.types]
        yield f"config.json's {files.types[known[0]]} is {known[0]!r}" if known else ""
    if family.markers:
        yield f"the chat template has {family.markers[0]!r}" if _all_in(files.template, family.markers) else ""
    if family.tokens and not files.templates:
        yield f"the tokenizer has {family.tokens[0]!r}" if _all_in(files.vocabulary, family.tokens) else ""


def _all_in(text: str, parts: tuple[str, ...]) -> bool:
    return all(part in text for part in parts)


def _of_family(family: Family, files: ModelFiles, why: str) -> Discovery:
    reasoning = Choice(family.reasoning, why)
    if family.reasoning is None:
        reasoning = Choice(None, "models of this family do not reason")
    elif family.thinks not in files.template:
        reasoning = Choice(None, f"the chat template has no {family.thinks!r}")
    elif family.thinks:
        reasoning = Choice(family.reasoning, f"{why}, and the template has {family.thinks!r}")
    renderer = _TEMPLATED if family.renderer == "jinja" else Choice(family.renderer, why)
    return Discovery(renderer, Choice(family.tools, why), reasoning)


def _mistral(path: Path) -> Discovery:
    why = f"{path.name} is a tokenizer of Mistral's own"
    thinks = path.suffix == ".json" and "[THINK]" in _text(path)
    return Discovery(
        Choice("mistral", why),
        Choice(None, f"{path.name} knows no tools") if path.name.endswith(".v1") else Choice("mistral", why),
        Choice("mistral", f"{path.name} has '[THINK]'") if thinks else Choice(None, f"{path.name} has no '[THINK]'"),
    )


def _from_response_template(files: ModelFiles, which: str) -> Choice:
    """What a tokenizer's own description of answers is good for, in a folder of no known family."""
    template = files.tokenizer_config.get("response_template")
    if not isinstance(template, dict):
        return _NOTHING
    tools, reasoning = ("hf", None) if which == "tool_parser" else (None, "hf")
    try:
        parsing.load_format(tools, reasoning, template)
    except ValueError as error:
        return Choice(None, f"tokenizer_config.json's response_template makes none: {error}")
    return Choice("hf", "tokenizer_config.json has a response_template")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _json(path: Path) -> JsonObject:
    try:
        value = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
