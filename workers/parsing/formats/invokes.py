"""Calls as `<invoke name="NAME">` with `<parameter name="KEY">` elements, in a section.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Oslo</parameter>
    </invoke>
    </minimax:tool_call>

MiniMax M2, Dots, Step 3, and DeepSeek's DSML from V3.2 on, where `string="true"` or `string="false"` says for each
argument whether it is text or JSON:

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink


def invokes(
    name: str,
    *sections: tuple[str, str],
    prefix: str = "",
    parameter: str = "parameter",
    attributes: bool = False,
    value: str = "",
) -> Format:
    """The table for one spelling: the section's markers (the first is the usual one) and the elements' prefix."""
    markers = {
        "INVOKE": f'<{prefix}invoke name="',
        "INVOKE'": f"<{prefix}invoke name='",
        "INVOKE=": f"<{prefix}invoke name=",
        "/INVOKE": f"</{prefix}invoke>",
        "PARAMETER": f'<{prefix}{parameter} name="',
        "PARAMETER'": f"<{prefix}{parameter} name='",
        "PARAMETER=": f"<{prefix}{parameter} name=",
        "/PARAMETER": f"</{prefix}{parameter}>",
        '">': '">',
        "'>": "'>",
        ">": ">",
        "/>": "/>",
    }
    for quote, mark in (("", '"'), ("'", "'"), ("=", "")):
        markers[f"\nINVOKE{quote}"] = "\n" + markers[f"INVOKE{quote}"]
        if mark:
            markers |= {f"{mark}/>": f"{mark}/>", f"{mark} />": f"{mark} />"}
    rules: dict[tuple[str, str], Go] = {}
    for number, (opens, closes) in enumerate(sections):
        opening, closing = f"SECTION{number or ''}", f"/SECTION{number or ''}"
        markers[opening] = opens
        rules[CONTENT, opening] = Go("calls")
        rules["calls", opening] = Go("calls")
        rules["last", opening] = Go("calls", Emit.END)
        if closes and closes not in markers.values():
            markers[closing] = closes
            rules["calls", closing] = Go(CONTENT)
            rules["arguments", closing] = Go(CONTENT, Emit.END)
            rules["value", closing] = Go("last")
            rules["end", closing] = Go(CONTENT, Emit.END)
    for quote in ("", "'", "="):
        rules["calls", f"INVOKE{quote}"] = Go("name", Emit.CALL)
        # Models sometimes forget the section.
        rules[CONTENT, f"INVOKE{quote}"] = Go("name", Emit.CALL)
        rules["arguments", f"PARAMETER{quote}"] = Go("key")
        # They also forget to close an element. What may end a value is data if the call goes on after it.
        rules["value", f"PARAMETER{quote}"] = Go("key")
        rules["value", f"\nINVOKE{quote}"] = Go("name", Emit.END, Emit.CALL)
        for mode in ("end", "last"):
            rules[mode, f"INVOKE{quote}"] = Go("name", Emit.END, Emit.CALL)
        rules["arguments", f"INVOKE{quote}"] = Go("name", Emit.END, Emit.CALL)
    for end in ("/>", '"/>', '" />', "'/>", "' />"):
        rules["name", end] = Go("calls", Emit.BEGIN, Emit.END)
        rules["key", end] = Go("arguments", Emit.EMPTY)
    for end in ('">', "'>", ">"):
        rules["name", end] = Go("arguments", Emit.BEGIN)
        rules["key", end] = Go("value")
    rules["value", "/PARAMETER"] = Go("arguments")
    rules["value", "/INVOKE"] = Go("end")
    rules["arguments", "/INVOKE"] = Go("calls", Emit.END)
    if attributes:
        markers |= {"STRING": '" string="true">', "JSON": '" string="false">'}
        rules["key", "STRING"] = Go("value", Emit.STRING)
        rules["key", "JSON"] = Go("value", Emit.JSON)
        for kind, emit in (("STRING", Emit.STRING), ("JSON", Emit.JSON)):
            for space in ("", " "):
                markers[f"{kind}{space}/"] = markers[kind].removesuffix(">") + f"{space}/>"
                rules["key", f"{kind}{space}/"] = Go("arguments", emit, Emit.EMPTY)
    return Format(
        name=name,
        markers=markers,
        modes={
            "calls": Mode(Sink.GAP),
            "name": Mode(Sink.NAME),
            "arguments": Mode(Sink.SKIP),
            "key": Mode(Sink.KEY),
            "value": Mode(Sink.VALUE, value),
            **dict.fromkeys(("end", "last"), Mode(Sink.DOUBT, "end", "value")),
        },
        rules=rules,
    )


def dsml(name: str, section: str, space: str = "", *others: str) -> Format:
    """The table for DeepSeek's markup.

    section: its name. space: text before an element's name. others: other names of the section.
    """
    prefix = f"｜DSML｜{space}"
    sections = [(f"<{prefix}{section}>", f"</{prefix}{section}>")]
    sections += [(f"<{prefix}{other}>", f"</{prefix}{other}>") for other in others]
    return invokes(name, *sections, prefix=prefix, attributes=True)


DOTS = invokes("dots", ("<dots_function_call>", "</dots_function_call>"))
MINIMAX_M2 = invokes("minimax_m2", ("<minimax:tool_call>", "</minimax:tool_call>"))
DEEPSEEK_V32 = dsml("deepseek_v32", "function_calls")
DEEPSEEK_V4 = dsml("deepseek_v4", "tool_calls", "", "toolcalls", "tool")
DEEPSEEK_V41 = dsml("deepseek_v41", "calls", " ")
