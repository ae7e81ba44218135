"""MiniMax M3: nested elements, with a namespace marker before each tag.

]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="get_weather">
]<]minimax[>[<city>Oslo]<]minimax[>[</city>
]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>
"""

from __future__ import annotations

from workers.parsing.spec import CONTENT, Emit, Format, Go, Mode, Sink

_SPACE = "]<]minimax[>["

MINIMAX_M3 = Format(
    name="minimax_m3",
    markers={
        "CALLS": f"{_SPACE}<tool_call>",
        "/CALLS": f"{_SPACE}</tool_call>",
        "INVOKE": f'{_SPACE}<invoke name="',
        "INVOKE'": f"{_SPACE}<invoke name='",
        "INVOKE=": f"{_SPACE}<invoke name=",
        '">': '">',
        "'>": "'>",
        ">": ">",
        **{f"{quote}{space}/>": f"{quote}{space}/>" for quote in ('"', "'", "") for space in ("", " ")},
    },
    modes={
        "calls": Mode(Sink.GAP),
        "name": Mode(Sink.NAME),
        "arguments": Mode(Sink.BODY, "minimax_m3", "calls"),
    },
    rules={
        (CONTENT, "CALLS"): Go("calls"),
        ("calls", "/CALLS"): Go(CONTENT),
        **{("calls", f"INVOKE{quote}"): Go("name", Emit.CALL) for quote in ("", "'", "=")},
        **{("name", end): Go("arguments", Emit.BEGIN) for end in ('">', "'>", ">")},
        **{
            ("name", f"{quote}{space}/>"): Go("calls", Emit.BEGIN, Emit.END)
            for quote in ('"', "'", "")
            for space in ("", " ")
        },
    },
)
