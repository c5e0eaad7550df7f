"""`calibrate`: rebuilds the baseline from the stored history, reports how much data it rests on,
and hands it to the daemon.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from monitor.cli.common import database_of, moment, now_utc, print_json
from monitor.cli.configured import found_settings
from monitor.cli.known import chosen_rows
from monitor.config.detector import DetectorSettings
from monitor.config.settings import Settings
from monitor.daemon.detector_settings import drift_settings, thresholds
from monitor.daemon.driftstate import codec
from monitor.errors import UNMEASURED
from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.replay.history import Period, ReplayedTarget, replay_history
from monitor.show.learned import learned_record, print_learned
from monitor.show.terminal import console
from monitor.store import detectors
from monitor.store.database import open_writer, reading
from monitor.store.points import Cursor
from monitor.store.queries import TargetRow
from monitor.store.times import to_us


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A target, its replay, and the detector that learned from it."""

    row: TargetRow
    replayed: ReplayedTarget
    detector: Detector

    @property
    def counts(self) -> Mapping[str, int]:
        """How much was replayed, by kind."""
        return self.replayed.replay.counts


def run(args: Namespace) -> int:
    """Replays the history through a new detector, prints its baseline, stores it."""
    settings, database = _settings(found_settings(args)), database_of(args)
    found = _replayed(args, database, settings)
    learned = [one for one in found if one.counts["samples"]]
    if not args.dry_run and learned:
        _store(database, learned, settings)
    _print(args, found, settings)
    return 0 if learned and len(learned) == len(found) else UNMEASURED


def _settings(configured: Settings | None) -> DriftSettings:
    return thresholds(DetectorSettings(), {}) if configured is None else drift_settings(configured)


def _replayed(args: Namespace, database: str, settings: DriftSettings) -> list[Calibrated]:
    with reading(database) as connection:
        rows = chosen_rows(connection, args.target)
        return [_calibrated(connection, row, settings, args.since) for row in rows]


def _calibrated(
    connection: Connection, row: TargetRow, settings: DriftSettings, since: str
) -> Calibrated:
    now, detector = now_utc(), Detector()
    period = Period(moment(since, now), now, learn_before=False)
    replayed = replay_history(connection, row, settings, period=period, make=lambda: detector)
    return Calibrated(row, replayed, detector)


def _store(database: str, learned: Sequence[Calibrated], settings: DriftSettings) -> None:
    """Stores the states. A running daemon loads them within seconds, and continues with the samples
    that came since.
    """
    now_us = to_us(now_utc())
    engine = open_writer(database)
    try:
        with engine.begin() as connection:
            for one in learned:
                detectors.save(connection, one.row.id, _stored(one, settings, now_us))
    finally:
        engine.dispose()


def _stored(one: Calibrated, settings: DriftSettings, now_us: int) -> detectors.StoredDetector:
    how = codec(Detector)
    return detectors.StoredDetector(
        at_us=now_us,
        version=how.version_under(settings),
        state=how.dump(one.detector),
        armed=tuple(asdict(part) for part in one.detector.armed(settings)),
        cursor=one.replayed.end or Cursor(),
        pin=one.replayed.pin,
    )


def _print(args: Namespace, found: Sequence[Calibrated], settings: DriftSettings) -> None:
    records = [(one, learned_record(one.detector, settings)) for one in found]
    if args.json:
        targets = [{"name": one.row.name, **one.counts, **record} for one, record in records]
        print_json({"targets": targets})
        return
    out = console()
    for one, record in records:
        if one.counts["samples"]:
            print_learned(one.row.name, record)
        else:
            out.print(f"{one.row.name}: no baseline; no sample since {args.since}", style="yellow")
    if not records:
        out.print("the history has no target yet; start `vllm-canary run`")
    if args.dry_run:
        out.print("\nNothing was stored (--dry-run).", style="yellow")
