"""Prefixed ids that sort by the time they were made."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """`prefix` and 26 characters: 48 bits of milliseconds, then 80 random bits (the ULID layout, in lower case)."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    return prefix + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
