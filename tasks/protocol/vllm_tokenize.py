"""The bodies of `POST /tokenize` and `POST /detokenize`, each with its answer.

{"model": "qwen3-8b", "prompt": "Hello", "add_special_tokens": true, "return_token_strs": true}
{"count": 1, "max_model_len": 32768, "tokens": [9707], "token_strs": ["Hello"]}
{"model": "qwen3-8b", "tokens": [9707]}
{"prompt": "Hello"}
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from tasks.protocol.base import JsonObject, WireModel


class TokenizeRequest(WireModel):
    """Either a `prompt`, or the `messages` (and `tools`) of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[JsonObject] | None = None
    add_special_tokens: bool | None = None
    """Defaults to true for a prompt, and to false for a chat, whose template writes the special tokens."""
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[JsonObject] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_of(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if (data.get("prompt") is None) == (data.get("messages") is None):
                raise ValueError("send either prompt or messages, not both or neither")
            if data.get("continue_final_message") and data.get("add_generation_prompt"):
                raise ValueError("continue_final_message needs add_generation_prompt to be false")
        return data


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, lt=2**63)]]
