"""MiniCPM 5: functions and params, named by an attribute; values raw or in CDATA.

<function name="get_weather"><param name="city">Oslo</param></function>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

MINICPM5 = Format(
    name="minicpm5",
    forced="json",
    markers={
        "FUNCTION": '<function name="',
        "FUNCTION'": "<function name='",
        "/FUNCTION": "</function>",
        "PARAM": '<param name="',
        "PARAM'": "<param name='",
        "/PARAM": "</param>",
        '">': '">',
        "'>": "'>",
        "CDATA": '"><![CDATA[',
        "CDATA'": "'><![CDATA[",
        "/CDATA": "]]></param>",
        **{f"{quote}{space}/>": f"{quote}{space}/>" for quote in "\"'" for space in ("", " ")},
        "\nFUNCTION": '\n<function name="',
        "\nFUNCTION'": "\n<function name='",
    },
    modes={
        "name": Mode(Sink.NAME),
        "arguments": Mode(Sink.SKIP),
        "key": Mode(Sink.KEY),
        "value": Mode(Sink.VALUE, "stripped"),
        "cdata": Mode(Sink.VALUE),
        "end": Mode(Sink.DOUBT, "end", "value"),
        "after": Mode(Sink.GAP),
    },
    rules={
        (CONTENT, "FUNCTION"): Go("name", Emit.CALL),
        (CONTENT, "FUNCTION'"): Go("name", Emit.CALL),
        ("name", '">'): Go("arguments", Emit.BEGIN),
        ("name", "'>"): Go("arguments", Emit.BEGIN),
        ("arguments", "PARAM"): Go("key"),
        ("arguments", "PARAM'"): Go("key"),
        ("key", '">'): Go("value"),
        ("key", "'>"): Go("value"),
        ("key", "CDATA"): Go("cdata"),
        ("key", "CDATA'"): Go("cdata"),
        ("value", "/PARAM"): Go("arguments"),
        ("cdata", "/CDATA"): Go("arguments"),
        ("arguments", "/FUNCTION"): Go("after", Emit.END),
        **{("name", end): Go("after", Emit.BEGIN, Emit.END) for end in ('"/>', '" />', "'/>", "' />")},
        **{("key", end): Go("arguments", Emit.EMPTY) for end in ('"/>', '" />', "'/>", "' />")},
        # An element may lack its end. What may end a value is data if the call goes on after it.
        ("value", "/FUNCTION"): Go("end"),
        **{("value", f"PARAM{quote}"): Go("key") for quote in ("", "'")},
        **{("value", f"\nFUNCTION{quote}"): Go("name", Emit.END, Emit.CALL) for quote in ("", "'")},
        **{
            (mode, f"FUNCTION{quote}"): Go("name", Emit.END, Emit.CALL)
            for mode in ("arguments", "end")
            for quote in ("", "'")
        },
        ("after", "FUNCTION"): Go("name", Emit.CALL),
        ("after", "FUNCTION'"): Go("name", Emit.CALL),
    },
)
