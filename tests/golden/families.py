"""How each family writes a call and its reasoning, after its own chat template and documentation.

Each writer takes calls as (name, arguments) and gives the text that the model's template writes for them. Nothing here
knows of the parser: `python -m tests.golden` writes the recorded cases from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Call = tuple[str, dict[str, Any]]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    """A value as tag-based templates write it: strings raw, anything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


@dataclass(frozen=True)
class Tools:
    """write: calls → text. inner: marker text that a string argument may hold. malformed: text that is no call.

    before, after: whether the language has a place for text there.
    """

    write: Callable[[list[Call]], str]
    inner: str
    malformed: str
    origin: str
    before: bool = True
    after: bool = True
    ids: Callable[[int, str], str] | None = None


def _each(opens: str, closes: str, between: str = "\n", key: str = "arguments") -> Callable[[list[Call]], str]:
    def write(calls: list[Call]) -> str:
        return between.join(f"{opens}{dumps({'name': name, key: args})}{closes}" for name, args in calls)

    return write


def _list(opens: str, closes: str, key: str = "arguments") -> Callable[[list[Call]], str]:
    return lambda calls: opens + dumps([{"name": name, key: args} for name, args in calls]) + closes


def _functions(opens: str, closes: str, frame: str = "\n") -> Callable[[list[Call]], str]:
    def one(name: str, args: dict[str, Any]) -> str:
        parameters = "".join(f"<parameter={k}>{frame}{plain(v)}{frame}</parameter>\n" for k, v in args.items())
        return f"{opens}\n<function={name}>\n{parameters}</function>\n{closes}"

    return lambda calls: "\n".join(one(*call) for call in calls)


def _arg_keys(
    tag: str = "{}", section: str = "", separator: str = "", break_: str = "\n"
) -> Callable[[list[Call]], str]:
    def el(name: str, close: bool = False) -> str:
        return f"<{'/' if close else ''}{tag.format(name)}>"

    def one(name: str, args: dict[str, Any]) -> str:
        pairs = "".join(
            f"{el('arg_key')}{k}{el('arg_key', True)}{break_}{el('arg_value')}{plain(v)}{el('arg_value', True)}{break_}"
            for k, v in args.items()
        )
        return f"{el('tool_call')}{name}{el(separator) if separator else ''}{break_}{pairs}{el('tool_call', True)}"

    def write(calls: list[Call]) -> str:
        frame = break_ if section else "\n"
        body = frame.join(one(*call) for call in calls)
        return f"{el(section)}{frame}{body}{frame}{el(section, True)}" if section else body

    return write


def _invokes(opens: str, closes: str, prefix: str = "", typed: bool = False) -> Callable[[list[Call]], str]:
    def one(name: str, args: dict[str, Any]) -> str:
        lines = []
        for key, value in args.items():
            kind = f' string="{"true" if isinstance(value, str) else "false"}"' if typed else ""
            lines.append(f'<{prefix}parameter name="{key}"{kind}>{plain(value)}</{prefix}parameter>\n')
        return f'<{prefix}invoke name="{name}">\n{"".join(lines)}</{prefix}invoke>\n'

    return lambda calls: f"{opens}\n{''.join(one(*call) for call in calls)}{closes}"


def _python(calls: list[Call]) -> str:
    return ", ".join(f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())})" for name, args in calls)


def _deepseek_v3(calls: list[Call]) -> str:
    one = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
    body = "\n".join(one.format(name, dumps(args)) for name, args in calls)
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def _deepseek_v31(calls: list[Call]) -> str:
    body = "".join(f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>" for n, a in calls)
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def _kimi_k2(calls: list[Call]) -> str:
    body = "".join(
        f"<|tool_call_begin|>functions.{n}:{at}<|tool_call_argument_begin|>{dumps(a)}<|tool_call_end|>"
        for at, (n, a) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def _kimi_k3(calls: list[Call]) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
    out = []
    for at, (name, args) in enumerate(calls, 1):
        body = "".join(
            f'<|open|>argument key="{k}" type="{kinds.get(type(v), "null")}"<|sep|>{plain(v)}<|close|>argument<|sep|>'
            for k, v in args.items()
        )
        out.append(f'<|open|>call tool="{name}" index="{at}"<|sep|>{body}<|close|>call<|sep|>')
    return f"<|open|>tools<|sep|>{''.join(out)}<|close|>tools<|sep|>"


def _plamo3(calls: list[Call]) -> str:
    def mark(text: str) -> str:
        return f"<|plamo:{text}:plamo|>"

    body = "".join(
        mark("begin_tool_request") + mark("begin_tool_name") + name + mark("end_tool_name")
        + mark("begin_tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>" + dumps(args)
        + mark("end_tool_arguments") + mark("end_tool_request")
        for name, args in calls
    )  # fmt: skip
    return mark("begin_tool_requests") + body + mark("end_tool_requests")


def _gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_gemma(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(v, quote) for v in value) + "]"
    return dumps(value)


def _gemma_calls(opens: str, closes: str, quote: str) -> Callable[[list[Call]], str]:
    return lambda calls: "".join(f"{opens}call:{name}{_gemma(args, quote)}{closes}" for name, args in calls)


def _step3(calls: list[Call]) -> str:
    body = ""
    for name, args in calls:
        parameters = "".join(f'<steptml:parameter name="{k}">{plain(v)}</steptml:parameter>\n' for k, v in args.items())
        body += (
            f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n'
            f"{parameters}</steptml:invoke><｜tool_call_end｜>\n"
        )
    return f"<｜tool_calls_begin｜>\n{body}<｜tool_calls_end｜>"


def _minicpm5(calls: list[Call]) -> str:
    def one(name: str, args: dict[str, Any]) -> str:
        params = "".join(
            f'<param name="{k}"><![CDATA[{v}]]></param>'
            if isinstance(v, str) and ("<" in v or "\n" in v)
            else f'<param name="{k}">{plain(v)}</param>'
            for k, v in args.items()
        )
        return f'<function name="{name}">{params}</function>'

    return "\n".join(one(*call) for call in calls)


_NS = "]<]minimax[>["


def _element(key: str, value: Any) -> str:
    if isinstance(value, dict):
        body = "".join(_element(k, v) for k, v in value.items())
    elif isinstance(value, list):
        body = "".join(_element("item", v) for v in value)
    else:
        body = plain(value)
    return f"{_NS}<{key}>{body}{_NS}</{key}>"


def _minimax_m3(calls: list[Call]) -> str:
    body = "".join(
        f'{_NS}<invoke name="{name}">\n{"".join(_element(k, v) + chr(10) for k, v in args.items())}{_NS}</invoke>\n'
        for name, args in calls
    )
    return f"{_NS}<tool_call>\n{body}{_NS}</tool_call>"


def _cohere(calls: list[Call]) -> str:
    rows = [{"tool_call_id": str(at), "tool_name": n, "parameters": a} for at, (n, a) in enumerate(calls)]
    return "<|START_ACTION|>[\n    " + ",\n    ".join(map(dumps, rows)) + "\n]<|END_ACTION|>"


def _harmony(calls: list[Call]) -> str:
    one = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
    return "<|start|>assistant".join(one.format(name, dumps(args)) for name, args in calls)


def _muse(calls: list[Call]) -> str:
    body = _invokes("<atem:function_calls>", "</atem:function_calls>", "atem:")
    return "".join(f"<|start|>assistant to={call[0]}<|message|>\n{body([call])}<|eom|>" for call in calls)


def _inkling(calls: list[Call]) -> str:
    return "".join(
        f"<|message_model|><|content_invoke_tool_json|>{dumps({'name': n, 'args': a})}<|end_message|>" for n, a in calls
    )


_DSML = "｜DSML｜"

TOOLS: dict[str, Tools] = {
    "apertus": Tools(
        lambda calls: f"<|tools_prefix|>{dumps([{n: a} for n, a in calls])}<|tools_suffix|>",
        "<|tools_suffix|>", "<|tools_prefix|>get_weather<|tools_suffix|>", "Apertus chat template",
    ),
    "cohere_command3": Tools(_cohere, "<|END_ACTION|>", '<|START_ACTION|>["x"]<|END_ACTION|>', "Command A template",
                             ids=lambda at, name: str(at)),
    "cohere_command4": Tools(_cohere, "<|END_ACTION|>", '<|START_ACTION|>["x"]<|END_ACTION|>', "Command template",
                             ids=lambda at, name: str(at)),
    "deepseek_v3": Tools(_deepseek_v3, "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "DeepSeek-V3 template"),
    "deepseek_v31": Tools(_deepseek_v31, "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "DeepSeek-V3.1 template"),
    "deepseek_v32": Tools(_invokes(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _DSML, True),
                          f"</{_DSML}function_calls>", f'<{_DSML}invoke name="">', "DeepSeek-V3.2 encoding"),
    "deepseek_v4": Tools(_invokes(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", _DSML, True),
                         f"</{_DSML}tool_calls>", f'<{_DSML}invoke name="">', "DeepSeek-V4 encoding"),
    "deepseek_v41": Tools(_invokes(f"<{_DSML} calls>", f"</{_DSML} calls>", f"{_DSML} ", True),
                          f"</{_DSML} calls>", f'<{_DSML} invoke name="">', "DeepSeek-V4.1 encoding"),
    "dots": Tools(_invokes("<dots_function_call>", "</dots_function_call>"), "</dots_function_call>",
                  '<invoke name="">', "dots template"),
    "ernie45": Tools(_each("<tool_call>\n", "\n</tool_call>"), "</tool_call>", "<tool_call>\nno JSON\n</tool_call>",
                     "ERNIE-4.5 template"),
    "functiongemma": Tools(_gemma_calls("<start_function_call>", "<end_function_call>", "<escape>"),
                           "<end_function_call>", "<start_function_call>get_weather<end_function_call>",
                           "FunctionGemma documentation"),
    "gemma4": Tools(_gemma_calls("<|tool_call>", "<tool_call|>", '<|"|>'), "<tool_call|>",
                    "<|tool_call>get_weather<tool_call|>", "Gemma 4 documentation"),
    "gigachat3": Tools(_each("<|function_call|>", "", ""), "<|function_call|>", "<|function_call|>no JSON",
                       "GigaChat 3 template"),
    "glm45": Tools(_arg_keys(), "</tool_call>", "<tool_call></tool_call>", "GLM-4.5 template"),
    "glm47": Tools(_arg_keys(break_=""), "</tool_call>", "<tool_call></tool_call>", "GLM-4.7 template"),
    "granite": Tools(_list("<|tool_call|>", ""), "<|tool_call|>", "<|tool_call|>no JSON", "Granite 3 template"),
    "granite-20b-fc": Tools(_each("<function_call> ", ""), "<function_call>", "<function_call> no JSON",
                            "granite-20b-functioncalling card"),
    "granite4": Tools(_each("<tool_call>\n", "\n</tool_call>"), "</tool_call>", "<tool_call>\nno JSON\n</tool_call>",
                      "Granite 4 template"),
    "hermes": Tools(_each("<tool_call>\n", "\n</tool_call>"), "</tool_call>", "<tool_call>\nno JSON\n</tool_call>",
                    "Qwen2.5 and Qwen3 template"),
    "hunyuan_a13b": Tools(_list("<tool_calls>", "</tool_calls>"), "</tool_calls>", "<tool_calls>no JSON</tool_calls>",
                          "Hunyuan-A13B template"),
    "hy_v3": Tools(_arg_keys(section="tool_calls", separator="tool_sep"), "</tool_call>", "<tool_call></tool_call>",
                   "Hunyuan 3 template"),
    "hy_v4": Tools(_arg_keys(section="tool_calls", break_=""), "</tool_call>", "<tool_call></tool_call>", "Hunyuan 4 template"),
    "inkling": Tools(_inkling, "<|end_message|>", "", "Inkling documentation", before=False),
    "internlm": Tools(_each("<|action_start|><|plugin|>\n", "<|action_end|>", key="parameters"), "<|action_end|>",
                      "<|action_start|><|plugin|>\nno JSON<|action_end|>", "InternLM2 documentation"),
    "jamba": Tools(_list("<tool_calls>", "</tool_calls>"), "</tool_calls>", "<tool_calls>no JSON</tool_calls>",
                   "Jamba 1.5 template"),
    "k2_horizon": Tools(_arg_keys("ifm|{}", section="tool_calls"), "</ifm|tool_call>",
                        "<ifm|tool_call></ifm|tool_call>", "K2 Horizon template"),
    "kimi_k2": Tools(_kimi_k2, "<|tool_call_end|>", "", "Kimi-K2 tool-call guidance",
                     ids=lambda at, name: f"functions.{name}:{at}"),
    "kimi_k3": Tools(_kimi_k3, "<|close|>call<|sep|>", "", "Kimi-K3 encoding"),
    "lfm2": Tools(lambda calls: f"<|tool_call_start|>[{_python(calls)}]<|tool_call_end|>", "<|tool_call_end|>",
                  "<|tool_call_start|>no calls<|tool_call_end|>", "LFM2 documentation"),
    "ling3": Tools(_arg_keys(), "</tool_call>", "<tool_call></tool_call>", "Ling 3 template"),
    "llama3_json": Tools(lambda calls: "; ".join(dumps({"name": n, "parameters": a}) for n, a in calls),
                         "<|python_tag|>", '{"name": "get_weather", "parameters": }', "Llama 3.1 template", before=False),
    "llama4_json": Tools(lambda calls: "; ".join(dumps({"name": n, "parameters": a}) for n, a in calls),
                         "<|python_tag|>", '{"name": "get_weather", "parameters": }', "Llama 4 template", before=False),
    "llama4_pythonic": Tools(lambda calls: f"<|python_start|>[{_python(calls)}]<|python_end|>", "<|python_end|>",
                             "[get_weather(city=)]", "Llama 4 template"),
    "longcat": Tools(_each("<longcat_tool_call>\n", "\n</longcat_tool_call>"), "</longcat_tool_call>",
                     "<longcat_tool_call>\nno JSON\n</longcat_tool_call>", "LongCat-Flash template"),
    "mimo": Tools(_functions("<tool_call>", "</tool_call>", ""), "</tool_call>", "<tool_call>\nno call</tool_call>",
                  "MiMo template"),
    "minicpm5": Tools(_minicpm5, "</function>", '<function name="">', "MiniCPM 5 template"),
    "minimax_m2": Tools(_invokes("<minimax:tool_call>", "</minimax:tool_call>"), "</minimax:tool_call>",
                        '<invoke name="">', "MiniMax-M2 tool-calling guide"),
    "minimax_m3": Tools(_minimax_m3, "</invoke>", "", "MiniMax-M3 template"),
    "mistral": Tools(_list("[TOOL_CALLS]", ""), "[TOOL_CALLS]", "[TOOL_CALLS] no call", "Mistral v3 tokenizer guide"),
    "muse": Tools(_muse, "</atem:function_calls>", "", "Muse response schema", before=False, after=False),
    "muse_glimmer": Tools(_muse, "</atem:function_calls>", "", "Muse response schema", before=False, after=False),
    "musespark1x": Tools(_muse, "</atem:function_calls>", "", "Muse response schema", before=False, after=False),
    "olmo3": Tools(
        lambda calls: "<function_calls>" + "\n".join(_python([call]) for call in calls) + "</function_calls>",
        "</function_calls>", "<function_calls>no calls</function_calls>", "OLMo 3 template",
    ),
    "openai": Tools(_harmony, "<|call|>", "", "harmony format guide", before=False, after=False),
    "phi4_mini_json": Tools(_list("functools", ""), "functools[", "functools no JSON", "Phi-4-mini template"),
    "plamo3": Tools(_plamo3, "<|plamo:end_tool_request:plamo|>", "", "PLaMo 3 template"),
    "poolside_v1": Tools(_arg_keys(), "</tool_call>", "<tool_call></tool_call>", "Laguna template"),
    "pythonic": Tools(lambda calls: f"[{_python(calls)}]", "[ping()]", "[get_weather(city=)]", "Llama 3.2 guide",
                      before=False),
    "qwen3_coder": Tools(_functions("<tool_call>", "</tool_call>"), "</tool_call>",
                         "<tool_call>\nno call\n</tool_call>", "Qwen3-Coder template"),
    "qwen3_json": Tools(_each("<tool_call>\n", "\n</tool_call>"), "</tool_call>",
                        "<tool_call>\nno JSON\n</tool_call>", "Qwen3 template"),
    "qwen3_xml": Tools(_functions("<tool_call>", "</tool_call>"), "</tool_call>",
                       "<tool_call>\nno call\n</tool_call>", "Qwen3-Coder template"),
    "seed_oss": Tools(_functions("<seed:tool_call>", "</seed:tool_call>", ""), "</seed:tool_call>",
                      "<seed:tool_call>\nno call</seed:tool_call>", "Seed-OSS template"),
    "step3": Tools(_step3, "<｜tool_call_end｜>", "", "Step 3 template"),
    "step3p5": Tools(_functions("<tool_call>", "</tool_call>"), "</tool_call>", "<tool_call>\nno call\n</tool_call>",
                     "Step 3.5 template"),
    "step5": Tools(_functions("<tool_call>", "</tool_call>"), "</tool_call>", "<tool_call>\nno call\n</tool_call>",
                   "Step 5 template"),
    "xlam": Tools(_list("", ""), "</tool_call>", '[{"name": "get_weather"', "xLAM documentation", before=False),
}  # fmt: skip


@dataclass(frozen=True)
class Reasoning:
    """write: (reasoning, answer) → output as the model writes it after its usual prompt. arguments: template arguments
    with which it reasons; off: those with which it does not."""

    opens: str
    closes: str
    origin: str
    prefilled: bool = True
    answer: tuple[str, str] = ("", "")
    arguments: tuple[tuple[str, Any], ...] = ()
    off: tuple[tuple[str, Any], ...] | None = None
    trims: bool = False


_THINK = ("<think>", "</think>")
_OFF = (("enable_thinking", False),)

REASONING: dict[str, Reasoning] = {
    "cohere_command3": Reasoning("<|START_THINKING|>", "<|END_THINKING|>", "Command A template", False,
                                 ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    "cohere_command4": Reasoning("<|START_THINKING|>", "<|END_THINKING|>", "Command template", False,
                                 ("<|START_TEXT|>", "<|END_TEXT|>")),
    "deepseek_r1": Reasoning(*_THINK, "DeepSeek-R1 template"),
    "deepseek_v3": Reasoning(*_THINK, "DeepSeek-V3.1 template", arguments=(("thinking", True),), off=()),
    "deepseek_v4": Reasoning(*_THINK, "DeepSeek-V4 encoding", off=(("thinking", False),), trims=True),
    "deepseek_v41": Reasoning(*_THINK, "DeepSeek-V4.1 encoding", off=(("thinking", False),), trims=True),
    "ernie45": Reasoning(*_THINK, "ERNIE-4.5 template", answer=("\n\n<response>\n", "\n</response>\n")),
    "gemma4": Reasoning("<|channel>thought\n", "<channel|>", "Gemma 4 documentation", False, trims=True),
    "glm45": Reasoning(*_THINK, "GLM-4.5 template", off=_OFF, trims=True),
    "glm47": Reasoning(*_THINK, "GLM-4.7 template", off=_OFF, trims=True),
    "granite": Reasoning("Here is my thought process:", "Here is my response:", "Granite 3.2 card", False),
    "granite_thinking_parser": Reasoning(*_THINK, "Granite 4.2 template", off=_OFF, trims=True),
    "holo2": Reasoning(*_THINK, "Holo2 template", off=(("thinking", False),)),
    "hunyuan_a13b": Reasoning("<think>\n", "\n</think>\n<answer>\n", "Hunyuan-A13B template", False, ("", "\n</answer>")),
    "hy_v3": Reasoning(*_THINK, "Hunyuan 3 template", arguments=(("reasoning_effort", "high"),), off=()),
    "hy_v4": Reasoning(*_THINK, "Hunyuan 4 template", off=(("reasoning_effort", "no_think"),)),
    "identity": Reasoning("", "", "no reasoning", False),
    "inkling": Reasoning("<|content_thinking|>", "<|end_message|>", "Inkling documentation", False,
                         ("<|message_model|><|content_text|>", "<|end_message|>"), trims=True),
    "k2_horizon": Reasoning("<ifm|think>", "</ifm|think>", "K2 Horizon template", False),
    "kimi_k2": Reasoning(*_THINK, "Kimi-K2-Thinking template", off=(("thinking", False),), trims=True),
    "kimi_k3": Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>", "Kimi-K3 encoding",
                         answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>"), off=(("thinking", False),)),
    "ling3": Reasoning(*_THINK, "Ling 3 template", off=_OFF, trims=True),
    "mimo": Reasoning(*_THINK, "MiMo template", off=_OFF),
    "minicpmv": Reasoning(*_THINK, "MiniCPM-V template", off=_OFF),
    "minimax_m2": Reasoning(*_THINK, "MiniMax-M2 template", trims=True),
    "minimax_m2_append_think": Reasoning("", "", "MiniMax-M2 template", False),
    "minimax_m3": Reasoning("<mm:think>", "</mm:think>", "MiniMax-M3 template", False),
    "mistral": Reasoning("[THINK]", "[/THINK]", "Magistral template", False, trims=True),
    "muse": Reasoning(" to=self<|message|>", "<|eom|>", "Muse response schema", False,
                      ("<|start|>assistant to=user<|message|>", "<|eot|>")),
    "muse_glimmer": Reasoning(" to=self<|message|>", "<|eom|>", "Muse response schema", False,
                              ("<|start|>assistant to=user<|message|>", "<|eot|>")),
    "musespark1x": Reasoning(" to=self<|message|>", "<|eom|>", "Muse response schema", False,
                             ("<|start|>assistant to=user<|message|>", "<|eot|>")),
    "nemotron_v3": Reasoning(*_THINK, "Nemotron 3 template", off=_OFF, trims=True),
    "olmo3": Reasoning(*_THINK, "OLMo 3 template"),
    "openai_gptoss": Reasoning("<|channel|>analysis<|message|>", "<|end|>", "harmony format guide", False,
                               ("<|start|>assistant<|channel|>final<|message|>", "<|return|>")),
    "plamo3": Reasoning("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>", "PLaMo 3 template", off=_OFF,
                        trims=True),
    "poolside_v1": Reasoning(*_THINK, "Laguna template", arguments=(("enable_thinking", True),), off=()),
    "qwen3": Reasoning(*_THINK, "Qwen3 template", off=_OFF),
    "seed_oss": Reasoning("<seed:think>", "</seed:think>", "Seed-OSS template", off=_OFF),
    "step3": Reasoning(*_THINK, "Step 3 template"),
    "step3p5": Reasoning(*_THINK, "Step 3.5 template", trims=True),
    "step5": Reasoning(*_THINK, "Step 5 template"),
}  # fmt: skip
