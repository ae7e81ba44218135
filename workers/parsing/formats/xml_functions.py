"""Calls as `<function=NAME>` with `<parameter=KEY>` elements: Qwen3-Coder, Nemotron 3, MiMo, Step 3.5, Seed-OSS.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

The template's line feed on each side of a value is markup; MiMo writes none.
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Forced, Format, Go, Mode, Sink


def xml_functions(name: str, opens: str, closes: str, value: str = "lines", forced: Forced = "native") -> Format:
    """The table for one spelling of the wrapper and one way of writing values."""
    return Format(
        name=name,
        markers={
            "CALL": opens,
            "/CALL": closes,
            "FUNCTION": "<function=",
            "/FUNCTION": "</function>",
            "PARAMETER": "<parameter=",
            "/PARAMETER": "</parameter>",
            ">": ">",
            "/>": "/>",
            "\nFUNCTION": "\n<function=",
        },
        modes={
            "call": Mode(Sink.DROP),
            "name": Mode(Sink.NAME),
            "arguments": Mode(Sink.SKIP),
            "key": Mode(Sink.KEY),
            "value": Mode(Sink.VALUE, value),
            "end": Mode(Sink.DOUBT, "end", "value"),
            "last": Mode(Sink.DOUBT, "end", "value"),
            "next": Mode(Sink.DOUBT, "", "value"),
            "after": Mode(Sink.GAP),
        },
        rules={
            (CONTENT, "CALL"): Go("call", Emit.CALL),
            # Models sometimes forget the wrapper.
            (CONTENT, "FUNCTION"): Go("name", Emit.CALL),
            ("call", "FUNCTION"): Go("name"),
            ("call", "/CALL"): Go(CONTENT),
            ("name", ">"): Go("arguments", Emit.BEGIN),
            ("name", "/>"): Go("after", Emit.BEGIN, Emit.END),
            ("arguments", "PARAMETER"): Go("key"),
            ("key", ">"): Go("value"),
            ("key", "/>"): Go("arguments", Emit.EMPTY),
            ("value", "/PARAMETER"): Go("arguments"),
            # Models sometimes forget to close an element. What may end a value is data if the call goes on after it.
            ("value", "PARAMETER"): Go("key"),
            ("value", "\nFUNCTION"): Go("name", Emit.END, Emit.CALL),
            ("value", "/FUNCTION"): Go("end"),
            ("value", "/CALL"): Go("last"),
            ("value", "CALL"): Go("next"),
            ("end", "/CALL"): Go(CONTENT, Emit.END),
            **{(mode, "CALL"): Go("call", Emit.END, Emit.CALL) for mode in ("end", "last", "arguments")},
            **{(mode, "FUNCTION"): Go("name", Emit.END, Emit.CALL) for mode in ("end", "last", "next", "arguments")},
            ("arguments", "/FUNCTION"): Go("after", Emit.END),
            ("arguments", "/CALL"): Go(CONTENT, Emit.END),
            ("after", "/CALL"): Go(CONTENT),
            ("after", "CALL"): Go("call", Emit.CALL),
            ("after", "FUNCTION"): Go("name", Emit.CALL),
        },
        forced=forced,
    )


QWEN3_CODER = xml_functions("qwen3_coder", "<tool_call>", "</tool_call>")
STEP3P5 = xml_functions("step3p5", "<tool_call>", "</tool_call>")
MIMO = xml_functions("mimo", "<tool_call>", "</tool_call>", value="")
SEED_OSS = xml_functions("seed_oss", "<seed:tool_call>", "</seed:tool_call>", forced="json")
