"""Errors as clients see them: OpenAI's envelope, the class's status, and `Retry-After`.

HTTP/1.1 404  {"error": {"message": "...", "type": "not_found_error", "param": "model", "code": "model_not_found"}}
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tasks.errors import InvalidRequest, NotFound, TokenyardError
from tasks.telemetry import get_logger

log = get_logger(__name__)


def envelope_from(error: TokenyardError) -> dict[str, Any]:
    """Return an error in OpenAI's envelope."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def response_from(error: TokenyardError) -> JSONResponse:
    """Return the response for an error: its envelope, status and headers."""
    headers = {}
    if error.retry_after_s is not None or error.status in (429, 503):
        headers["Retry-After"] = str(error.retry_after_s or 2)
    if error.status == 409:
        headers["x-should-retry"] = "false"  # by default, OpenAI's clients retry a 409
    return JSONResponse(envelope_from(error), status_code=error.status, headers=headers)


def install(app: FastAPI) -> None:
    """Make this app answer every error in the envelope."""

    async def ours(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TokenyardError)
        return response_from(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:]) or None
        return response_from(InvalidRequest(f"{field}: {first['msg']}" if field else first["msg"], param=field))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        known: TokenyardError = InvalidRequest(f"{error.detail}: {request.method} {request.url.path}")
        if error.status_code == 404:
            known = NotFound(f"There is no route {request.url.path}. See /docs for all routes.")
        return JSONResponse(envelope_from(known), status_code=error.status_code, headers=error.headers)

    app.add_exception_handler(TokenyardError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
