"""OpenAI's older Completions: a request to its prompts."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from tasks.protocol.base import JsonObject, invalid_request_from
from tasks.protocol.conversation import Prompt, Tokenization
from tasks.protocol.openai_completions import CompletionRequest
from workers.surfaces.base import OPTION_FIELDS, SAMPLING_FIELDS


def read(body: JsonObject) -> CompletionRequest:
    """The body as a validated request; raises InvalidRequest naming the field."""
    try:
        return CompletionRequest.model_validate(body)
    except ValidationError as error:
        raise invalid_request_from(error) from error


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The request's prompts, one for each text or list of token ids, in order."""
    sent = request.model_dump(exclude_unset=True)
    shared: dict[str, Any] = {
        "response_format": request.response_format,
        "structured_outputs": request.structured_outputs,
        "sampling": _sampling(request, sent),
        # Echoing a prompt takes the engine a token, which the answer then leaves out.
        "max_output_tokens": 1 if request.echo and request.max_tokens == 0 else request.max_tokens,
        "tokenization": Tokenization(
            add_special_tokens=request.add_special_tokens,
            truncate_to=request.truncate_prompt_tokens,
            truncation_side=request.truncation_side,
            return_offsets=bool(request.return_token_offsets),
        ),
        "options": {name: sent[name] for name in OPTION_FIELDS if sent.get(name) is not None},
    }
    return [
        Prompt(text=prompt, **shared) if isinstance(prompt, str) else Prompt(token_ids=tuple(prompt), **shared)
        for prompt in _each(request.prompt)
    ]


def _each(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    return list(prompt or ())


def _sampling(request: CompletionRequest, sent: JsonObject) -> JsonObject:
    sampling = {name: sent[name] for name in SAMPLING_FIELDS if sent.get(name) not in (None, [])}
    if request.stops:
        sampling["stop"] = list(request.stops)
    if request.logprobs is not None and not request.logprob_token_ids:
        sampling["logprobs"] = request.logprobs
    if request.echo and request.prompt_logprobs is None and request.logprobs is not None:
        sampling["prompt_logprobs"] = request.logprobs
    if request.thinking_token_budget is not None and request.thinking_token_budget >= 0:
        sampling["thinking_token_budget"] = request.thinking_token_budget
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    return sampling
