"""Drift detection in the daemon: new rows go into a target's detector, and its state is stored.

State and incidents are written in one transaction, with the ids of the last rows that are in the
state: after a restart, or `kill -9`, the rows since then are fed again, and no row is lost or
counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from monitor.daemon.driftstate import codec
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.judge.evaluator.drift import Drift, DriftDetector
from monitor.model import Finding, Kind, Pin, Point, Severity, from_us, known_us, to_us
from monitor.store import detectors, points
from monitor.store.detectors import StoredDetector
from monitor.store.points import Cursor

log = logging.getLogger(__name__)
# rows of a kind that are fed at a time: a long history is fed over many steps, none of which blocks
# the writer for long
CHUNK = 1_000
SET_BACK_US = 10 * MINUTE_US  # after a larger step back of the clock, the state is useless
AHEAD_US = MINUTE_US
RETRY = timedelta(minutes=30)  # after a fault of detection
# a suspicion above the first raises the cadence until it is below the second
SUSPICIOUS, CALM = 1 / 3, 0.2
NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class _Step:
    """The input of one step. `gpus`: the target's GPUs."""

    connection: Connection
    target_id: int
    gpus: Collection[str]
    pins: Sequence[Pin]
    now: datetime

    @property
    def now_us(self) -> int:
        return to_us(self.now)

    @property
    def newest_pin(self) -> int:
        return max((pin.id for pin in self.pins), default=0)


class DriftWatch:
    """One target's detector: its state, the rows that it has read, and what of it was stored.
    `make` returns an untrained detector.
    """

    def __init__(
        self, target: str, settings: DriftSettings, make: Callable[[], DriftDetector]
    ) -> None:
        self._target = target
        self._settings = settings
        self._make = make
        # at the start: it takes a quarter of a second, which must not fall into a measurement
        self._codec = codec(type(make()))
        self._drift: Drift | None = None
        self._cursor = Cursor()
        self._now_us = 0
        self._pin = 0
        self._stamp: int | None = None  # time of the stored state, as last written or read here
        self._known_gpus: set[str] = set()  # stored as this target's
        self._stored_gist: set[tuple[str, ...]] = set()  # of the findings when the state was stored
        self._note: str | None = None
        self._failure: Finding | None = None
        self._failed_at = NEVER
        # why the baseline is rebuilt, until the first findings after it: what was open before
        # can then no longer be judged
        self.relearned: str | None = None
        self.suspicion = 0.0
        self.suspects = False

    def step(
        self,
        connection: Connection,
        target_id: int,
        gpus: Collection[str],
        pins: Sequence[Pin],
        now: datetime,
        watches: Callable[[str], bool] = lambda _gpu: True,
    ) -> list[Finding] | None:
        """Feeds what is new and returns the findings; None while old rows are still being read.

        A fault of detection becomes a finding and stops nothing else. A fault of the database is
        raised, and the writer tries the whole step again. `gpus` are those seen now; `watches`
        tells whether a GPU belongs to this target.
        """
        step = _Step(connection, target_id, gpus, pins, now)
        if self._must_load(step):
            self._load(step)
        if self._failure is not None:
            return [self._failure]
        # right after a start no GPU may have been read yet
        gpus = {*gpus, *(gpu for gpu in self._known_gpus if watches(gpu))}
        try:
            return self._judge(_Step(connection, target_id, gpus, pins, now))
        except SQLAlchemyError:
            raise
        except Exception as error:  # a fault in the statistics must not end the watch
            log.exception("target=%s drift detection failed and is off", self._target)
            self._failure, self._failed_at = self._failed(error, now), now
            self.suspicion, self.suspects = 0.0, False
            return [self._failure]

    def _must_load(self, step: _Step) -> bool:
        if self._failure is not None and step.now - self._failed_at >= RETRY:
            self._drift = None  # starts again from the state before the fault
        set_back = step.now_us < self._now_us - SET_BACK_US
        stamp = detectors.stamp(step.connection, step.target_id)
        return self._drift is None or set_back or stamp != self._stamp

    def _load(self, step: _Step) -> None:
        """Loads the stored state, or starts to relearn from the history and says why."""
        stored, self._failure = detectors.load(step.connection, step.target_id), None
        self._known_gpus = set(points.noted_gpus(step.connection, step.target_id))
        self._stamp = None if stored is None else stored.at_us
        if stored is not None:
            try:
                detector = self._decoded(stored, step.now_us)
            except ValueError as error:
                self._must_relearn(str(error), step.now)
            else:
                self._drift = Drift(self._target, detector, self._settings)
                self._cursor, self._pin = stored.cursor, stored.pin
                self._note, self._now_us = stored.note, stored.at_us
                return
        self._begin(step)

    def _decoded(self, stored: StoredDetector, now_us: int) -> DriftDetector:
        """Returns a stored detector. Raises ValueError if it cannot be used."""
        if stored.version.partition("/")[0] != self._codec.version:
            raise ValueError(
                f"the stored state was written by another version of vllm-canary ({stored.version})"
            )
        if stored.version != self._codec.version_under(self._settings):
            raise ValueError("detector.block was changed, and the stored state is in blocks")
        if stored.at_us > now_us + SET_BACK_US:
            raise ValueError(
                f"the stored state is dated {from_us(stored.at_us):%Y-%m-%d %H:%M} UTC: "
                "the clock was set back"
            )
        return self._codec.load(stored.state)

    def _must_relearn(self, reason: str, now: datetime) -> None:
        self._stamp = None  # so that the note is stored at once
        self._note = self.relearned = (
            f"the baseline is being rebuilt from the history since {now:%Y-%m-%d %H:%M} UTC: "
            f"{reason}"
        )
        log.warning("target=%s %s", self._target, self._note)

    def _begin(self, step: _Step) -> None:
        remembered = step.now - timedelta(days=self._settings.remember_days)
        gpus = {*step.gpus, *points.gpus_of(step.connection, step.target_id)}
        self._drift = Drift(self._target, self._make(), self._settings)
        self._cursor = points.cursor_at(step.connection, step.target_id, gpus, remembered)
        self._now_us, self._pin = 0, step.newest_pin

    def _judge(self, step: _Step) -> list[Finding] | None:
        drift = self._drift
        if drift is None:
            raise RuntimeError("there is no detector")
        self._note_gpus(step)
        caught_up = self._feed(step, drift)
        if step.newest_pin > self._pin:
            self._pin = step.newest_pin
            drift.relearn(self._now_us)
        drift.advance(self._now_us)
        found = drift.findings(self._now_us) if caught_up else None
        self.suspicion = drift.suspicion()
        self.suspects = self.suspicion > (CALM if self.suspects else SUSPICIOUS)
        if self._is_due(step.now_us, found):
            self._save(step, drift)
        return found

    def _note_gpus(self, step: _Step) -> None:
        if set(step.gpus) - self._known_gpus:
            detectors.note_gpus(step.connection, step.target_id, sorted(step.gpus))
            self._known_gpus |= set(step.gpus)

    def _is_due(self, now_us: int, found: list[Finding] | None) -> bool:
        """Whether to store the state: the findings changed, a block has passed, or a minute of
        catching up.
        """
        since_us = now_us - (self._stamp or 0)
        # negative: the stored state is from a clock that was ahead
        block_passed = not 0 <= since_us < self._settings.block_s * SECOND_US
        if found is None:
            return block_passed or since_us > MINUTE_US
        gist, before = {_gist(finding) for finding in found}, self._stored_gist
        self._stored_gist = gist
        return block_passed or gist != before

    def _feed(self, step: _Step, drift: Drift) -> bool:
        """Feeds new rows, in the order in which they were known; returns whether these were all.

        If there are more, every stream is read up to the same time, so that no block closes before
        its GPUs were seen.
        """
        # read first: what is stored meanwhile is fed by the next step
        after, newest = self._cursor, points.newest(step.connection)
        streams = self._new_rows(step, after)
        full = (rows for rows in streams.values() if len(rows) == CHUNK)
        until_us = min((max(known_us(point) for _, point in rows) for rows in full), default=None)
        taken = {name: list(_until(rows, until_us)) for name, rows in streams.items()}
        for point in sorted((point for rows in taken.values() for _, point in rows), key=known_us):
            drift.observe(point)
        read = after if until_us is not None else newest
        ends = {
            name: max([getattr(read, name), *(row for row, _ in rows[-1:])])
            for name, rows in taken.items()
        }
        self._cursor = Cursor(**ends)
        self._now_us = max(self._now_us, step.now_us if until_us is None else until_us)
        return until_us is None

    def _new_rows(self, step: _Step, after: Cursor) -> dict[str, Sequence[tuple[int, Point]]]:
        # rows from a clock that was ahead would close every block up to their time
        c, until = step.connection, step.now_us + AHEAD_US
        gpus = points.gpus_after(c, step.gpus, after.gpu_reading, CHUNK, until) if step.gpus else []
        return {
            "sample": points.canaries_after(c, step.target_id, after.sample, CHUNK, until),
            "server_reading": points.servers_after(
                c, step.target_id, after.server_reading, CHUNK, until
            ),
            "gpu_reading": gpus,
        }

    def _save(self, step: _Step, drift: Drift) -> None:
        stored = StoredDetector(
            at_us=step.now_us,
            version=self._codec.version_under(self._settings),
            state=self._codec.dump(drift.detector),
            armed=tuple(asdict(part) for part in drift.armed()),
            cursor=self._cursor,
            pin=self._pin,
            note=self._note,
        )
        detectors.save(step.connection, step.target_id, stored)
        self._stamp = step.now_us

    def _failed(self, error: Exception, now: datetime) -> Finding:
        why = f"{type(error).__name__}: {error}"
        return Finding(
            kind=Kind.MONITOR,
            target=self._target,
            subject="drift detection",
            severity=Severity.WARNING,
            summary=(
                f"drift detection of {self._target} is off after an internal error ({why}); the "
                "server is still monitored. It is retried every 30 min; `vllm-canary calibrate` "
                "rebuilds the baseline. Please report this with the log"
            ),
            since=now,
            evidence={"error": why},
        )


def _gist(finding: Finding) -> tuple[str, ...]:
    return (*finding.key, finding.severity.value, finding.cause.value if finding.cause else "")


def _until(rows: Iterable[tuple[int, Point]], until_us: int | None) -> Iterable[tuple[int, Point]]:
    for row in rows:
        if until_us is not None and known_us(row[1]) > until_us:
            return
        yield row
