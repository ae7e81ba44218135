"""What every wire model shares: the extra-field policy, usage, and the error envelope."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]


class WireModel(BaseModel):
    """A request or response as clients see it.

    Unknown fields are kept: the reference accepts them, and a newer client must not break.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class PromptTokensDetails(WireModel):
    cached_tokens: int | None = None


class CompletionTokensDetails(WireModel):
    reasoning_tokens: int | None = None


class Usage(WireModel):
    """Token counts of one request, summed over its choices."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class ErrorInfo(WireModel):
    message: str
    type: str
    param: str | None = None
    code: int | str | None = None


class ErrorEnvelope(WireModel):
    """`{"error": {"message", "type", "param", "code"}}`, as OpenAI and vLLM answer."""

    error: ErrorInfo
