"""Values from a server's JSON, which may be of any type and size. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from monitor.text import whole_text

#: Larger counts and figures are taken as unknown: no database column holds them, and no float tells
#: two of them apart.
LARGEST = 2**53


def number(value: object) -> float | None:
    """A finite number, or None: JSON has strings and 400 digits, Python's reader NaN and inf."""
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not -LARGEST < value < LARGEST
    ):
        return None
    return float(value) if math.isfinite(value) else None


def whole_number(value: object) -> int | None:
    """A count (0 or more), or None."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
    return value if is_count and isinstance(value, int) else None


def text(value: object) -> str | None:
    """A text that every file and database can hold, or None."""
    return whole_text(value) if isinstance(value, str) else None


def items(value: object) -> list[object]:
    """The items of a list; none where the value is not a list."""
    return value if isinstance(value, list) else []


def members(value: object) -> Mapping[str, object]:
    """The members of an object; none where the value is not an object."""
    return value if isinstance(value, dict) else {}


def error_message(body: object) -> str:
    """The message inside an error body; vLLM sends an object under `error`, its authentication
    layer a plain string.
    """
    # A sentence, not data: U+0000 needs no mark in it.
    return whole_text(_error_message(body).replace("\0", " "))


def _error_message(body: object) -> str:
    error = members(body).get("error")
    if isinstance(error, dict):
        candidates = (error.get("message"), error.get("type"))
    else:
        candidates = (error, members(body).get("detail"))
    return next(
        (found for found in candidates if isinstance(found, str) and found),
        "an error without a message",
    )


def shortened(data: bytes, limit: int = 120) -> str:
    """Bytes from a server as one printable line for a message."""
    line = data[: limit * 4].decode("utf-8", errors="replace")
    line = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
