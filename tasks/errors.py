"""Every error that Tokenyard raises on purpose.

    TokenyardError                  500
    ├── InvalidRequest              400  the body or a field of it is wrong; `param` names it
    │   ├── ContextLengthExceeded   400
    │   └── InvalidState            400  a stream state that does not add up
    ├── AuthenticationFailed        401
    ├── NotFound                    404
    │   ├── ModelNotFound           404
    │   └── JobNotFound             404
    ├── Conflict                    409
    ├── PayloadTooLarge             413
    ├── QueueFull                   429  retryable
    ├── Unavailable                 503  retryable
    │   ├── BrokerUnavailable       503
    │   ├── NoLiveWorker            503
    │   └── EngineUnavailable       503
    ├── EngineFailed                502  retryable
    ├── EngineRefused               400  the engine says that the request is wrong
    ├── DeadlineExceeded            504
    ├── AttemptsExhausted           500
    └── Cancelled                   499

A class's docstring is its default message. `retryable` says whether the same request may succeed later.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class TokenyardError(Exception):
    """Something went wrong inside Tokenyard."""

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
    """The prompt and the requested output do not fit into the model's context."""

    code = "context_length_exceeded"


class InvalidState(InvalidRequest):
    """The stream state does not add up, or belongs to another version or model."""

    code = "invalid_stream_state"


class AuthenticationFailed(TokenyardError):
    """The API key is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFound(TokenyardError):
    """There is no such thing."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """There is no such model."""

    code = "model_not_found"


class JobNotFound(NotFound):
    """There is no such job, or it has been forgotten."""

    code = "job_not_found"


class Conflict(TokenyardError):
    """The request does not fit the present state."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class PayloadTooLarge(TokenyardError):
    """The request body is too large."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class QueueFull(TokenyardError):
    """Too many requests are waiting for this model."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retryable = True


class Unavailable(TokenyardError):
    """A part of the service does not answer at the moment."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"
    retryable = True


class BrokerUnavailable(Unavailable):
    """The queue does not answer at the moment."""

    code = "broker_unavailable"


class NoLiveWorker(Unavailable):
    """No worker is alive for a stage that the request needs."""

    code = "no_live_worker"


class EngineUnavailable(Unavailable):
    """No engine answers for this model at the moment."""

    code = "engine_unavailable"


class EngineFailed(TokenyardError):
    """The engine failed while it worked on the request."""

    status = 502
    type = "engine_error"
    code = "engine_failed"
    retryable = True


class EngineRefused(TokenyardError):
    """The engine refused the request."""

    status = 400
    type = "invalid_request_error"
    code = "engine_refused"


class DeadlineExceeded(TokenyardError):
    """The request's deadline passed before it was complete."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class AttemptsExhausted(TokenyardError):
    """The request was tried as often as allowed, and a worker was lost each time."""

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
    """The error as it travels through the ledger; `error_from_json` restores its class."""
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "param": error.param,
        "retry_after_s": error.retry_after_s,
    }


def error_from_json(data: dict[str, Any]) -> TokenyardError:
    cls = _tree(TokenyardError).get(data.get("kind", ""), TokenyardError)
    return cls(data.get("message", ""), param=data.get("param"), retry_after_s=data.get("retry_after_s"))
