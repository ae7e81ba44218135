"""The routes of single stages: render and derender, like those of `vllm launch render`, tokenize and detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from api.auth import require_key
from api.openapi import ERRORS, body_schema
from api.routes.openai import CHAT_EXAMPLE, REQUESTS, answer
from tasks.specs import ENDPOINTS

router = APIRouter(dependencies=[Depends(require_key)], tags=["Stages"])

_TEXT = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 16}
_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/chat/completions/render": ("Render a chat to the GenerateRequest for its generate stage.", CHAT_EXAMPLE),
    "/v1/completions/render": ("Render a completion to a list of GenerateRequests, one for each prompt.", _TEXT),
    "/v1/responses/render": (
        "Render a Responses request, with its history inline, to a GenerateRequest.",
        {"model": "smollm2", "input": "Name three animals.", "max_output_tokens": 32},
    ),
    "/v1/messages/render": (
        "Render an Anthropic Messages request to a GenerateRequest.",
        {"model": "smollm2", "max_tokens": 32, "messages": [{"role": "user", "content": "Name three animals."}]},
    ),
    "/v1/chat/completions/derender": (
        "Derender an engine's answer to a chat completion, or one event of its stream to the next chunk.",
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
        "Derender engine answers, one for each prompt, to a completion, or one event of a stream to the next chunk.",
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
        "Derender an engine's answer to a response, or one event of its stream to the response's next events.",
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
        "Derender an engine's answer to an Anthropic message, or one event of its stream to the message's next events.",
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
    "/tokenize": ("Convert text or a chat to token ids.", {"model": "smollm2", "prompt": "Once upon a time"}),
    "/detokenize": ("Convert token ids to text.", {"model": "smollm2", "tokens": [504, 2365]}),
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
