"""Turns a checked request into a job submission: its stages, and the payloads that they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.errors import InvalidRequest
from tasks.pipeline import Submission
from tasks.protocol.base import INT64, JsonObject, compact_json
from tasks.protocol.tokens import pack_token_ids
from tasks.protocol.vllm_generate import GenerateBody
from tasks.settings import ModelSettings
from tasks.specs import GENERATE, Endpoint

OF_PROMPT = frozenset({"token_ids", "token_offsets", "features", "content_parts"})


def is_streamed(endpoint: Endpoint, request: Any) -> bool:
    """Return whether the answer is streamed; on routes that do not generate, `stream` means something else."""
    return GENERATE in endpoint.stages and bool(request.stream)


def submission_for(
    endpoint: Endpoint, model: ModelSettings, request: Any, raw: bytes, body: JsonObject, **fields: Any
) -> Submission:
    """Build the submission of a request.

    `raw` is the body as the client sent it, `body` the same parsed; `fields` are further fields of the submission.

    Raises:
        InvalidRequest: the prompt leaves no room for an answer, or a needed parse context is missing or wrong.
    """
    # An engine that ignores stop strings generates on until the derender stage, which reads along, ends its request.
    followed = GENERATE in endpoint.stages and not model.engine.stops_on_strings and bool(request.stops)
    stages, payloads = endpoint.stages, None
    if isinstance(request, GenerateBody):
        if request.output_mode == "tokens" and not followed:
            stages = (GENERATE,)
        _check_generate(model, request)
        payloads = _generate_payloads(model, request, body)
        fields = {"request_id": request.request_id, **fields}
    return Submission(
        endpoint=endpoint.path,
        model=model.name,
        body=raw,
        stream=is_streamed(endpoint, request),
        stages=stages,
        payloads=payloads,
        followed=followed,
        **fields,
    )


def check_candidates(model: ModelSettings, request: Any) -> None:
    """Check the number of candidates for log-probabilities, as the engine would.

    Raises:
        InvalidRequest: a request for more than `max_logprobs` of the model's settings.
    """
    if model.max_logprobs < 0:
        return
    for name, wanted in _candidates(request):
        if wanted is not None and (wanted > model.max_logprobs or wanted < 0):
            count = "all candidates" if wanted < 0 else f"{wanted} candidates"
            raise InvalidRequest(
                f"{name} asks for {count}; the model {model.name!r} gives at most {model.max_logprobs}", param=name
            )


def _candidates(request: Any) -> Iterator[tuple[str, int | None]]:
    if isinstance(request, GenerateBody):
        for name in ("logprobs", "prompt_logprobs"):
            yield f"sampling_params.{name}", request.sampling_params.get(name)  # type: ignore[misc]
        return
    yield "top_logprobs", getattr(request, "top_logprobs", None)
    yield "prompt_logprobs", getattr(request, "prompt_logprobs", None)


def _check_generate(model: ModelSettings, request: GenerateBody) -> None:
    if len(request.token_ids) >= model.max_model_len:
        raise InvalidRequest(
            f"token_ids has {len(request.token_ids)} tokens, which leaves no room for an answer in the model's context "
            f"of {model.max_model_len}: send at most {model.max_model_len - 1}",
            param="token_ids",
        )
    # Parsers that are found in the model's folder are a worker's to know, which asks for the context by itself.
    named = {model.tool_parser, model.reasoning_parser} - {None, "none"}
    if request.output_mode == "derender" and named:
        request.require_parse_context()


def _generate_payloads(model: ModelSettings, request: GenerateBody, body: JsonObject) -> dict[str, bytes]:
    """Return the payloads: the prompt, and the other fields as sent, so the engine applies its own defaults."""
    params = dict(request.sampling_params)
    if model.max_output_tokens is not None:
        params["max_tokens"] = min(request.sampling_params.get("max_tokens") or INT64, model.max_output_tokens)
    rest = {name: value for name, value in body.items() if name != "token_ids"} | {"sampling_params": params}
    context = {name: value for name, value in rest.items() if name not in OF_PROMPT}
    return {
        "prompt": pack_token_ids(request.token_ids),
        "generate": compact_json({**rest, "parse_context": None}),
        "context": compact_json(context),
    }
