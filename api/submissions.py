"""A checked request as a job: the stages that it goes through, and what they read."""

from __future__ import annotations

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
    """Whether the answer comes in chunks; where nothing is generated, `stream` says something else."""
    return GENERATE in endpoint.stages and bool(request.stream)


def submission_for(
    endpoint: Endpoint, model: ModelSettings, request: Any, raw: bytes, body: JsonObject, **how: Any
) -> Submission:
    """The job of a request, which came as `raw`, JSON of `body`; `how` are further fields of its submission.

    Raises InvalidRequest for prompts and answers that the model does not have.
    """
    # An engine that cannot stop at a text goes on until somebody who reads along ends its request.
    watched = GENERATE in endpoint.stages and not model.engine.stops_on_strings and bool(request.stops)
    stages, payloads = endpoint.stages, None
    if isinstance(request, GenerateBody):
        if request.output_mode == "tokens" and not watched:
            stages = (GENERATE,)
        _check_generate(model, request)
        payloads = _generate_payloads(model, request, body)
        how = {"request_id": request.request_id, **how}
    return Submission(
        endpoint=endpoint.path,
        model=model.name,
        body=raw,
        stream=is_streamed(endpoint, request),
        stages=stages,
        payloads=payloads,
        followed=watched,
        **how,
    )


def _check_generate(model: ModelSettings, request: GenerateBody) -> None:
    if len(request.token_ids) >= model.max_model_len:
        raise InvalidRequest(
            f"token_ids has {len(request.token_ids)} tokens, which leaves no room for an answer in the model's context "
            f"of {model.max_model_len}",
            param="token_ids",
        )
    if request.output_mode == "derender" and (model.tool_parser or model.reasoning_parser):
        request.require_parse_context()


def _generate_payloads(model: ModelSettings, request: GenerateBody, body: JsonObject) -> dict[str, bytes]:
    """The prompt, and the rest just as it was sent: what is missing is the engine's to choose."""
    params = dict(request.sampling_params)
    if model.max_output_tokens is not None:
        params["max_tokens"] = min(request.sampling_params.get("max_tokens") or INT64, model.max_output_tokens)
    rest = {name: value for name, value in body.items() if name != "token_ids"} | {"sampling_params": params}
    about = {name: value for name, value in rest.items() if name not in OF_PROMPT}
    return {
        "prompt": pack_token_ids(request.token_ids),
        "generate": compact_json({**rest, "parse_context": None}),
        "context": compact_json(about),
    }
