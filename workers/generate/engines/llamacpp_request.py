"""A generate request as `llama-server` reads it: `POST /completion` with token ids.

    {"prompt": [1, 4093, 198], "n_predict": 16, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7,
     "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"], "stop": ["\\n\\n"], "n_probs": 5,
     "return_tokens": true, "cache_prompt": true, "stream": true}

The defaults are vLLM's (temperature 1, no top_k, top_p, min_p or penalties), whatever the server's own are. Known
differences: presence and frequency penalties also count the prompt's tokens; `ignore_eos` keeps end tokens from being
sampled instead of going on after them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.errors import InvalidRequest
from tasks.protocol.base import JsonObject
from tasks.protocol.tokens import GenerateRequest

SAMPLERS = ("penalties", "temperature", "min_p", "top_k", "top_p")
GREEDY_BELOW = 1e-5
LARGEST_PENALTY_WINDOW = 131_072
STRUCTURED_OUTPUTS = frozenset({"json", "json_object", "regex", "choice", "grammar"})

_MAPPED = frozenset(
    {"n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos"}
    | {"presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "structured_outputs"}
)
# These control how ids become text, or how the engine delivers them; the server does neither for us.
_WITHOUT_EFFECT = frozenset(
    {"detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"}
    | {"output_kind", "stream_interval", "flat_logprobs", "skip_clone", "skip_reading_prefix_cache", "extra_args"}
)
_NEUTRAL: Mapping[str, Any] = {"min_tokens": 0, "bad_words": [], "watermarking": False}


def map_request(request: GenerateRequest, index: int = 0) -> JsonObject:
    """The body for choice `index`.

    Raises:
        InvalidRequest: a parameter is wrong, or llama.cpp does not support it; `param` names it.
    """
    params = {name: value for name, value in request.sampling_params.items() if value is not None}
    _refuse_impossible(request, params)
    temperature = _number(params, "temperature", 1.0)
    greedy = temperature < GREEDY_BELOW
    body: JsonObject = {
        "prompt": request.token_ids,
        "n_predict": _max_tokens(params),
        "temperature": 0.0 if greedy else temperature,
        "top_p": 1.0 if greedy else _number(params, "top_p", 1.0),
        "top_k": 0 if greedy else max(0, int(_number(params, "top_k", 0))),
        "min_p": 0.0 if greedy else _number(params, "min_p", 0.0),
        "samplers": list(SAMPLERS),
        "return_tokens": True,
        # All requests share the cache, and timing would reveal a salted prompt in it.
        "cache_prompt": request.cache_salt is None,
        "stream": True,
        **_penalties(params, len(request.token_ids)),
    }
    seed = params.get("seed")
    if seed is not None:
        body["seed"] = (int(_number(params, "seed", 0)) + index) & 0xFFFF_FFFF
    if params.get("stop"):
        body["stop"] = [params["stop"]] if isinstance(params["stop"], str) else list(params["stop"])
    if params.get("ignore_eos"):
        body["ignore_eos"] = True
    if params.get("logit_bias"):
        body["logit_bias"] = [[int(token), float(bias)] for token, bias in params["logit_bias"].items()]
    logprobs = requested_logprobs(request)
    if logprobs is not None:
        body["n_probs"] = max(1, logprobs)
    if params.get("structured_outputs"):
        body |= _constraint(request, params["structured_outputs"])
    return body


def requested_logprobs(request: GenerateRequest) -> int | None:
    """How many candidates the request wants for each token; None for no log-probabilities."""
    count = request.sampling_params.get("logprobs")
    if count is None:
        return None
    if not isinstance(count, int) or count < 0:
        raise InvalidRequest(
            "logprobs must be 0 or more: this engine cannot send the log-probabilities of all tokens", param="logprobs"
        )
    return count


def _refuse_impossible(request: GenerateRequest, params: Mapping[str, Any]) -> None:
    for name in ("features", "content_parts", "kv_transfer_params", "ec_transfer_params"):
        if getattr(request, name):
            raise InvalidRequest(f"this model's engine does not support {name}: leave it out", param=name)
    for name, value in params.items():
        if name in _MAPPED or name in _WITHOUT_EFFECT or (name in _NEUTRAL and value in (_NEUTRAL[name], None)):
            continue
        raise InvalidRequest(f"this model's engine does not support {name}", param=name)


def _number(params: Mapping[str, Any], name: str, default: float) -> float:
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number", param=name)
    return value


def _max_tokens(params: Mapping[str, Any]) -> int:
    """`max_tokens`; if it is not set, -1, which means until the context is full."""
    value = params.get("max_tokens", -1)
    if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and "max_tokens" in params):
        raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    return value


def _penalties(params: Mapping[str, Any], prompt_length: int) -> JsonObject:
    body: JsonObject = {
        "repeat_penalty": _number(params, "repetition_penalty", 1.0),
        "presence_penalty": _number(params, "presence_penalty", 0.0),
        "frequency_penalty": _number(params, "frequency_penalty", 0.0),
    }
    if tuple(body.values()) != (1.0, 0.0, 0.0):
        body["repeat_last_n"] = min(LARGEST_PENALTY_WINDOW, prompt_length + max(8192, _max_tokens(params)))
    return body


def _constraint(request: GenerateRequest, outputs: Any) -> JsonObject:
    if not isinstance(outputs, dict):
        raise InvalidRequest("structured_outputs must be an object", param="structured_outputs")
    given = {name: value for name, value in outputs.items() if value not in (None, False)}
    kinds = given.keys() & (STRUCTURED_OUTPUTS | {"structural_tag"})
    if not kinds:
        return {}
    if len(kinds) > 1:
        raise InvalidRequest(
            f"structured_outputs takes one constraint; this one has {', '.join(sorted(kinds))}",
            param="structured_outputs",
        )
    if request.reasoning_ended is False:
        raise InvalidRequest(
            "this model's engine cannot constrain an answer that begins with reasoning: turn reasoning off, or leave "
            "structured_outputs out",
            param="structured_outputs",
        )
    kind = kinds.pop()
    value = given[kind]
    if kind == "json":
        return {"json_schema": _schema(value)}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "grammar" and isinstance(value, str):
        return {"grammar": value}
    if kind == "choice" and isinstance(value, list):
        return {"grammar": "root ::= " + " | ".join(json.dumps(str(choice), ensure_ascii=False) for choice in value)}
    if kind == "regex" and isinstance(value, str):
        return {"grammar": f"%llguidance {{}}\nstart: /{_lark_pattern(value)}/"}
    raise InvalidRequest(
        f"this model's engine does not support structured_outputs.{kind}", param=f"structured_outputs.{kind}"
    )


def _schema(value: Any) -> JsonObject:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidRequest(
                f"structured_outputs.json is not JSON: {error}", param="structured_outputs.json"
            ) from error
    if not isinstance(value, dict):
        raise InvalidRequest(
            "structured_outputs.json must be a JSON schema, which is an object", param="structured_outputs.json"
        )
    return value


def _lark_pattern(pattern: str) -> str:
    """The pattern escaped for Lark's slashes, and without anchors: it matches the whole answer anyway."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1]
    out: list[str] = []
    escaped = False
    for character in pattern:
        out.append("\\/" if character == "/" and not escaped else character)
        escaped = character == "\\" and not escaped
    return "".join(out)
