"""The resumable JSON reader agrees with the standard library's, at any split."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.parsing.partial_json import MAX_DEPTH, Reader, Status

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def read(chunks: list[str]) -> tuple[str, Status, str]:
    """(output, status, unread text), with the state saved between chunks."""
    state, out, status = Reader().dump(), "", Status.MORE
    for at, chunk in enumerate(chunks):
        reader = Reader(*json.loads(json.dumps(state)))
        stopped, more, status = reader.read(chunk, 0)
        state, out = reader.dump(), out + more
        if status is not Status.MORE:
            return out, status, chunk[stopped:] + "".join(chunks[at + 1 :])
    return out, status, ""


@settings(max_examples=150, deadline=None)
@given(values, st.booleans(), st.sampled_from([None, 2]), st.integers(1, 7))
def test_valid_json_comes_out_as_it_went_in(value: object, ascii_only: bool, indent: int | None, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    chunks = [text[at : at + size] for at in range(0, len(text), size)] + ["; rest"]
    assert read(chunks) == (text, Status.DONE, "; rest")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[],:"\\ \n0123eE+-.truefalsn\x01', max_size=24))
def test_what_is_read_whole_is_json_and_what_fails_is_not(text: str) -> None:
    out, status, rest = read(list(text + ";"))
    assert read([text + ";"]) == (out, status, rest)
    if status is Status.DONE:
        json.loads(out)
    elif text.lstrip().startswith(("{", "[")):
        try:
            json.JSONDecoder(strict=False).raw_decode((text + ";").lstrip(" \n"))
        except ValueError:
            return
        raise AssertionError(f"{text!r} is JSON and was refused")


def test_depth_is_bounded() -> None:
    assert read(["[" * (MAX_DEPTH + 1)])[1] is Status.FAIL
    assert read(["[" * MAX_DEPTH])[1] is Status.MORE
