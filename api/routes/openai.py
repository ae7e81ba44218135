"""OpenAI's routes, chat completions and models; and `answer`, which runs the request of any endpoint."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from api.auth import require_key
from api.bodies import read_json_object
from api.deps import Process, process_of
from api.openapi import ERRORS, LOOKUP_ERRORS, body_schema
from api.relay import SILENCE_S, Subscription, await_answer, relay_chunks
from api.submissions import check_candidates, submission_for
from tasks.errors import Cancelled, InvalidRequest, ModelNotFound, error_from_json
from tasks.ids import new_id
from tasks.ledger.store import Entry
from tasks.pipeline import Submission
from tasks.protocol.anthropic import MessagesRequest
from tasks.protocol.base import JsonObject, WireModel, read_wire
from tasks.protocol.openai_chat import ChatCompletionRequest
from tasks.protocol.openai_completions import CompletionRequest
from tasks.protocol.openai_models import list_models
from tasks.protocol.openai_responses import ResponsesRequest
from tasks.protocol.vllm_derender import (
    ChatDerenderRequest,
    CompletionDerenderRequest,
    DerenderRequest,
    MessagesDerenderRequest,
    ResponsesDerenderRequest,
)
from tasks.protocol.vllm_generate import GenerateBody
from tasks.protocol.vllm_tokenize import DetokenizeRequest, TokenizeRequest
from tasks.settings import ModelSettings
from tasks.specs import ENDPOINTS, GENERATE, Endpoint

router = APIRouter(dependencies=[Depends(require_key)], tags=["OpenAI"])

CHAT = ENDPOINTS["/v1/chat/completions"]
CHAT_EXAMPLE = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Name three animals."}],
    "temperature": 0,
    "max_tokens": 32,
}
REQUESTS: dict[str, type[WireModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/chat/completions/render": ChatCompletionRequest,
    "/v1/chat/completions/derender": ChatDerenderRequest,
    "/v1/completions/render": CompletionRequest,
    "/v1/completions/derender": CompletionDerenderRequest,
    "/v1/responses/render": ResponsesRequest,
    "/v1/responses/derender": ResponsesDerenderRequest,
    "/v1/messages/render": MessagesRequest,
    "/v1/messages/derender": MessagesDerenderRequest,
    "/inference/v1/generate": GenerateBody,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
"""The model of each route's body; it checks everything that needs no tokenizer."""


def check(process: Process, endpoint: Endpoint, body: dict[str, Any]) -> tuple[ModelSettings, Any]:
    """Check everything that needs no tokenizer, and return the request's model settings and the parsed request.

    Raises:
        InvalidRequest: a field is wrong, or there are more choices than `limits.max_choices`.
        ModelNotFound: no served model has this name.
    """
    wire = REQUESTS[endpoint.path]
    model = process.admission.model(_model_name(wire, body))
    request: Any = read_wire(wire, body)
    most = process.settings.limits.max_choices
    if (getattr(request, "n", None) or 1) > most:
        raise InvalidRequest(f"n must be at most {most}", param="n")
    if GENERATE in endpoint.stages:
        check_candidates(model, request)
    if isinstance(request, DerenderRequest) and sum(len(response.choices) for response in request.responses) > most:
        raise InvalidRequest(f"The answers to derender may have at most {most} choices together", param="choices")
    return model, request


def _model_name(wire: type[WireModel], body: JsonObject) -> Any:
    """The model's name in a body; a derender body may name it in the request, or the state, that it carries."""
    name = body.get("model")
    if name is not None or not issubclass(wire, DerenderRequest):
        return name
    state = body.get("stream_state")
    context = state.get("context") if isinstance(state, dict) else None
    carriers = (body.get(wire.request_field), context)
    return next((carrier["model"] for carrier in carriers if isinstance(carrier, dict) and carrier.get("model")), None)


async def answer(request: Request, endpoint: Endpoint) -> Response:
    """Run a request through the stages of its endpoint, and return the answer in its surface's form."""
    process = process_of(request)
    raw, body = await read_json_object(request, process.settings.limits.max_body_bytes)
    if GENERATE in endpoint.stages and (request_id := request.headers.get("x-request-id")):
        body["request_id"] = request_id
    model, parsed = check(process, endpoint, body)
    submission = submission_for(endpoint, model, parsed, raw, body, listener=process.hub.name, job_id=new_id("job_"))
    return await run(request, submission)


async def run(request: Request, submission: Submission) -> Response:
    """Submit a job and return its answer, whole or streamed; cancel it if the client disconnects."""
    process = process_of(request)
    await process.admission.require_workers(submission.stages, submission.model, "interactive")
    subscription = process.hub.subscribe(submission.job_id)
    try:
        await process.pipeline.submit(submission)
        if not submission.stream:
            whole = await await_answer(request, subscription, process.pipeline)
            return Response(whole, media_type="application/json")
        first = await _first_events(request, subscription)
    except BaseException:
        subscription.close()
        raise
    if first[0].data[:1] == b"e":
        subscription.close()
        raise error_from_json(json.loads(first[0].data[1:]))
    chunks = relay_chunks(subscription, first, process.pipeline, process.settings.api.heartbeat_s)
    return StreamingResponse(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _first_events(request: Request, subscription: Subscription) -> list[Entry]:
    """Wait for the first events of a streamed answer: an early error can still set the HTTP status."""
    while not (events := await subscription.next(SILENCE_S)):
        if await request.is_disconnected():
            await process_of(request).pipeline.cancel(subscription.job_id)
            raise Cancelled()
    return events


@router.post(CHAT.path, responses=ERRORS, openapi_extra=body_schema(ChatCompletionRequest, CHAT_EXAMPLE))
async def create_chat_completion(request: Request) -> Response:
    """Create a chat completion, whole or as a stream of chunks."""
    return await answer(request, CHAT)


@router.get("/v1/models", responses={401: ERRORS[401]})
async def get_models(request: Request) -> Any:
    """List the served models."""
    process = process_of(request)
    return JSONResponse(list_models(process.settings.models, process.started_at).model_dump(mode="json"))


@router.get("/v1/models/{name:path}", responses=LOOKUP_ERRORS)
async def get_model(name: str, request: Request) -> Any:
    """Return one served model, by name or alias."""
    process = process_of(request)
    wanted = process.admission.model(name)
    for card in list_models((wanted,), process.started_at).data:
        if card.id == name:
            return JSONResponse(card.model_dump(mode="json"))
    raise ModelNotFound(param="model")
