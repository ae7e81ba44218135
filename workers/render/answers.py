"""Answers of the routes that end with the render stage: the render routes, `/tokenize` and `/detokenize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks.protocol.base import JsonObject, read_wire
from tasks.protocol.conversation import Conversation, Prompt, Tokenization
from tasks.protocol.vllm_tokenize import DetokenizeRequest, TokenizeRequest
from workers.models.catalog import ModelProfile
from workers.render.prompts import generate_request, prepare

Answer = Callable[[ModelProfile, JsonObject, str], Any]


def _rendered(surface: str, prefix: str) -> Answer:
    def answer(profile: ModelProfile, body: JsonObject, job_id: str) -> JsonObject:
        prepared = prepare(profile, surface, body)
        (prompt,) = prepared.prompts
        request_id = getattr(prepared.request, "request_id", None)
        return generate_request(profile, prompt, f"{prefix}{request_id or job_id.removeprefix('job_')}")

    return answer


def _rendered_completion(profile: ModelProfile, body: JsonObject, job_id: str) -> list[JsonObject]:
    prepared = prepare(profile, "openai_completions", body)
    base = f"cmpl-{prepared.request.request_id or job_id.removeprefix('job_')}"
    several = len(prepared.prompts) > 1
    return [
        generate_request(profile, prompt, f"{base}-{i}" if several else base)
        for i, prompt in enumerate(prepared.prompts)
    ]


def _tokenized(profile: ModelProfile, body: JsonObject, _: str) -> JsonObject:
    request = read_wire(TokenizeRequest, body)
    if request.prompt is not None:
        special = request.add_special_tokens is not False
        prompt = Prompt(text=request.prompt, tokenization=Tokenization(add_special_tokens=special))
        token_ids = profile.renderer.render_prompt(prompt).token_ids
    else:
        token_ids = profile.renderer.render(
            Conversation(
                messages=tuple(request.messages or ()),
                tools=None if request.tools is None else tuple(request.tools),
                template=request.chat_template,
                template_arguments=request.chat_template_kwargs or {},
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                tokenization=Tokenization(add_special_tokens=bool(request.add_special_tokens)),
            )
        ).token_ids
    strings = [profile.tokenizer.token_of(i) for i in token_ids] if request.return_token_strs else None
    return {
        "count": len(token_ids),
        "max_model_len": profile.max_model_len,
        "tokens": list(token_ids),
        "token_strs": strings,
    }


def _detokenized(profile: ModelProfile, body: JsonObject, _: str) -> JsonObject:
    request = read_wire(DetokenizeRequest, body)
    return {"prompt": profile.tokenizer.decode(request.tokens)}


RENDER_ANSWERS: dict[str, Answer] = {
    "openai_chat": _rendered("openai_chat", "chatcmpl-"),
    "openai_completions": _rendered_completion,
    "openai_responses": _rendered("openai_responses", "resp_"),
    "anthropic": _rendered("anthropic", "chatcmpl-"),
    "tokenize": _tokenized,
    "detokenize": _detokenized,
}
