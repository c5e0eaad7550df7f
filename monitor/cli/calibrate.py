"""`calibrate`: learn from the stored history what is normal, say from how much, and hand it to the
daemon.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from monitor.cli.common import (
    chosen_rows,
    config_arguments,
    database_of,
    found_settings,
    json_argument,
    moment,
    now_utc,
    print_json,
)
from monitor.errors import UNMEASURED

SINCE = "14d"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--target", metavar="NAME", help="only this target")
    parser.add_argument(
        "--since",
        metavar="TIME",
        default=SINCE,
        help=f"learn from then on: 2h, 7d, or ISO 8601 (default {SINCE})",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be learnt, keep nothing"
    )
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Replay the history through a detector that knows nothing, print what it learnt, keep it."""
    from monitor.config.detector import DetectorSettings  # noqa: PLC0415 - --help needs none of this
    from monitor.daemon.detector_settings import thresholds  # noqa: PLC0415
    from monitor.replay.history import Period, replay_history  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    configured, database = found_settings(args), database_of(args)
    settings = (
        thresholds(DetectorSettings(), {})
        if configured is None
        else thresholds(configured.detector, configured.classes)
    )
    now = now_utc()
    since = moment(args.since, now)
    with reading(database) as connection:
        rows = chosen_rows(connection, args.target)
        pasts = [
            (
                row,
                replay_history(
                    connection, row, settings, period=Period(since, now, learn_before=False)
                ),
            )
            for row in rows
        ]
    learnt = [(row, past) for row, past in pasts if past.replay.counts["samples"]]
    if not args.dry_run and learnt:
        _keep(database, learnt, settings)
    _print(args, pasts, settings)
    return 0 if learnt and len(learnt) == len(pasts) else UNMEASURED


def _keep(database: str, learnt: list[tuple[Any, Any]], settings: Any) -> None:
    """A daemon that runs takes it up within seconds; what came in since is in the history and
    follows.
    """
    from monitor.daemon.driftstate import codec  # noqa: PLC0415
    from monitor.store import detectors  # noqa: PLC0415
    from monitor.store.database import open_writer  # noqa: PLC0415
    from monitor.store.times import to_us  # noqa: PLC0415

    now_us = to_us(now_utc())
    engine = open_writer(database)
    try:
        with engine.begin() as connection:
            for row, past in learnt:
                detector = past.replay.drift.detector
                how: Any = codec(type(detector))
                armed = tuple(asdict(part) for part in detector.armed(settings))
                version, state = how.version_under(settings), how.dump(detector)
                detectors.save(
                    connection,
                    row.id,
                    detectors.StoredDetector(now_us, version, state, armed, past.end, past.pin),
                )
    finally:
        engine.dispose()


def _print(args: argparse.Namespace, pasts: list[tuple[Any, Any]], settings: Any) -> None:
    from monitor.show.learnt import learnt_record, print_learnt  # noqa: PLC0415
    from monitor.show.terminal import console  # noqa: PLC0415

    records = [
        (row.name, past.replay.counts, learnt_record(past.replay.drift.detector, settings))
        for row, past in pasts
    ]
    if args.json:
        print_json(
            {"targets": [{"name": name, **counts, **record} for name, counts, record in records]}
        )
        return
    for name, counts, record in records:
        if counts["samples"]:
            print_learnt(name, record)
        else:
            console().print(
                f"{name}: nothing was measured since {args.since}; there is nothing to learn from",
                style="yellow",
            )
    if not records:
        console().print("the history knows no target yet; `vllm-canary run` starts one")
    if args.dry_run:
        console().print("\nNothing was kept (--dry-run).", style="yellow")
