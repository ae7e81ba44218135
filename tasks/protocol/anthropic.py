"""Anthropic's Messages API: the request as clients send it.

POST /v1/messages
{"model": "qwen3-8b", "max_tokens": 256, "system": "Be kind.",
 "messages": [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}],
 "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"}}
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.protocol.base import MAX_SALT_CHARS, MAX_STOPS, JsonObject, WireModel, refuse

Effort = Literal["low", "medium", "high", "xhigh", "max"]
MIN_THINKING_BUDGET = 1024


class Tool(WireModel):
    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    defer_loading: bool | None = None

    @field_validator("input_schema")
    @classmethod
    def _of_an_object(cls, schema: JsonObject) -> JsonObject:
        return schema if "type" in schema else {**schema, "type": "object"}


class ToolChange(WireModel):
    """A tool that a system message adds or removes, by name or with its definition."""

    type: Literal["tool_reference", "tool_definition"]
    name: str | None = None
    definition: Tool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> Self:
        if (self.name if self.type == "tool_reference" else self.definition) is None:
            raise refuse("tool", f"a {self.type} needs its {'name' if self.type == 'tool_reference' else 'definition'}")
        return self


class ContentBlock(WireModel):
    """One block of a message; its type decides which fields count."""

    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    source: JsonObject | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    content: str | list[JsonObject] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    tool: ToolChange | None = None

    @model_validator(mode="after")
    def _change_has_its_tool(self) -> Self:
        if self.type in ("tool_addition", "tool_removal"):
            if self.tool is None:
                raise refuse("tool", f"a {self.type} needs its tool")
            if self.type == "tool_removal" and self.tool.type != "tool_reference":
                raise refuse("tool", "a tool_removal needs a tool_reference, not a tool_definition")
        return self


class Message(WireModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]

    @property
    def blocks(self) -> list[ContentBlock]:
        """The content blocks; an empty list for plain text."""
        return [] if isinstance(self.content, str) else self.content

    @model_validator(mode="after")
    def _only_the_system_changes_tools(self) -> Self:
        if self.role != "system" and any(b.type in ("tool_addition", "tool_removal") for b in self.blocks):
            raise refuse("content", "only system messages may add or remove tools")
        return self


class ToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> Self:
        if self.type == "tool" and not self.name:
            raise refuse("tool_choice.name", "a tool_choice of type tool needs the tool's name")
        return self


class OutputFormat(WireModel):
    json_schema: JsonObject | None = Field(default=None, alias="schema")
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(WireModel):
    effort: Effort | None = None
    format: OutputFormat | None = None


class ThinkingEnabled(WireModel):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=MIN_THINKING_BUDGET)


class ThinkingDisabled(WireModel):
    type: Literal["disabled"]


class ThinkingAdaptive(WireModel):
    type: Literal["adaptive"]


class MessagesRequest(WireModel):
    """The body of `POST /v1/messages`."""

    model: str = Field(min_length=1)
    messages: list[Message]
    max_tokens: int = Field(ge=1)
    metadata: JsonObject | None = None
    output_config: OutputConfig | None = None
    thinking: Annotated[ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive | None, Field(discriminator="type")] = (
        None
    )
    stop_sequences: list[str] | None = Field(None, max_length=MAX_STOPS)
    stream: bool | None = False
    system: str | list[ContentBlock] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    tool_choice: ToolChoice | None = None
    tools: list[Tool] | None = None
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)

    mm_payload: Literal["tensors", "none"] = "tensors"
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_CHARS)
    watermarking: bool | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    chat_template_kwargs: JsonObject | None = None

    @model_validator(mode="after")
    def _thinking_leaves_room(self) -> Self:
        if isinstance(self.thinking, ThinkingEnabled) and self.thinking.budget_tokens >= self.max_tokens:
            raise refuse(
                "thinking.budget_tokens", f"The thinking budget must be smaller than max_tokens ({self.max_tokens})"
            )
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings; empty if none were sent."""
        return tuple(self.stop_sequences or ())
