"""The part of a request that parsing its output depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The parts of a chat request that parsing depends on; `to_json` and `from_json` are its wire form.

    tools: tool definitions as in the OpenAI request (`{"type": "function", "function": {"name", "parameters"}}`).
    tool_choice: "none", "auto", "required", or `{"name": NAME}` for one named function.
    template_arguments: `chat_template_kwargs`, resolved with the server's defaults.
    history_tool_call_count: calls in the conversation so far, for families that number ids across it.
    tool_arguments: "stream" emits arguments as they arrive, "complete" emits a call once it has closed.
    """

    tools: tuple[Json, ...] = ()
    tool_choice: str | Mapping[str, str] = "auto"
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    skip_special_tokens: bool = True
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    history_tool_call_count: int = 0
    tool_arguments: str = "stream"

    def __post_init__(self) -> None:
        if self.tool_arguments not in ("stream", "complete"):
            raise ValueError(f"tool_arguments must be 'stream' or 'complete', not {self.tool_arguments!r}")
        if isinstance(self.tool_choice, str) and self.tool_choice not in ("none", "auto", "required"):
            raise ValueError(
                f"tool_choice must be 'none', 'auto', 'required' or {{'name': NAME}}, not {self.tool_choice!r}"
            )

    @property
    def may_call(self) -> bool:
        """Whether calls are parsed: there are tools, and the choice is not "none"."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def forced_name(self) -> str | None:
        """The one function that the request forces, if it names one."""
        return None if isinstance(self.tool_choice, str) else self.tool_choice["name"]

    def to_json(self) -> Json:
        return {
            "tools": list(self.tools),
            "tool_choice": self.tool_choice if isinstance(self.tool_choice, str) else dict(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "include_reasoning": self.include_reasoning,
            "skip_special_tokens": self.skip_special_tokens,
            "template_arguments": dict(self.template_arguments),
            "history_tool_call_count": self.history_tool_call_count,
            "tool_arguments": self.tool_arguments,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ParseContext:
        """Restore the context that `to_json` returned; absent keys get their defaults.

        Raises:
            TypeError, ValueError: an unknown key, or a value that is not allowed.
        """
        return cls(**{**data, "tools": tuple(data.get("tools", ()))})
