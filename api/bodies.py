"""Request bodies: read within their limit, decompressed, and parsed as JSON that every later step can handle.

A body is refused here with 400, 413 or 415, before any of it is used: if it is too large, has an unsupported encoding, is
not UTF-8 or not a JSON object, is nested too deeply, or has a string that is not valid Unicode (a lone surrogate).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final

from fastapi import Request

from tasks.errors import InvalidRequest, PayloadTooLarge, UnsupportedEncoding

MAX_DEPTH: Final = 128
"""Nested arrays and objects. JSON schemas of real tools have less than a tenth of it."""

_ENCODINGS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Supported content encodings with zlib's window bits for each; HTTP's `deflate` is zlib's format."""
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_json_object(request: Request, max_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """The request's body, and the JSON object that it is.

    Raises:
        PayloadTooLarge: it has more than `max_bytes`, as sent or decompressed.
        UnsupportedEncoding: its Content-Encoding is none that is read here.
        InvalidRequest: it is no JSON object, is nested too deeply, or has invalid Unicode; `param` names the field.
    """
    body = await read_body(request, max_bytes)
    return body, parse_object(body)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The request's body, decompressed; refused as soon as it is known to be too large."""
    too_large = PayloadTooLarge(f"The request body is larger than the limit of {max_bytes} bytes.")
    decoder = _decoder_for(request.headers.get("content-encoding", ""))
    if _announced_bytes(request) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        for piece in (part,) if decoder is None else _decompress(decoder, part, max_bytes - size + 1):
            size += len(piece)
            if size > max_bytes:
                raise too_large
            parts.append(piece)
    if decoder is not None and not decoder.eof and size:
        raise InvalidRequest("The compressed request body is cut off.")
    return b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any]:
    """A body as a JSON object."""
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The request body is not valid UTF-8: byte {error.start} is wrong.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    # A body with fewer brackets cannot be too deep, and need not be walked.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    if _SURROGATE_ESCAPE.search(body):
        for path, text in _strings(value, ()):
            if found := _SURROGATE.search(text):
                where = ".".join(map(str, path))
                raise InvalidRequest(
                    f"{where} has half of a surrogate pair (\\u{ord(found[0]):04x}): send valid Unicode",
                    param=where,
                )
    return value


def _announced_bytes(request: Request) -> int:
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else 0


def _decoder_for(encoding: str) -> Any:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _ENCODINGS:
        raise UnsupportedEncoding(f"The Content-Encoding {encoding!r} is not supported: send gzip, deflate, or none.")
    return zlib.decompressobj(_ENCODINGS[name])


def _decompress(decoder: Any, part: bytes, most: int) -> Iterator[bytes]:
    try:
        # Never more than `most` at once: a small body may grow a thousandfold.
        yield decoder.decompress(part, most)
    except zlib.error as error:
        raise InvalidRequest(f"The request body cannot be decompressed: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"The request body is nested deeper than {MAX_DEPTH} levels.")


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _strings(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every string of a value with its path; names of fields count for the field that they name."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, _SURROGATE.sub("\ufffd", name)), name
            yield from _strings(inner, (*path, _SURROGATE.sub("\ufffd", name)))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _strings(inner, (*path, place))
