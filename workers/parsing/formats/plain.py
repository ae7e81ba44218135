"""No markup: the whole output is text.

It is sunny.
"""

from __future__ import annotations

from workers.parsing.spec import Format

PLAIN = Format(name="plain")
