"""Calls as a name and pairs of `<arg_key>` and `<arg_value>`: GLM-4.5 and later, Ling 3, Laguna, Hunyuan 3 and 4, K2 Horizon.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

Hunyuan writes a separator after the name, and a section around all calls; K2 Horizon may add a type to each argument.
"""

from __future__ import annotations

from collections.abc import Mapping

from workers.parsing.spec import CONTENT, Emit, Forced, Format, Go, Mode, Sink


def arg_keys(
    name: str,
    tag: str = "{}",
    section: str = "",
    separator: str = "",
    types: bool = False,
    suffix: str = "",
    forced: Forced = "native",
) -> Format:
    """The table for one spelling: `tag` makes an element's name ("ifm|{}")."""

    def element(text: str) -> tuple[str, str]:
        return f"<{tag.format(text)}>", f"</{tag.format(text)}>"

    markers: dict[str, str] = {}
    for key, text in (("CALL", "tool_call"), ("KEY", "arg_key"), ("VALUE", "arg_value"), ("TYPE", "arg_type")):
        markers[key], markers[f"/{key}"] = element(text)
    for space in ("", " "):
        markers[f"VALUE{space}/"] = markers["VALUE"].removesuffix(">") + f"{space}/"
    markers[">"] = ">"
    modes: Mapping[str, Mode] = {
        "name": Mode(Sink.NAME),
        "arguments": Mode(Sink.SKIP),
        "key": Mode(Sink.KEY),
        "pair": Mode(Sink.SKIP),
        "empty": Mode(Sink.SKIP),
        "type": Mode(Sink.DROP),
        "value": Mode(Sink.VALUE),
        "end": Mode(Sink.DOUBT, "end", "value"),
        "json": Mode(Sink.BODY, "json_call", "calls"),
        "calls": Mode(Sink.GAP),
    }
    home = "calls" if section else CONTENT
    rules = {
        (CONTENT, "CALL"): Go("name", Emit.CALL),
        ("name", "KEY"): Go("key", Emit.BEGIN),
        ("name", "/CALL"): Go(home, Emit.BEGIN, Emit.END),
        ("arguments", "KEY"): Go("key"),
        ("arguments", "/CALL"): Go(home, Emit.END),
        ("key", "/KEY"): Go("pair"),
        ("pair", "VALUE"): Go("value"),
        ("value", "/VALUE"): Go("arguments"),
        ("pair", "VALUE/"): Go("empty", Emit.EMPTY),
        ("pair", "VALUE /"): Go("empty", Emit.EMPTY),
        ("empty", ">"): Go("arguments"),
        # An element may lack its end, and a key its value. What may end a value is data if the call goes on after it.
        ("name", "CALL"): Go("name", Emit.BEGIN, Emit.END, Emit.CALL),
        ("arguments", "CALL"): Go("name", Emit.END, Emit.CALL),
        ("key", "VALUE"): Go("value"),
        ("pair", "KEY"): Go("key"),
        ("pair", "/CALL"): Go(home, Emit.END),
        ("value", "KEY"): Go("key"),
        ("value", "/CALL"): Go("end"),
        ("end", "CALL"): Go("name", Emit.END, Emit.CALL),
        ("pair", "TYPE"): Go("type"),
        ("type", "/TYPE"): Go("pair"),
    }
    if section:
        markers["SECTION"], markers["/SECTION"] = element(section)
        rules[CONTENT, "SECTION"] = Go("calls")
        rules["calls", "CALL"] = Go("name", Emit.CALL)
        rules["calls", "/CALL"] = Go("calls")
        rules["calls", "/SECTION"] = Go(CONTENT)
        rules["end", "/SECTION"] = Go(CONTENT, Emit.END)
        rules["arguments", "/SECTION"] = Go(CONTENT, Emit.END)
    if separator:
        markers["SEPARATOR"] = element(separator)[0]
        rules["name", "SEPARATOR"] = Go("arguments", Emit.BEGIN)
    if types:
        # K2 Horizon can be prompted to write JSON in the same element.
        markers["{"] = "{"
        rules["name", "{"] = Go("json", Emit.READ)
    used = {marker for _, marker in rules}
    reached = {go.to for go in rules.values()}
    if not types:
        for rule in [rule for rule in rules if "TYPE" in rule[1]]:
            del rules[rule]
        used, reached = used - {"TYPE", "/TYPE"}, reached - {"type"}
    return Format(
        name=name,
        markers={marker: text for marker, text in markers.items() if marker in used},
        modes={mode: what for mode, what in modes.items() if mode in reached},
        rules=rules,
        suffix=suffix,
        forced=forced,
    )


_SUFFIX = r":[^\s>]+"

GLM45 = arg_keys("glm45")
LING3 = arg_keys("ling3")
POOLSIDE_V1 = arg_keys("poolside_v1")
HY_V3 = arg_keys("hy_v3", section="tool_calls", separator="tool_sep", suffix=_SUFFIX, forced="json")
HY_V4 = arg_keys("hy_v4", section="tool_calls", separator="tool_sep", suffix=_SUFFIX)
K2_HORIZON = arg_keys("k2_horizon", tag="ifm|{}", section="tool_calls", types=True)
