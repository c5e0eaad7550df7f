"""Drift detection in the daemon: new rows go into a target's detector, what it finds becomes
incidents, and what it knows is stored.

State and incidents are written in one transaction, with the ids of the last rows that are in them:
after a restart, or `kill -9`, the rows since then are fed again, and nothing is lost or counted
twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from monitor.daemon.driftstate import codec
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.model import Finding, Kind, Pin, Point, Severity
from monitor.replay.replay import Judging, known_us
from monitor.store import detectors, points
from monitor.store.detectors import StoredDetector
from monitor.store.points import Cursor
from monitor.store.times import from_us, to_us

log = logging.getLogger(__name__)
# rows of a kind at a time: a history that is learnt anew is fed over many steps, none of which
# holds up the writer
CHUNK = 1_000
SET_BACK_US = 10 * MINUTE_US  # a clock that was set back by more makes what is known useless
AHEAD_US = MINUTE_US
RETRY = timedelta(minutes=30)  # after a fault of detection
SUSPICIOUS, CALM = (
    1 / 3,
    0.2,
)  # a suspicion above the first raises the cadence until it is below the second


class DriftWatch:
    """One target's detector: what it knows, how far it has read, and what was stored of it. `make`
    gives one that knows nothing.
    """

    def __init__(self, target: str, settings: DriftSettings, make: Callable[[], Judging]) -> None:
        self._target = target
        self._settings = settings
        self._make = make
        codec(
            type(make())
        )  # at the start: it takes a quarter of a second, which must not fall into a measurement
        self._detector: Judging | None = None
        self._cursor = Cursor()
        self._now_us = 0
        self._pin = 0
        self._stamp: int | None = None  # of what is stored, as we wrote or read it
        self._noted: set[str] = set()  # GPUs of which the history knows that they are this target's
        self._told: set[tuple[str, ...]] = set()  # what was found when it was stored last
        self._note: str | None = None
        self._failure: Finding | None = None
        self._failed_at = datetime.fromtimestamp(0, UTC)
        self.learnt_anew: str | None = (
            None  # until the first findings: why what was open cannot be told from normal any more
        )
        self.suspicion = 0.0
        self.boosted = False

    def step(
        self,
        connection: Connection,
        target_id: int,
        gpus: Collection[str],
        pins: Sequence[Pin],
        now: datetime,
        watches: Callable[[str], bool] = lambda _gpu: True,
    ) -> list[Finding] | None:
        """Take up what is new and say what is found; None while old rows are still being read.
        Never raises for a fault of detection: that becomes a finding, and everything else goes on;
        a fault of the database is raised, and the writer tries it all again. `GPUs` are those seen
        now, `watches` whether one is this target's.
        """
        if self._failure is not None and now - self._failed_at >= RETRY:
            self._detector = None  # from what was stored before the fault
        set_back = to_us(now) < self._now_us - SET_BACK_US
        if (
            self._detector is None
            or set_back
            or detectors.stamp(connection, target_id) != self._stamp
        ):
            self._take_up(connection, target_id, gpus, pins, now)
        gpus = {
            *gpus,
            *(gpu for gpu in self._noted if watches(gpu)),
        }  # after a start of ours none may be seen yet
        if self._failure is not None:
            return [self._failure]
        try:
            return self._judge(connection, target_id, gpus, pins, to_us(now))
        except SQLAlchemyError:  # the database's, not ours: the writer tries all of this again
            raise
        except (
            Exception
        ) as error:  # a fault in the statistics must not end the watch over the server
            log.exception("target=%s drift detection failed and is off", self._target)
            self._failure, self._failed_at, self.suspicion, self.boosted = (
                self._failed(error, now),
                now,
                0.0,
                False,
            )
            return [self._failure]

    def _take_up(
        self,
        connection: Connection,
        target_id: int,
        gpus: Collection[str],
        pins: Sequence[Pin],
        now: datetime,
    ) -> None:
        """What is stored; or a detector that learns anew from the history, with the reason."""
        stored, self._failure = detectors.load(connection, target_id), None
        self._noted = set(points.noted_gpus(connection, target_id))
        made = self._make()
        how = codec(type(made))
        self._stamp = None if stored is None else stored.at_us
        if stored is not None:
            try:
                if stored.version.partition("/")[0] != how.version:
                    raise ValueError(
                        "what is stored was written by another version of vllm-canary (state "
                        f"{stored.version})"
                    )
                if stored.version != how.version_under(self._settings):
                    raise ValueError(
                        "detector.block was changed, and what is stored is counted in blocks"
                    )
                if stored.at_us > to_us(now) + SET_BACK_US:
                    raise ValueError(
                        f"what is stored is dated {from_us(stored.at_us):%Y-%m-%d %H:%M} UTC: "
                        "the clock was set back"
                    )
                self._detector = how.load(stored.state)
            except ValueError as error:
                self._stamp = None  # so that it is said in the history at once
                self._note = self.learnt_anew = (
                    "what is normal is learnt anew from the history since "
                    f"{now:%Y-%m-%d %H:%M} UTC: {error}"
                )
                log.warning("target=%s %s", self._target, self._note)
            else:
                self._cursor, self._pin, self._note, self._now_us = (
                    stored.cursor,
                    stored.pin,
                    stored.note,
                    stored.at_us,
                )
                return
        remembered = now - timedelta(days=self._settings.remember_days)
        all_gpus = {*gpus, *points.gpus_of(connection, target_id)}
        self._detector, self._now_us = made, 0
        self._cursor, self._pin = (
            points.cursor_at(connection, target_id, all_gpus, remembered),
            newest(pins),
        )

    def _judge(
        self,
        connection: Connection,
        target_id: int,
        gpus: Collection[str],
        pins: Sequence[Pin],
        now_us: int,
    ) -> list[Finding] | None:
        detector, settings = self._detector, self._settings
        if detector is None:
            raise RuntimeError("there is no detector")
        if set(gpus) - self._noted:
            detectors.note_gpus(connection, target_id, sorted(gpus))
            self._noted |= set(gpus)
        caught_up = self._feed(connection, target_id, gpus, detector, now_us)
        if newest(pins) > self._pin:
            self._pin = newest(pins)
            detector.relearn(self._now_us)
        detector.advance(self._now_us, settings)
        found = detector.findings(self._target, self._now_us, settings) if caught_up else None
        self.suspicion = detector.suspicion(settings)
        self.boosted = self.suspicion > (CALM if self.boosted else SUSPICIOUS)
        told = self._told if found is None else {_gist(finding) for finding in found}
        since_us = now_us - (self._stamp or 0)
        due = (
            not 0 <= since_us < settings.block_s * SECOND_US
        )  # below 0: what is stored is of a clock that was ahead
        if told != self._told or due or (found is None and since_us > MINUTE_US):
            self._told = told
            self._save(connection, target_id, detector, now_us)
        return found

    def _feed(
        self,
        connection: Connection,
        target_id: int,
        gpus: Collection[str],
        detector: Judging,
        now_us: int,
    ) -> bool:
        """New rows, in the order in which they were known; whether these were all. Where there are
        more, every stream is read up to the same moment, so that a block never closes before its
        GPUs were seen.
        """
        after, newest_of_all = (
            self._cursor,
            points.newest(connection),
        )  # asked first: what is stored meanwhile is read the next time
        until = (
            now_us + AHEAD_US
        )  # rows from a clock that was ahead would close every block up to their time
        streams: dict[str, Sequence[tuple[int, Point]]] = {
            "sample": points.canaries_after(connection, target_id, after.sample, CHUNK, until),
            "server_reading": points.servers_after(
                connection, target_id, after.server_reading, CHUNK, until
            ),
            "gpu_reading": points.gpus_after(connection, gpus, after.gpu_reading, CHUNK, until)
            if gpus
            else [],
        }
        more = [
            max(known_us(point) for _, point in rows)
            for rows in streams.values()
            if len(rows) == CHUNK
        ]
        until_us = min(more, default=None)
        taken = {name: list(_until(rows, until_us)) for name, rows in streams.items()}
        for point in sorted((point for rows in taken.values() for _, point in rows), key=known_us):
            detector.observe(point, self._settings)
        looked_through = after if until_us is not None else newest_of_all
        ends = {
            name: max([getattr(looked_through, name), *(row for row, _ in rows[-1:])])
            for name, rows in taken.items()
        }
        self._cursor = Cursor(**ends)
        self._now_us = max(self._now_us, now_us if until_us is None else until_us)
        return until_us is None

    def _save(self, connection: Connection, target_id: int, detector: Judging, now_us: int) -> None:
        how = codec(type(detector))
        armed: list[dict[str, Any]] = [asdict(part) for part in detector.armed(self._settings)]
        version, state = how.version_under(self._settings), how.dump(detector)
        stored = StoredDetector(
            now_us, version, state, tuple(armed), self._cursor, self._pin, self._note
        )
        detectors.save(connection, target_id, stored)
        self._stamp = now_us

    def _failed(self, error: Exception, now: datetime) -> Finding:
        why = f"{type(error).__name__}: {error}"
        return Finding(
            kind=Kind.MONITOR,
            target=self._target,
            subject="drift detection",
            severity=Severity.WARNING,
            summary=f"drift detection of {self._target} is off after a fault of its own "
            f"({why}); the server is still watched. It is tried "
            "again every half an hour; `vllm-canary calibrate` makes it learn anew. Please "
            "report this with the log",
            since=now,
            evidence={"error": why},
        )


def _gist(finding: Finding) -> tuple[str, ...]:
    return (*finding.key, finding.severity.value, finding.cause.value if finding.cause else "")


def newest(pins: Sequence[Pin]) -> int:
    """The newest pin's number; 0 where there is none."""
    return max((pin.id for pin in pins), default=0)


def _until(rows: Iterable[tuple[int, Point]], until_us: int | None) -> Iterable[tuple[int, Point]]:
    for row in rows:
        if until_us is not None and known_us(row[1]) > until_us:
            return
        yield row
