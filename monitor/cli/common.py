"""What several commands share: which configuration, which database, which time."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from monitor.errors import USAGE, UserError


class CommandError(UserError):
    """A command cannot go on as asked."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        self.exit_code = code
        super().__init__(text)


def config_arguments(parser: argparse.ArgumentParser, url: bool = False) -> None:
    """-c FILE, --db, and --url for commands that can do with an address alone."""
    where = "config.yaml, then /etc/vllm-canary/config.yaml"
    parser.add_argument(
        "-c", "--config", metavar="FILE", help=f"configuration file (default: {where})"
    )
    parser.add_argument(
        "--db", metavar="PATH|URL", help="the database, instead of the configured one"
    )
    if url:
        parser.add_argument("--url", help="watch this server, without any configuration file")


def json_argument(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def filter_arguments(parser: argparse.ArgumentParser, since: str | None = None) -> None:
    """Which samples."""
    default = f" (default {since})" if since else ""
    parser.add_argument(
        "--since", metavar="TIME", default=since, help=f"from then on: 2h, 7d, or ISO 8601{default}"
    )
    parser.add_argument("--until", metavar="TIME", help="up to then")
    parser.add_argument("--target", metavar="NAME", help="only this target")
    parser.add_argument("--probe", metavar="NAME", help="only this probe")
    parser.add_argument(
        "--class", metavar="NAME", dest="traffic_class", help="only this traffic class"
    )


def check_names(connection: Any, args: argparse.Namespace) -> None:
    """--target, --probe and --class name what the history knows. Raises CommandError with the known
    names.
    """
    from monitor.store.queries import known_names  # noqa: PLC0415

    for what, given in (
        ("target", args.target),
        ("probe", args.probe),
        ("class", args.traffic_class),
    ):
        if given is not None and given not in (known := known_names(connection, what)):
            plural = "classes" if what == "class" else f"{what}s"
            raise CommandError(
                f"there is no {what} {given!r} in the history; known {plural}: "
                f"{', '.join(known) or 'none yet'}"
            )


def row_number(text: str) -> int:
    """The number of a row, for argparse; one that no database could hold is none."""
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError
    return number


_AGO = re.compile(r"^(\d+(?:\.\d+)?)(s|m|h|d|w)$")
_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def moment(text: str | None, now: datetime) -> datetime | None:
    """`2h` or `7d` ago, or an ISO 8601 time (local where it names no zone). Raises CommandError."""
    if text is None:
        return None
    ago = _AGO.match(text.strip())
    try:
        if ago:
            return now - timedelta(seconds=float(ago[1]) * _UNIT[ago[2]])
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):  # the second: before the year 1
        raise CommandError(
            f"{text!r} is no time; give 2h or 7d for that long ago, or ISO 8601 such as "
            "2026-11-30T08:00"
        ) from None


def load_context(args: argparse.Namespace) -> Any:
    """The settings a command works with: --url alone, or the configuration file. Raises ConfigError
    or CommandError.
    """
    from monitor.config.places import find_config  # noqa: PLC0415 - pydantic is heavy
    from monitor.config.settings import load_settings, settings_for_url  # noqa: PLC0415

    if getattr(args, "url", None) is not None:
        return settings_for_url(args.url, args.db)
    path = find_config(args.config)
    if path is None:
        raise CommandError(
            "there is no config.yaml here and none in /etc/vllm-canary; `vllm-canary init "
            "--url URL DIR` writes one, or give --url"
        )
    settings = load_settings(path)
    return settings if args.db is None else settings.model_copy(update={"database": args.db})


def database_of(args: argparse.Namespace) -> str:
    """Where the history is, for commands that only read: --db, else the configuration, else where
    `--url` keeps it.
    """
    if args.db is not None:
        return str(args.db)
    from monitor.config.places import default_database, find_config  # noqa: PLC0415
    from monitor.config.settings import load_settings  # noqa: PLC0415

    path = find_config(args.config)
    return str(default_database()) if path is None else load_settings(path).database


def found_settings(args: argparse.Namespace) -> Any:
    """The configuration, where there is one; None for commands that can do without. Raises
    ConfigError for one that is broken.
    """
    from monitor.config.places import find_config  # noqa: PLC0415
    from monitor.config.settings import load_settings  # noqa: PLC0415

    path = find_config(args.config)
    return None if path is None else load_settings(path)


def chosen_rows(connection: Any, name: str | None) -> list[Any]:
    """The targets of a history that a command is about. Raises CommandError for an unknown name."""
    from monitor.store.queries import targets  # noqa: PLC0415

    rows = targets(connection)
    if name is not None and name not in [row.name for row in rows]:
        raise CommandError(
            f"there is no target {name!r} in the history; known targets: "
            f"{', '.join(r.name for r in rows) or 'none yet'}"
        )
    return [row for row in rows if name in {None, row.name}]


def chosen_targets(settings: Any, name: str | None) -> list[Any]:
    """The targets a command is about. Raises CommandError for an unknown name."""
    if name is None:
        return list(settings.targets)
    target = settings.target(name)
    if target is None:
        raise CommandError(
            f"there is no target {name!r}; the configuration has: "
            f"{', '.join(t.name for t in settings.targets)}"
        )
    return [target]


def chosen_probes(settings: Any, names: list[str]) -> list[Any]:
    """The probes a command is about. Raises ConfigError or CommandError."""
    from monitor.config.probes import load_probes  # noqa: PLC0415

    probes = load_probes(Path(settings.probes), settings)
    known = {probe.name: probe for probe in probes}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandError(f"there is no probe {unknown[0]!r}; known probes: {', '.join(known)}")
    return [known[name] for name in names] if names else list(probes)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object, readable on a terminal, compact in a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def now_utc() -> datetime:
    """The one place where commands read the clock."""
    return datetime.now(UTC)
