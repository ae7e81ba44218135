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
    },
    modes={
        "name": Mode(Sink.NAME),
        "arguments": Mode(Sink.SKIP),
        "key": Mode(Sink.KEY),
        "value": Mode(Sink.VALUE, "stripped"),
        "cdata": Mode(Sink.VALUE),
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
        ("after", "FUNCTION"): Go("name", Emit.CALL),
        ("after", "FUNCTION'"): Go("name", Emit.CALL),
    },
)
