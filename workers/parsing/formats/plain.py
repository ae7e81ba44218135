"""No markup: all of the output is text for the reader.

It is sunny.
"""

from __future__ import annotations

from workers.parsing.spec import Format

PLAIN = Format(name="plain")
