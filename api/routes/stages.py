"""A stage asked for on its own: render and derender routes, as `vllm launch render` has them, and the tokenizer's two."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from api.auth import require_key
from api.openapi import body_schema
from api.routes.openai import CHAT_EXAMPLE, ERRORS, REQUESTS, answer
from tasks.specs import ENDPOINTS

router = APIRouter(dependencies=[Depends(require_key)], tags=["Stages"])

_TEXT = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 16}
_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/chat/completions/render": ("A chat as the GenerateRequest that its generate stage would get.", CHAT_EXAMPLE),
    "/v1/completions/render": ("A completion as a list of GenerateRequests, one for each prompt.", _TEXT),
    "/v1/responses/render": (
        "A response's request, with its history inline, as a GenerateRequest.",
        {"model": "smollm2", "input": "Name three animals.", "max_output_tokens": 32},
    ),
    "/v1/messages/render": (
        "An Anthropic message's request as a GenerateRequest.",
        {"model": "smollm2", "max_tokens": 32, "messages": [{"role": "user", "content": "Name three animals."}]},
    ),
    "/v1/chat/completions/derender": (
        "An engine's answer, or one event of its stream, as a chat completion, or as its next chunk.",
        {
            "model": "smollm2",
            "generate_response": {
                "request_id": "generate-tokens-chatcmpl-1",
                "choices": [{"index": 0, "token_ids": [19556, 28], "finish_reason": "length"}],
            },
            "prompt_tokens": 12,
        },
    ),
    "/v1/completions/derender": (
        "Engines' answers, one for each prompt, as a completion, or an event of a stream as its next chunk.",
        {
            "model": "smollm2",
            "stream": True,
            "generate_chunk": {
                "request_id": "generate-tokens-cmpl-1",
                "choices": [{"index": 0, "token_ids": [19556, 28]}],
            },
        },
    ),
    "/v1/responses/derender": (
        "An engine's answer as a response, or one event of its stream as the response's next events.",
        {
            "model": "smollm2",
            "generate_response": {
                "request_id": "generate-tokens-resp_1",
                "choices": [{"index": 0, "token_ids": [19556, 28], "finish_reason": "length"}],
            },
            "responses_request": {"input": "Hi"},
        },
    ),
    "/v1/messages/derender": (
        "An engine's answer as an Anthropic message, or one event of its stream as the message's next events.",
        {
            "model": "smollm2",
            "generate_response": {
                "request_id": "generate-tokens-chatcmpl-1",
                "choices": [{"index": 0, "token_ids": [19556, 28], "finish_reason": "length"}],
            },
            "messages_request": {
                "model": "smollm2",
                "max_tokens": 2,
                "messages": [{"role": "user", "content": "Hi"}],
            },
        },
    ),
    "/tokenize": ("A text, or a chat, as token ids.", {"model": "smollm2", "prompt": "Once upon a time"}),
    "/detokenize": ("Token ids as text.", {"model": "smollm2", "tokens": [504, 2365]}),
}


def _add(path: str, summary: str, example: dict[str, Any]) -> None:
    endpoint = ENDPOINTS[path]

    async def handle(request: Request) -> Response:
        return await answer(request, endpoint)

    router.post(
        path,
        name=path.strip("/").replace("/", "_"),
        description=summary,
        responses=ERRORS,
        openapi_extra=body_schema(REQUESTS[endpoint.path], example),
    )(handle)


for _path, (_summary, _example) in _ROUTES.items():
    _add(_path, _summary, _example)
