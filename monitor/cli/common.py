"""What several commands share: their error, times, JSON, and which database they read."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from monitor.errors import USAGE, UserError

JsonObject = Mapping[str, object]


class CommandError(UserError):
    """A command cannot do what was requested."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        self.exit_code = code
        super().__init__(text)


_AGO = re.compile(r"^(\d+(?:\.\d+)?)(s|m|h|d|w)$")
_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def moment(text: str | None, now: datetime) -> datetime | None:
    """`2h` or `7d` ago, or an ISO 8601 time (local if it names no zone). Raises CommandError."""
    if text is None:
        return None
    ago = _AGO.match(text.strip())
    try:
        if ago:
            return now - timedelta(seconds=float(ago[1]) * _UNIT[ago[2]])
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):  # the second: before the year 1
        raise CommandError(
            f"{text!r} is not a time; give 2h or 7d for that long ago, or ISO 8601, for example "
            "2026-11-30T08:00"
        ) from None


def database_of(args: Namespace) -> str:
    """The history that a reading command opens: --db, else the configured one, else the one that
    `--url` commands use. Raises ConfigError.
    """
    if args.db is not None:
        return str(args.db)
    from monitor.cli.configured import database_at  # noqa: PLC0415 - --db saves 100 ms of pydantic

    return database_at(args.config)


def no_such(what: str, name: str, where: str, known: list[str], plural: str | None = None) -> str:
    """The sentence for a name that does not exist, with those that do."""
    names = ", ".join(known) or "none yet"
    return f"there is no {what} {name!r} {where}; known {plural or f'{what}s'}: {names}"


def print_json(value: JsonObject) -> None:
    """Prints one JSON object: indented on a terminal, compact in a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def now_utc() -> datetime:
    """The current time; commands read the clock nowhere else."""
    return datetime.now(UTC)
