"""Bodies that no later step could handle are refused as such, with the field's name where there is one."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from api.bodies import MAX_DEPTH, parse_object, read_json_object
from tasks.errors import InvalidRequest, PayloadTooLarge, TokenyardError, UnsupportedEncoding

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def request_of(body: bytes, chunk: int = 1 << 16, **headers: str) -> Request:
    parts = [body[i : i + chunk] for i in range(0, len(body), chunk)] or [b""]

    async def receive() -> dict[str, Any]:
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": named}, receive)


async def refused(body: bytes, max_bytes: int = 1000, **headers: str) -> TokenyardError:
    with pytest.raises(TokenyardError) as caught:
        await read_json_object(request_of(body, 1 << 16, **headers), max_bytes)
    return caught.value


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.booleans())
def test_a_json_object_is_read_as_it_is(value: dict[str, Any], ascii_only: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except InvalidRequest as error:
        assert error.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"messages": [{"role": "user", "content": "a \ud800 b"}]}', "messages.0.content"),
        (rb'{"tools": [{"function": {"name": "\uDFFF"}}]}', "tools.0.function.name"),
        (rb'{"a": {"b\udc00": 1}}', "a.b\ufffd"),
        (rb'{"stop": ["x", "\ud83d"]}', "stop.1"),
        (rb'{"prompt": "\ude00\ud83d"}', "prompt"),
    ],
)
def test_a_lone_surrogate_is_refused_with_its_field(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest, match="surrogate") as caught:
        parse_object(body)
    assert caught.value.param == param and caught.value.message.encode()


def test_a_surrogate_pair_is_a_character() -> None:
    assert parse_object(rb'{"a": "\ud83d\ude42"}') == {"a": "\U0001f642"}


@pytest.mark.parametrize("opening", [b'{"a": ', b'{"a": [', b'{"a": [0, {"b": '], ids=repr)
def test_what_is_nested_too_deeply_is_refused(opening: bytes) -> None:
    for depth in (MAX_DEPTH, 500, 100_000):
        with pytest.raises(InvalidRequest, match=f"nested deeper than {MAX_DEPTH}"):
            closing = bytes({91: 93, 123: 125}[c] for c in reversed(opening) if c in b"[{")
            parse_object(opening + b"[" * depth + b"]" * depth + closing)
        with pytest.raises(InvalidRequest, match=f"nested deeper than {MAX_DEPTH}"):
            parse_object(b'{"a":' * (depth + 1) + b"1" + b"}" * (depth + 1))


def test_many_brackets_are_not_deep_ones() -> None:
    wide = json.dumps({"a": [[i, {"b": []}] for i in range(1000)]}).encode()
    assert len(parse_object(wide)["a"]) == 1000
    deepest = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    assert parse_object(deepest)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"null", b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff", b'{"a": "\xed\xa0\x80"}']
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_object(body)
    assert not body or pytest.raises(InvalidRequest, parse_object, b"\x00" + body)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
}


@pytest.mark.parametrize("encoding", COMPRESSORS)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
async def test_a_compressed_body_is_read(encoding: str, chunk: int) -> None:
    body = json.dumps({"a": "x" * 500}).encode()
    request = request_of(COMPRESSORS[encoding](body), chunk=chunk, content_encoding=encoding)
    assert await read_json_object(request, 1000) == (body, {"a": "x" * 500})


async def test_a_body_is_limited_as_sent_and_as_decompressed() -> None:
    bomb = gzip.compress(b'{"a": "' + b"x" * 10_000_000 + b'"}')
    assert isinstance(await refused(bomb, 20_000, content_encoding="gzip"), PayloadTooLarge)
    assert isinstance(await refused(b"x" * 1001), PayloadTooLarge)
    assert isinstance(await refused(b"{}", content_length="1001"), PayloadTooLarge)
    assert await read_json_object(request_of(b"{}", content_length="many"), 1000) == (b"{}", {})


@pytest.mark.parametrize("encoding", ["", *COMPRESSORS])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
async def test_the_limit_is_met_and_not_exceeded(encoding: str, chunk: int) -> None:
    body = json.dumps({"a": "x" * 500}).encode()
    sent = COMPRESSORS[encoding](body) if encoding else body
    headers = {"content_encoding": encoding} if encoding else {}
    assert (await read_json_object(request_of(sent, chunk, **headers), len(body)))[0] == body
    with pytest.raises(PayloadTooLarge):
        await read_json_object(request_of(sent, chunk, **headers), len(body) - 1)


async def test_a_bomb_is_given_up_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self._decoder = make(bits)

        @property
        def eof(self) -> bool:
            return self._decoder.eof

        def decompress(self, part: bytes, most: int) -> bytes:
            assert most > 0, "zero means without limit"
            made.append(len(out := self._decoder.decompress(part, most)))
            return out

    monkeypatch.setattr("api.bodies.zlib.decompressobj", Counting)
    bomb = gzip.compress(b"x" * 5_000_000, mtime=0)
    for chunk in (1, 100, 1 << 16):
        made.clear()
        with pytest.raises(PayloadTooLarge):
            await read_json_object(request_of(bomb, chunk, content_encoding="gzip"), 1000)
        assert sum(made) <= 1001


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip", "nonsense"])
async def test_other_encodings_are_refused_by_name(encoding: str) -> None:
    error = await refused(b"{}", content_encoding=encoding)
    assert isinstance(error, UnsupportedEncoding) and error.status == 415
    assert repr(encoding) in error.message and "gzip, deflate" in error.message


@pytest.mark.parametrize("body", [b"{}", gzip.compress(b"{}", mtime=0)[:-9], b"\x1f\x8b"])
async def test_what_does_not_decompress_is_refused(body: bytes) -> None:
    assert isinstance(await refused(body, content_encoding="gzip"), InvalidRequest)
