"""History in virtual time: what a daemon would have stored in hours or days, in seconds of work.

The same engine, cards and scenarios as the server in real time, and a canary that keeps the
daemon's timetable (timetable.py), with looks at the cards every second in windows of five
(looks.py).
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TextIO

from monitor.errors import USAGE, UserError
from monitor.simulate.assemble import make_world, switch
from monitor.simulate.leap import LeapingWorld
from monitor.simulate.looks import LookedAtCard
from monitor.simulate.noise import Noise
from monitor.simulate.pinfile import to_yaml
from monitor.simulate.records import GPU_FIELDS, READING_FIELDS, SAMPLE_FIELDS, SERVER_FIELDS, iso
from monitor.simulate.scenario import Scenario
from monitor.simulate.shipped import shipped_probes
from monitor.simulate.timetable import Timetable
from monitor.simulate.visitor import Visitor

EPOCH = datetime(
    2026, 1, 5, tzinfo=UTC
)  # a Monday; a fixed one, so that the same seed writes the same file
TARGET = "simulated"
COLD_S = 1.0  # as `simulate` has it
ONSET_SHARE = (
    0.5  # a scenario begins when half of the time has passed: what is normal must be known first
)
_SERVER_VALUES = attrgetter(*SERVER_FIELDS)


class ExportError(UserError):
    """A file that cannot be written, or a history without its scenario."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `str` tells it to a person."""

    file: Path
    readings_file: Path
    pins_file: Path
    samples: int
    readings: int
    pins: int
    hours: float
    took_s: float
    scenario: Scenario
    onset: str

    def __str__(self) -> str:
        raises = self.scenario.raises
        cause = f" ({raises.cause})" if raises is not None and raises.cause else ""
        must = (
            f"from {self.onset} on it must raise {raises.kind}{cause}"
            if raises is not None
            else "it must raise nothing"
        )
        return (
            f"{self.file}: {self.samples} samples of {self.hours:g} h, {self.readings_file}: "
            f"{self.readings} readings, "
            f"{self.pins_file}: the {self.pins} pins they are judged by, in {self.took_s:.1f} s\n"
            f"scenario {self.scenario.name}: {self.scenario.about}; {must}"
        )


def export(
    file: Path,
    hours: float,
    gpus: Sequence[str] = ("h100",),
    scenario: str = "calm",
    seed: int = 0,
    thermal_speed: float = 1.0,
    onset_hours: float | None = None,
) -> Exported:
    """Write FILE.csv, FILE.readings.csv and FILE.pins.yaml; the scenario begins after `onset_hours`
    (None: half of the time).

    Raises ScenarioError, UnknownCardError and ExportError.
    """
    began_s = time.perf_counter()
    onset_hours = hours * ONSET_SHARE if onset_hours is None else onset_hours
    if not 0 <= onset_hours < hours:
        raise ExportError(
            f"the scenario would begin after {onset_hours:g} h, but the history has {hours:g} "
            "h; let it begin within them"
        )
    world = make_world(gpus, seed, thermal_speed, EPOCH.timestamp(), LeapingWorld, LookedAtCard)
    assert isinstance(world, LeapingWorld)  # noqa: S101 - for the type checker
    for card in world.cards:
        if isinstance(card, LookedAtCard):
            card.seed(seed)
    world.set("cold_s", COLD_S)
    story = switch(world, scenario, onset_hours * 3600)
    visitor, probes = Visitor(world, TARGET, Noise(seed)), shipped_probes()
    for probe in probes:
        if probe.logprobs:
            visitor.asking.pin(probe)
    timetable = Timetable(world, visitor)
    timetable.fill(probes)
    timetable.run(hours * 3600)
    asking = visitor.asking
    samples = sorted(visitor.rows, key=lambda row: str(row["started_at"]))
    rows = [
        *_server_rows(timetable),
        *(row for card in world.cards for row in _card_rows(card, world.epoch_s)),
    ]
    readings_file, pins_file = (
        file.with_name(f"{file.stem}.{what}") for what in ("readings.csv", "pins.yaml")
    )
    _write(
        file,
        SAMPLE_FIELDS,
        ((number, *map(row.get, SAMPLE_FIELDS[1:])) for number, row in enumerate(samples, 1)),
    )
    _write(readings_file, READING_FIELDS, sorted(rows, key=itemgetter(2)))
    with _opened(pins_file) as out:
        out.write(to_yaml(asking.pinned, TARGET, visitor.first_fingerprint, EPOCH, seed))
    took_s = time.perf_counter() - began_s
    onset = iso(EPOCH.timestamp() + onset_hours * 3600)
    return Exported(
        file,
        readings_file,
        pins_file,
        len(samples),
        len(rows),
        len(asking.pinned),
        hours,
        took_s,
        story,
        onset,
    )


def _server_rows(timetable: Timetable) -> Iterable[tuple[object, ...]]:
    nothing = (None,) * len(GPU_FIELDS)
    for at_s, page in timetable.pages:
        yield ("server", TARGET, iso(at_s), *_SERVER_VALUES(page), *nothing)


def _card_rows(card: object, epoch_s: float) -> Iterable[tuple[object, ...]]:
    nothing = (None,) * len(SERVER_FIELDS)
    for at_s, values in card.looked if isinstance(card, LookedAtCard) else ():
        yield ("gpu", None, iso(epoch_s + at_s), *nothing, *values)


def _write(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with _opened(file) as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """Raises ExportError."""
    try:
        with file.open("w", encoding="utf-8", newline="") as out:
            yield out
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None
