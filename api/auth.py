"""API keys: `Authorization: Bearer <key>` or `x-api-key: <key>`, required if the settings have any keys."""

from __future__ import annotations

import hmac

from fastapi import Request

from api.deps import process_of
from tasks.errors import AuthenticationFailed


async def require_key(request: Request) -> None:
    """Check the request's API key, if keys are configured.

    Raises:
        AuthenticationFailed: the key is missing or wrong.
    """
    keys = process_of(request).settings.api.keys
    if not keys:
        return
    given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not any(hmac.compare_digest(given.encode(), key.encode()) for key in keys):
        raise AuthenticationFailed()
