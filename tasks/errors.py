"""The errors that Tokenyard raises on purpose.

    TokenyardError                  500
    ├── InvalidRequest              400  the body or a field of it is wrong; `param` names it
    │   ├── ContextLengthExceeded   400
    │   └── InvalidState            400  an inconsistent stream state
    ├── AuthenticationFailed        401
    ├── NotFound                    404
    │   ├── ModelNotFound           404
    │   └── JobNotFound             404
    ├── Conflict                    409
    ├── PayloadTooLarge             413
    ├── UnsupportedEncoding         415  the body's Content-Encoding
    ├── QueueFull                   429  retryable
    ├── Unavailable                 503  retryable
    │   ├── BrokerUnavailable       503
    │   ├── NoLiveWorker            503
    │   └── EngineUnavailable       503
    ├── EngineFailed                502  retryable
    ├── EngineRefused               400  the engine rejected the request
    ├── DeadlineExceeded            504
    ├── AttemptsExhausted           500
    └── Cancelled                   499

A class's docstring is its default message. `retryable` says whether the same request may succeed later.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class TokenyardError(Exception):
    """An internal error occurred in Tokenyard. The worker's or the API's log has the details."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_server_error"
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", *, param: str | None = None, retry_after_s: int | None = None) -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or "")
        self.param = param
        self.retry_after_s = retry_after_s
        super().__init__(self.message)


class InvalidRequest(TokenyardError):
    """The request is not valid."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """The prompt and the requested output do not fit into the model's context. Shorten one of them."""

    code = "context_length_exceeded"


class InvalidState(InvalidRequest):
    """The stream state is inconsistent, or comes from another version or model. Start the stream again without it."""

    code = "invalid_stream_state"


class AuthenticationFailed(TokenyardError):
    """The API key is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFound(TokenyardError):
    """The resource does not exist."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """The model does not exist. GET /v1/models lists the served models."""

    code = "model_not_found"


class JobNotFound(NotFound):
    """The job does not exist, or it has expired."""

    code = "job_not_found"


class Conflict(TokenyardError):
    """The request conflicts with the current state of the resource."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class PayloadTooLarge(TokenyardError):
    """The request body is too large."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class UnsupportedEncoding(TokenyardError):
    """The request body is compressed in a way that is not supported. Send gzip, deflate, or no Content-Encoding."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_encoding"


class QueueFull(TokenyardError):
    """Too many requests are queued for this model. Try again later."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retryable = True


class Unavailable(TokenyardError):
    """A part of the service is unavailable. Try again later."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"
    retryable = True


class BrokerUnavailable(Unavailable):
    """The broker does not answer. Try again later."""

    code = "broker_unavailable"


class NoLiveWorker(Unavailable):
    """No live worker serves a stage that the request needs. Try again later."""

    code = "no_live_worker"


class EngineUnavailable(Unavailable):
    """No engine answers for this model. Try again later."""

    code = "engine_unavailable"


class EngineFailed(TokenyardError):
    """The engine failed while processing the request."""

    status = 502
    type = "engine_error"
    code = "engine_failed"
    retryable = True


class EngineRefused(TokenyardError):
    """The engine rejected the request."""

    status = 400
    type = "invalid_request_error"
    code = "engine_refused"


class DeadlineExceeded(TokenyardError):
    """The deadline passed before the request was complete."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class AttemptsExhausted(TokenyardError):
    """The request was set aside: each of its last attempts lost its worker before it made any progress."""

    code = "attempts_exhausted"


class Cancelled(TokenyardError):
    """The request was cancelled."""

    status = 499
    type = "cancelled"
    code = "cancelled"


def _tree(cls: type[TokenyardError]) -> dict[str, type[TokenyardError]]:
    found = {cls.__name__: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


def error_to_json(error: TokenyardError) -> dict[str, Any]:
    """Return the error in the form that the ledger stores; `error_from_json` restores it with its class."""
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "param": error.param,
        "retry_after_s": error.retry_after_s,
    }


def error_from_json(data: dict[str, Any]) -> TokenyardError:
    """Restore an error from `error_to_json`; an unknown class becomes a plain TokenyardError."""
    cls = _tree(TokenyardError).get(data.get("kind", ""), TokenyardError)
    return cls(data.get("message", ""), param=data.get("param"), retry_after_s=data.get("retry_after_s"))
