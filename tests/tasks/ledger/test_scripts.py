"""The scripts' arguments and replies: one codec, accurate heads, and names that come from Python only."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tasks.ledger import keys, scripts
from tasks.ledger.store import TERMINAL, Commit, Message, NewJob, Refused, StageState, Status
from tasks.specs import STAGES
from tests.conftest import RedisServer, quick_settings

SETTINGS = quick_settings()
MESSAGE = Message("job_1", "render", "render", b"body")
JOB = NewJob("job_1", "/v1/x", "m", ("render",), "interactive", False, False, 60.0, 60)

CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "submit": lambda: scripts.submit_call(SETTINGS, JOB, {"request": b"{}"}, [MESSAGE], 10),
    "claim": lambda: scripts.claim_call(SETTINGS, "job_1", "render", "w", ("request",)),
    "commit": lambda: scripts.commit_call(SETTINGS, "job_1", "render", "w", Commit()),
    "renew": lambda: scripts.renew_call(SETTINGS, "w", [("job_1", "render")]),
    "retry": lambda: scripts.retry_call(SETTINGS, "job_1", "w", MESSAGE, 0.0, counted=True),
    "redispatch": lambda: scripts.redispatch_call(SETTINGS, MESSAGE),
}


def source(name: str) -> str:
    return (resources.files("tasks.ledger") / "lua" / f"{name}.lua").read_text()


def head(name: str, part: str) -> str:
    """Return what a script's head says under `call`, `reply` or `keys`."""
    lines = [line[3:] for line in source(name).splitlines() if line.startswith("--")]
    text = "\n".join(lines)
    found = re.search(rf"(?ms)^{part} +(.*?)(?=^\w+ +|^$|\Z)", text)
    assert found, f"the head of {name}.lua has no `{part}`"
    return found[1]


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_each_script_says_what_it_takes_and_gives(name: str) -> None:
    assert all(head(name, part) for part in ("call", "reply", "keys"))
    used = set(re.findall(r"\bcall\.(\w+)", source(name)))
    said = set(re.findall(r"\w+", head(name, "call")))
    assert used <= said, f"{name}.lua reads {used - said}, which its head does not list"
    if name in CALLS:
        assert used <= CALLS[name]().keys() <= said | {"queue", "body"}


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_names_come_from_python_alone(name: str) -> None:
    code = re.sub(r"--[^\n]*", "", source(name) + source("prelude"))
    literals = set(re.findall(r"'([^']*)'", code))
    assert not [literal for literal in literals if literal.startswith("ty:")]
    states = {state.value for state in StageState} | {status.value for status in Status}
    # These two are also outcomes of a claim.
    assert literals & states <= {"done", "expired"}
    shared = scripts.shared_names()
    assert all(f'{key} = "{value}"' in shared for key, value in keys.ALL.items())
    assert all(f"{status.value} = true" in shared for status in TERMINAL) and all(stage in shared for stage in STAGES)


PACKED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), PACKED, max_size=5))
def test_the_codec_gives_back_what_it_was_given(call: dict[str, Any]) -> None:
    assert scripts.unpack(scripts.pack(call)) == {name: as_bytes(value) for name, value in call.items()}


def as_bytes(value: Any) -> Any:
    """Return a value as the codec returns it: strings as bytes, nested names too."""
    if isinstance(value, dict):
        return {name.encode(): as_bytes(one) for name, one in value.items()}
    return [as_bytes(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00\xff\n", b"x" * 70_000, "é 東京", 0, -1, 2**40, 0.25, True, False, [b"a", [1, 2]], {"a": b"b"}],
    ids=repr,
)
def test_values_go_through_lua_and_back(redis_server: RedisServer, value: Any) -> None:
    echo = "return cmsgpack.pack({given = cmsgpack.unpack(ARGV[1]).given})"
    with redis.Redis.from_url(redis_server.url) as client:
        answer = client.eval(echo, 0, scripts.pack({"given": value}))
    assert isinstance(answer, bytes)
    expected = value.encode() if isinstance(value, str) else as_bytes(value)
    assert scripts.unpack(answer) == {"given": expected}


def test_a_refused_claim_has_its_reason() -> None:
    assert scripts.claim_from("job_1", "render", "w", {"outcome": b"held"}) == Refused("held")
