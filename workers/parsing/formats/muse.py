"""Muse: messages to recipients; those to tools contain calls as ATEM elements.

     to=self<|message|>The user wants the weather.<|eom|>
    <|start|>assistant to=get_weather<|message|>
    <atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Oslo</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>It is sunny.<|eot|>

The prompt ends with `<|start|>assistant`, so the output begins in a message's header. An element that is quoted in
reasoning or in an answer is not a call.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, REASONING, Emit, Format, Go, Mode, Sink

_MARKERS = {
    "START": "<|start|>",
    "assistant": "assistant",
    "MESSAGE": "<|message|>",
    "EOM": "<|eom|>",
    "EOT": "<|eot|>",
    "SELF": "to=self",
    "USER": "to=user",
    "COMMENTARY": "to=commentary",
    "DEVELOPER": "to=developer",
    "TO": "to=",
}
_MODES = {
    "head": Mode(Sink.SKIP),
    "self": Mode(Sink.SKIP),
    "user": Mode(Sink.SKIP),
    "tool": Mode(Sink.DROP),
    "developer": Mode(Sink.DROP),
}


def _rules(body: str) -> dict[tuple[str, str], Go]:
    """The rules for messages; `body` is the mode of a message to a tool."""
    rules = {
        ("head", "START"): Go("head"),
        ("head", "assistant"): Go("head"),
        ("head", "SELF"): Go("self"),
        ("head", "USER"): Go("user"),
        ("head", "COMMENTARY"): Go("user"),
        ("head", "DEVELOPER"): Go("developer"),
        ("head", "TO"): Go("tool"),
        # A message without a recipient is reasoning.
        ("head", "MESSAGE"): Go(REASONING),
        ("self", "MESSAGE"): Go(REASONING),
        ("user", "MESSAGE"): Go(CONTENT),
        ("tool", "MESSAGE"): Go(body),
    }
    for mode in {REASONING, CONTENT, "developer", body}:
        for end in ("EOM", "EOT", "START"):
            rules[mode, end] = Go("head")
    return rules


_PLAIN = Format(name="muse_plain", markers=_MARKERS, modes=_MODES, rules=_rules(CONTENT), start="head")

MUSE = Format(
    name="muse",
    markers={
        **_MARKERS,
        "CALLS": "<atem:function_calls>",
        "/CALLS": "</atem:function_calls>",
        "INVOKE": '<atem:invoke name="',
        "/INVOKE": "</atem:invoke>",
        "PARAMETER": '<atem:parameter name="',
        "/PARAMETER": "</atem:parameter>",
        '"': '"',
        ">": ">",
        "/>": "/>",
    },
    modes={
        **_MODES,
        "calls": Mode(Sink.GAP),
        "name": Mode(Sink.NAME),
        "named": Mode(Sink.DROP),
        "arguments": Mode(Sink.SKIP),
        "key": Mode(Sink.KEY),
        "keyed": Mode(Sink.DROP),
        "value": Mode(Sink.VALUE),
        "end": Mode(Sink.DOUBT, "end", "value"),
    },
    rules={
        **_rules("calls"),
        ("calls", "CALLS"): Go("calls"),
        ("calls", "/CALLS"): Go("calls"),
        ("calls", "INVOKE"): Go("name", Emit.CALL),
        ("name", '"'): Go("named", Emit.BEGIN),
        ("named", ">"): Go("arguments"),
        ("arguments", "PARAMETER"): Go("key"),
        ("key", '"'): Go("keyed"),
        ("keyed", ">"): Go("value"),
        ("value", "/PARAMETER"): Go("arguments"),
        ("arguments", "/INVOKE"): Go("calls", Emit.END),
        ("named", "/>"): Go("calls", Emit.END),
        ("keyed", "/>"): Go("arguments", Emit.EMPTY),
        # An element may lack its end. What may end a value is data if the call goes on after it.
        ("arguments", "INVOKE"): Go("name", Emit.END, Emit.CALL),
        ("arguments", "/CALLS"): Go("calls", Emit.END),
        **{("arguments", end): Go("head", Emit.END) for end in ("EOM", "EOT")},
        ("value", "PARAMETER"): Go("key"),
        ("value", "/INVOKE"): Go("end"),
        ("value", "/CALLS"): Go("end"),
        ("end", "INVOKE"): Go("name", Emit.END, Emit.CALL),
        ("end", "/CALLS"): Go("calls", Emit.END),
        **{("end", end): Go("head", Emit.END) for end in ("EOM", "EOT")},
    },
    start="head",
    plain=_PLAIN,
)
