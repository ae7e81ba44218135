"""Requests as durable jobs: submit, list, show, follow, fetch the result, derender it again, cancel."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

from api.auth import require_key
from api.bodies import parse_object, read_body, read_json_object
from api.deps import Process, process_of
from api.errors import envelope_from
from api.openapi import ERRORS, LOOKUP_ERRORS, body_schema
from api.relay import relay_events
from api.routes.openai import CHAT_EXAMPLE, check, run
from api.submissions import submission_for
from tasks.errors import Conflict, InvalidRequest, JobNotFound, error_from_json
from tasks.ids import new_id
from tasks.ledger.store import Job, Status
from tasks.pipeline import Submission
from tasks.protocol.base import WireModel, compact_json, read_wire
from tasks.protocol.vllm_derender import StoredDerenderRequest
from tasks.specs import DERENDER, ENDPOINTS, GENERATE, STORED_DERENDER

router = APIRouter(prefix="/v1/jobs", dependencies=[Depends(require_key)], tags=["Jobs"])

EXAMPLE = {"endpoint": "/v1/chat/completions", "body": CHAT_EXAMPLE, "metadata": {"row": "17"}}
READ_AGAIN = {"tool_parser": "hermes", "reasoning_parser": "qwen3"}


class JobRequest(WireModel):
    """A request to one of the API's endpoints, to run as a job."""

    endpoint: str
    body: dict[str, Any]
    job_class: Literal["interactive", "batch"] = Field("batch", alias="class")
    """`batch` jobs yield to interactive work."""
    timeout_s: float | None = Field(None, gt=0)
    """The job expires if it is not done within this many seconds."""
    metadata: dict[str, str] = Field(default_factory=dict, max_length=16)


def job_json(job: Job) -> dict[str, Any]:
    """Return a job as the API shows it. Times are Unix seconds, or null if not reached yet."""
    base = f"/v1/jobs/{job.id}"
    started = [record.started_at for record in job.records.values() if record.started_at]
    return {
        "id": job.id,
        "object": "job",
        "endpoint": job.endpoint,
        "model": job.model,
        "class": job.job_class,
        "stream": job.stream,
        "status": job.status.value,
        "stage": None if job.status.terminal else job.stage,
        "created_at": job.created_at,
        "started_at": min(started) if started else None,
        "ended_at": job.ended_at or None,
        "expires_at": job.deadline_at,
        "stages": {
            stage: {
                "state": record.state,
                "attempts": record.attempts,
                "queued_at": record.sent_at or None,
                "started_at": record.started_at or None,
                "ended_at": record.ended_at or None,
            }
            for stage, record in job.records.items()
        },
        "usage": {"prompt_tokens": job.prompt_tokens, "completion_tokens": job.completion_tokens},
        "error": envelope_from(error_from_json(job.error))["error"] if job.error else None,
        "metadata": job.metadata,
        "links": {"self": base, "result": f"{base}/result", "events": f"{base}/events"},
    }


async def find(process: Process, job_id: str) -> Job:
    """Return a job.

    Raises:
        JobNotFound: it does not exist, or has expired.
    """
    job = await process.store.get(job_id)
    if job is None:
        raise JobNotFound(f"The job {job_id!r} does not exist, or has expired.", param="id")
    return job


@router.post("", status_code=202, responses=ERRORS, openapi_extra=body_schema(JobRequest, EXAMPLE))
async def submit(request: Request) -> Response:
    """Submit a request as a job. With an `Idempotency-Key` header, a repeated call returns the same job."""
    process = process_of(request)
    _, body = await read_json_object(request, process.settings.limits.max_body_bytes)
    wanted = read_wire(JobRequest, body)
    endpoint = ENDPOINTS.get(wanted.endpoint)
    if endpoint is None:
        raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    try:
        model, parsed = check(process, endpoint, wanted.body)
        submission = submission_for(
            endpoint,
            model,
            parsed,
            compact_json(wanted.body),
            wanted.body,
            job_class=wanted.job_class,
            detached=True,
            idempotency_key=request.headers.get("idempotency-key", ""),
            metadata=wanted.metadata,
            deadline_in_s=wanted.timeout_s,
        )
    except InvalidRequest as error:
        error.param = f"body.{error.param}" if error.param else "body"
        raise
    job_id = await process.pipeline.submit(submission)
    job = await find(process, job_id)
    return JSONResponse(job_json(job), status_code=202, headers={"Location": f"/v1/jobs/{job_id}"})


@router.get("")
async def page(request: Request, limit: int = Query(20, ge=1, le=100), after: str | None = None) -> Response:
    """List jobs, newest first; `after` is the last id of the previous page."""
    jobs = await process_of(request).store.page(limit + 1, after)
    shown = [job_json(job) for job in jobs[:limit]]
    return JSONResponse(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(jobs) > limit,
        }
    )


@router.get("/{job_id}", responses={**LOOKUP_ERRORS})
async def get(job_id: str, request: Request) -> Response:
    """Return a job's status, with the times of each stage."""
    return JSONResponse(job_json(await find(process_of(request), job_id)))


@router.get("/{job_id}/result", responses={**LOOKUP_ERRORS})
async def result(job_id: str, request: Request) -> Response:
    """Return the answer of a job that succeeded, or the error of one that failed; 409 while it is queued or running."""
    process = process_of(request)
    job = await find(process, job_id)
    if not job.status.terminal:
        raise Conflict(f"The job is still {job.status}. Fetch its result once it has succeeded.")
    if job.status is not Status.SUCCEEDED:
        raise error_from_json(job.error or {})
    for entry in reversed(await process.store.read_events(job_id, 0)):
        if entry.data[:1] == b"r":
            return Response(entry.data[1:], media_type="application/json")
    raise JobNotFound(f"The result of job {job_id!r} has expired.")


@router.get("/{job_id}/events", responses={204: {"description": "There are no further events."}, **LOOKUP_ERRORS})
async def events(job_id: str, request: Request) -> Response:
    """Stream a job's events as server-sent events until its end: all of them, or those after `Last-Event-ID`.

    A `status` event tells which stage was queued, started or done. `chunk` events carry a streamed answer, `response`
    the whole answer. The last event is `done` if the job succeeded, otherwise `error` with the reason.
    """
    process = process_of(request)
    job = await find(process, job_id)
    after = await _last_event_id(request, process, job_id)
    subscription = process.hub.subscribe(job_id, after)
    try:
        await process.store.listen(job_id, process.hub.name)
        first = await subscription.replay()
    except BaseException:
        subscription.close()
        raise
    if job.status.terminal and not first:
        subscription.close()
        return Response(status_code=204)  # tells a browser's EventSource to stop reconnecting
    stream = relay_events(subscription, first, process.settings.api.heartbeat_s)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _last_event_id(request: Request, process: Process, job_id: str) -> int:
    given = request.headers.get("last-event-id", "0")
    if given.isascii() and given.isdecimal() and len(given) < 16:
        after = int(given)
        if after == 0 or await process.store.read_events(job_id, after - 1):
            return after
    raise InvalidRequest("Last-Event-ID must be 0 or the id of one of the job's events", param="Last-Event-ID")


@router.post("/{job_id}/derender", responses=ERRORS, openapi_extra=body_schema(StoredDerenderRequest, READ_AGAIN))
async def derender(job_id: str, request: Request) -> Response:
    """Derender the stored tokens of an ended job again, with other parsers if the body names any.

    Nothing is generated. Without a body, the parsers are those of the model's current settings.
    """
    process = process_of(request)
    source = await find(process, job_id)
    raw = await read_body(request, process.settings.limits.max_body_bytes)
    wanted = read_wire(StoredDerenderRequest, parse_object(raw) if raw else {})
    if GENERATE not in source.stages or DERENDER not in source.stages:
        raise InvalidRequest(
            f"The job {job_id!r} has no tokens to derender: jobs of {source.endpoint} do not generate and derender",
            param="id",
        )
    if not source.status.terminal:
        raise Conflict(f"The job is still {source.status}. Derender it once it has ended.")
    model = process.admission.model(wanted.model or source.model)
    body = compact_json({**wanted.model_dump(exclude_unset=True), "source": source.id})
    submission = Submission(
        endpoint=STORED_DERENDER.path,
        model=model.name,
        body=body,
        stream=False,
        stages=STORED_DERENDER.stages,
        listener=process.hub.name,
        job_id=new_id("job_"),
    )
    return await run(request, submission)


@router.delete("/{job_id}", responses={**LOOKUP_ERRORS})
async def cancel(job_id: str, request: Request) -> Response:
    """Cancel a job; its workers stop at once. A job that has ended stays as it is."""
    process = process_of(request)
    await find(process, job_id)
    await process.pipeline.cancel(job_id)
    return JSONResponse(job_json(await find(process, job_id)))
