"""Prefixed ids that sort by creation time."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]


def new_id(prefix: str) -> str:
    """Return `prefix` and 26 characters: 48 bits of milliseconds, then 80 random bits (a ULID in lower case)."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    return prefix + "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])
