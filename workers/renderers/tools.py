"""Tool definitions as chat templates read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tasks.protocol.conversation import JsonObject

_OPTIONAL = ("strict", "defer_loading")


def template_tools(tools: Iterable[Mapping[str, Any]]) -> list[JsonObject]:
    """Tools with only the keys that models were trained on, in the same order, because templates dump them as JSON.

    `{"type": "function", "function": {"name", "description", "parameters"}}`; description and parameters are None
    if they were not sent; `strict` and `defer_loading` are present only if they were sent.
    """
    return [_tool(tool) for tool in tools]


def _tool(tool: Mapping[str, Any]) -> JsonObject:
    given = tool["function"]
    function: JsonObject = {
        "name": given["name"],
        "description": given.get("description"),
        "parameters": given.get("parameters"),
    }
    for name in _OPTIONAL:
        if given.get(name) is not None:
            function[name] = given[name]
    out: JsonObject = {"type": tool.get("type", "function"), "function": function}
    if tool.get("defer_loading") is not None:
        function.setdefault("defer_loading", tool["defer_loading"])
        out["defer_loading"] = tool["defer_loading"]
    return out
