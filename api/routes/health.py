"""Health checks: whether this process is alive, and whether the system can take requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.deps import process_of
from tasks.errors import BrokerUnavailable
from tasks.specs import ENDPOINTS, GENERATE

router = APIRouter(prefix="/health", tags=["Health"])


@router.get("/live")
async def live() -> dict[str, str]:
    """Report that this process is alive."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "A stage or model has no live worker, or a model no engine."}})
async def ready(request: Request) -> Response:
    """Report for each stage and model whether it is ready, or what it lacks; 200 if all are ready."""
    process = process_of(request)
    try:
        await process.admission.refresh()
    except BrokerUnavailable as error:
        return JSONResponse({"status": "unavailable", "broker": error.message}, status_code=503)
    admission = process.admission
    stages: dict[str, str] = {}
    models: dict[str, dict[str, Any]] = {}
    engines: dict[str, list[str]] = {}
    for worker in admission.workers:
        for model, state in worker.detail.get("engines", {}).items():
            engines.setdefault(model, []).append(state)
    for endpoint in ENDPOINTS.values():
        for stage in endpoint.stages:
            if stage != GENERATE:
                missing = admission.missing((stage,), "", "interactive")
                stages[stage] = "no live worker" if missing else "ok"
    for settings in process.settings.models:
        worker_missing = bool(admission.missing((GENERATE,), settings.name, "interactive"))
        states = engines.get(settings.name, [])
        models[settings.name] = {
            "worker": "no live worker" if worker_missing else "ok",
            "engine": "ok" if "ok" in states else (states[0] if states else "unknown"),
        }
    ok = all(state == "ok" for state in stages.values()) and all(
        state == {"worker": "ok", "engine": "ok"} for state in models.values()
    )
    body = {
        "status": "ok" if ok else "unavailable",
        "stages": stages,
        "models": models,
        "workers": [
            {"id": worker.id, "role": worker.role, "models": worker.models, **worker.detail}
            for worker in admission.workers
        ],
    }
    return JSONResponse(body, status_code=200 if ok else 503, headers={} if ok else {"Retry-After": "2"})
