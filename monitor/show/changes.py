"""Changes of a server's identity, reduced to what differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monitor.model import Change
from monitor.text import one_line


def differences(changes: Iterable[Change]) -> list[Change]:
    """Returns the changes with each mapping split into the keys that differ: a change of
    `environment` becomes changes of `environment.VLLM_USE_V1` and so on.
    """
    return [part for change in changes for part in _parts(change)]


def _parts(change: Change) -> Sequence[Change]:
    before, after = change.before, change.after
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return [change]
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return differences(
        Change(f"{change.field}.{key}", before.get(key), after.get(key)) for key in keys
    )


def value_text(value: Any, limit: int) -> str:
    """Returns a JSON value as one printable line; `–` where there is none."""
    if value is None:
        return "–"
    return one_line(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), limit
    )
