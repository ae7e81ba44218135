"""The routes of the generate stage: token ids in; token ids, text, or a chat message out."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from api.auth import require_key
from api.bodies import read_json_object
from api.deps import process_of
from api.openapi import ERRORS, body_schema
from api.routes.openai import answer
from tasks.protocol.base import WireModel, read_wire
from tasks.protocol.vllm_generate import REQUEST_PREFIX, GenerateBody
from tasks.specs import ENDPOINTS

router = APIRouter(dependencies=[Depends(require_key)], prefix="/inference/v1", tags=["Stages"])

GENERATE = ENDPOINTS["/inference/v1/generate"]
EXAMPLE = {
    "model": "smollm2",
    "token_ids": [1, 4093, 198, 28120, 2, 198, 1, 520, 9531, 198],
    "sampling_params": {"temperature": 0, "max_tokens": 16},
    "output_mode": "text",
}


class AbortRequest(WireModel):
    """The requests to abort, by the ids that their clients gave them."""

    request_ids: list[str]


@router.post("/generate", responses=ERRORS, openapi_extra=body_schema(GenerateBody, EXAMPLE))
async def generate(request: Request) -> Response:
    """Generate from a rendered prompt, whole or streamed, like vLLM's own generate route.

    `output_mode` sets the form of the answer: `tokens`, `text`, or `derender` for a chat message.
    """
    return await answer(request, GENERATE)


@router.post(
    "/abort_requests",
    response_class=Response,
    responses=ERRORS,
    openapi_extra=body_schema(AbortRequest, {"request_ids": ["my-request-1"]}),
)
async def abort_requests(request: Request) -> Response:
    """Abort requests of the generate route, whichever process received them; unknown ids are ignored."""
    process = process_of(request)
    _, body = await read_json_object(request, process.settings.limits.max_body_bytes)
    wanted = read_wire(AbortRequest, body)
    request_ids = {name for given in wanted.request_ids for name in (given, given.removeprefix(REQUEST_PREFIX))}
    for request_id in request_ids:
        for job_id in await process.store.requested(request_id):
            await process.pipeline.cancel(job_id)
    return Response(status_code=200)
