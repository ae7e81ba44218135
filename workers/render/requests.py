"""The fields of a request for an engine besides its prompt: sampling parameters with all defaults, parse context.

resolve_request(conversation, rendered, facts, reasoning_ended=False)
{"sampling_params": {"temperature": 1.0, "top_p": 0.95, "max_tokens": 2031, ...}, "stream": true,
 "reasoning_ended": false, "reasoning_parser_kwargs": {...}, "parse_context": {...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation, JsonObject, Prompt, count_tool_calls
from workers.render.grammar.constraints import (
    Forced,
    check_choice,
    check_constraint,
    format_constraint,
    resolve_constraint,
)
from workers.render.grammar.families import keeps_special_tokens, speaks_harmony
from workers.renderers.base import RenderedPrompt, check_room, template_arguments
from workers.renderers.tools import template_tools

_NEUTRAL: dict[str, float] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
"""Sampling parameters that a generation config may set, with their values if neither it nor the request sets them."""

_COLDEST = 0.01
"""Lower temperatures above 0 overflow, so they are raised to this, as vLLM does."""
_GREEDY = 1e-5
_MAX_BIAS = 100.0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The settings of a model that its requests depend on.

    `generation_defaults` are the generation config's sampling parameters. `forced` is how a family without
    structural tags writes a forced call, `suffix` what the checkpoint appends to the names of its markers.
    """

    max_model_len: int
    max_output_tokens: int | None = None
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    default_template_arguments: Mapping[str, Any] = field(default_factory=dict)
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    forced: Forced = "native"
    suffix: str = ""


def resolve_request(
    conversation: Conversation, rendered: RenderedPrompt, facts: EngineFacts, *, reasoning_ended: bool | None = None
) -> JsonObject:
    """All fields of a GenerateRequest except its token ids, request id and model; raises InvalidRequest.

    `reasoning_ended` says whether the prompt itself closed the reasoning; None if the model has none.
    """
    check_choice(conversation, tool_parser=facts.tool_parser)
    harmony = speaks_harmony(tool_parser=facts.tool_parser, reasoning_parser=facts.reasoning_parser)
    constraint = resolve_constraint(
        conversation, tool_parser=facts.tool_parser, forced=facts.forced, harmony=harmony, suffix=facts.suffix
    )
    kept = keeps_special_tokens(conversation, tool_parser=facts.tool_parser, reasoning_parser=facts.reasoning_parser)
    arguments = template_arguments(conversation, facts.default_template_arguments)
    out: JsonObject = {
        "sampling_params": _sampling(conversation, rendered, facts, constraint, keep_special_tokens=kept),
        **conversation.options,
        "parse_context": {
            "tools": None if conversation.tools is None else template_tools(conversation.tools),
            "tool_choice": conversation.tool_choice,
            "parallel_tool_calls": conversation.parallel_tool_calls,
            "include_reasoning": conversation.include_reasoning,
            "chat_template_kwargs": {} if harmony else arguments,
            "history_tool_call_cnt": count_tool_calls(conversation),
        },
    }
    if not conversation.include_reasoning:
        out["reasoning_ended"] = True
    elif facts.reasoning_parser is not None and reasoning_ended is not None:
        out["reasoning_ended"] = reasoning_ended
    if facts.reasoning_parser is not None:
        out["reasoning_parser_kwargs"] = {"chat_template_kwargs": arguments}
    return _with_prompt(out, rendered)


def resolve_completion(prompt: Prompt, rendered: RenderedPrompt, facts: EngineFacts) -> JsonObject:
    """`resolve_request` for a plain completion, whose output is not parsed."""
    constraint = format_constraint(prompt)
    sampling = _sampling(prompt, rendered, facts, constraint, keep_special_tokens=False)
    return _with_prompt({"sampling_params": sampling, **prompt.options}, rendered)


def _with_prompt(out: JsonObject, rendered: RenderedPrompt) -> JsonObject:
    if rendered.offsets is not None:
        out["token_offsets"] = [list(span) for span in rendered.offsets]
    if rendered.content_parts:
        out["content_parts"] = list(rendered.content_parts)
    return out


def _sampling(
    request: Conversation | Prompt,
    rendered: RenderedPrompt,
    facts: EngineFacts,
    constraint: JsonObject | None,
    *,
    keep_special_tokens: bool,
) -> JsonObject:
    sent = {name: value for name, value in request.sampling.items() if value is not None}
    defaults = facts.generation_defaults
    out: JsonObject = {name: sent.pop(name, defaults.get(name, neutral)) for name, neutral in _NEUTRAL.items()}
    out = {name: value if name == "top_k" else float(value) for name, value in out.items()}
    out |= sent
    _settle_temperature(out)
    _settle_lists(out, defaults)
    if out.get("seed") == -1:
        del out["seed"]
    if "logit_bias" in out:
        out["logit_bias"] = _logit_bias(out["logit_bias"])
    if keep_special_tokens:
        out["skip_special_tokens"] = False
    elif "skip_special_tokens" not in out and "skip_special_tokens" in defaults:
        out["skip_special_tokens"] = defaults["skip_special_tokens"]
    if constraint is not None:
        check_constraint(constraint)
        out["structured_outputs"] = constraint
    room = check_room(len(rendered.token_ids), facts.max_model_len)
    wanted = request.max_output_tokens if request.max_output_tokens is not None else defaults.get("max_tokens")
    out["max_tokens"] = min(most for most in (room, wanted, facts.max_output_tokens) if most is not None)
    if out.get("min_tokens", 0) > out["max_tokens"]:
        raise InvalidRequest(
            f"min_tokens is {out['min_tokens']}, but the output has at most {out['max_tokens']} tokens: lower it",
            param="min_tokens",
        )
    return out


def _settle_temperature(out: JsonObject) -> None:
    if 0 < out["temperature"] < _COLDEST:
        out["temperature"] = _COLDEST
    if out["temperature"] < _GREEDY:
        if out.get("n", 1) > 1:
            raise InvalidRequest(
                f"n is {out['n']}, but at temperature 0 all choices would be the same: set n to 1", param="n"
            )
        out |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    if out["top_k"] == 0:
        del out["top_k"]


def _settle_lists(out: JsonObject, defaults: Mapping[str, Any]) -> None:
    if isinstance(out.get("stop"), str):
        out["stop"] = [out["stop"]]
    stop_ids = [*out.get("stop_token_ids", ()), *defaults.get("stop_token_ids", ())]
    out["stop_token_ids"] = list(dict.fromkeys(stop_ids))
    if "bad_words" in out:
        out["bad_words"] = list(dict.fromkeys(out["bad_words"]))
    for name in ("stop", "stop_token_ids", "bad_words"):
        if not out.get(name):
            out.pop(name, None)


def _logit_bias(biases: Mapping[Any, float]) -> dict[str, float]:
    try:
        return {str(int(token)): min(_MAX_BIAS, max(-_MAX_BIAS, bias)) for token, bias in biases.items()}
    except ValueError:
        raise InvalidRequest("the keys of logit_bias must be token ids", param="logit_bias") from None
