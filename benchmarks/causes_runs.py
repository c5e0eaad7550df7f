"""One scenario of the simulator under one seed: its history in virtual time, judged by the daemon's
judges, and what was said.

A healthy server for 14 hours, so that the baseline is known, then the scenario. A story may be
judged twice: as the daemon sees it, and *blind*, as an exporter with its default counters shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import merge
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.model import CanaryPoint, Finding, GpuPoint, Pin, PinnedOutput, Point, Severity
from monitor.replay.csv.points import ReadingCsv, SampleCsv
from monitor.replay.incidents import Book, Entry
from monitor.replay.judges import Rules
from monitor.replay.replay import Replay, in_order
from monitor.simulate.assemble import make_world
from monitor.simulate.cards import CardKind as GpuKind
from monitor.simulate.cards import kind_of
from monitor.simulate.export import EPOCH, export
from monitor.simulate.scenario import Raises, load, names

ONSET_H = 14.0
LASTS_H = {
    "calm": 58.0,
    "hot-room": 5.0,
    "uptime-decay": 16.0,
    "more-clients": 3.0,
    "power-brake": 1.9,
    "batch-job": 0.5,
}
USUAL_LASTS_H = 3.0
MINUTE_US = 60_000_000
ONSET_US = int(EPOCH.timestamp() * 1e6 + ONSET_H * 60 * MINUTE_US)
THERMAL = ("heat", "hot-room", "memory-heat")
FELT_PCT = 2.95  # 3 % when rounded: the H100 of the model settles at 2.98
#: What may be said beside the expected without being wrong: a change of the configuration is one,
#: whatever else it causes, and a restart that takes half a minute is half a minute without a
#: server.
BESIDE = {
    ("config_change", "config_change"),
    ("server_down", "server_fault"),
    ("quality", "config_change"),
}
#: The same histories as an exporter with its default counters shows them: no throttle times, no
#: reasons, no margin. What cannot be proven then must not be guessed.
BLIND = ":blind"
BLINDED = {
    f"heat{BLIND}": Raises("thermal", "heat"),
    f"power-brake{BLIND}": Raises("speed", "unexplained"),
    f"hidden-limit{BLIND}": Raises("speed", "unexplained"),
}
#: Scenarios whose problem is not in a file of samples: what the daemon itself meets at the metrics
#: page.
NOT_IN_A_FILE = ("metrics-gone", "renamed-metrics", "sleep")


@dataclass(frozen=True, slots=True)
class Said:
    """One incident: minutes after the onset, and what it said last."""

    opened_min: float
    closed_min: float | None
    kind: str
    cause: str
    severity: str
    subject: str
    change_pct: float | None
    named_min: float  # since when it names this cause
    warned_min: float | None = None  # since when it was a warning or a page


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario under one seed."""

    scenario: str
    seed: int
    incidents: list[Said]
    felt_min: float | None = None  # when decoding was 3 % slower in the model

    def right(self, raises: Raises | None) -> bool:
        """Whether what must be said was said, after the onset and not before."""
        if raises is None:
            return not self.incidents
        return any(
            said.opened_min >= 0 and (said.kind, said.cause) == (raises.kind, raises.cause)
            for said in self.incidents
        )

    def beside(self, raises: Raises | None) -> list[Said]:
        """What was said that is neither expected nor implied."""
        wanted = set() if raises is None else {(raises.kind, raises.cause), *BESIDE}
        return [
            said
            for said in self.incidents
            if said.opened_min < 0 or (said.kind, said.cause) not in wanted
        ]


def tell(story: str, variants: Sequence[str], seed: int, gpu: str, folder: Path) -> list[Run]:
    """Export (unless it is there), replay, and note what was said: as it is, and blind, as far as
    wanted.
    """
    file = folder / f"{gpu}-{story}-{seed}.csv"
    readings = file.with_name(f"{file.stem}.readings.csv")
    if not readings.exists():
        with TemporaryDirectory(dir=folder) as fresh:
            hours = ONSET_H + LASTS_H.get(story, USUAL_LASTS_H)
            made = export(Path(fresh) / file.name, hours, (gpu,), story, seed, onset_hours=ONSET_H)
            made.file.replace(file)
            made.readings_file.replace(readings)
    points = list(read(file, readings))
    return [_judged(variant, seed, gpu, points) for variant in variants]


def _judged(variant: str, seed: int, gpu: str, points: Sequence[Point]) -> Run:
    if variant.endswith(BLIND):
        points = [blinded(point) for point in points]
    book = Watched()
    Replay("simulated", Detector(), DriftSettings(), Rules(pins=_pins(points)), book=book).run(
        points
    )
    felt_min = _felt_min(kind_of(gpu), points) if variant in THERMAL else None
    return Run(variant, seed, [_said(entry, book) for entry in book.entries], felt_min)


def _pins(points: Iterable[Point]) -> dict[int, Pin]:
    """The pins by which the history was judged, with the noise that the healthy part shows: a file
    of samples does not carry them.
    """
    shifts: dict[int, list[float]] = {}
    probes: dict[int, str] = {}
    for point in points:
        if (
            isinstance(point, CanaryPoint)
            and point.pin is not None
            and point.logprob_shift is not None
            and point.at_us < ONSET_US
        ):
            shifts.setdefault(point.pin, []).append(point.logprob_shift)
            probes[point.pin] = point.probe
    once = PinnedOutput("", (), (), (), None, count=3)
    end = EPOCH + timedelta(days=3650)
    return {
        number: Pin(
            number,
            "simulated",
            probes[number],
            "",
            None,
            "benchmark",
            "",
            EPOCH,
            end,
            (once,),
            None,
            max(values),
        )
        for number, values in shifts.items()
    }


def read(file: Path, readings: Path) -> Iterator[Point]:
    """Both files as points, in the order in which they were known."""
    canaries = (point for chunk in SampleCsv(file).chunks() for point in chunk["simulated"])
    others = [point for chunk in ReadingCsv(readings).chunks() for _, point in chunk]
    return in_order(canaries, merge(others, key=attrgetter("at_us")))


def blinded(point: Point) -> Point:
    """Without what dcgm-exporter's default counters lack."""
    if isinstance(point, GpuPoint):
        return point._replace(
            margin_c=None,
            event_reasons=None,
            throttle_thermal_ns=None,
            throttle_power_ns=None,
            throttle_brake_ns=None,
        )
    if isinstance(point, CanaryPoint):
        return point._replace(
            gpu_margin_c=None,
            throttle_thermal_ms=None,
            throttle_power_ms=None,
            throttle_brake_ms=None,
        )
    return point


@dataclass(slots=True)
class Watched(Book):
    """A book that remembers when each incident became loud, and when it came to its cause. By its
    number in `entries`.
    """

    warned_us: dict[int, int] = field(default_factory=dict)
    named_us: dict[int, int] = field(default_factory=dict)

    def reconcile(
        self,
        kinds: Iterable[str],
        findings: Sequence[Finding],
        now_us: int,
        is_over: Callable[[Entry], bool] = lambda _entry: True,
    ) -> None:
        """As the daemon does, with notes."""
        before = {id(entry): entry.finding.cause for entry in self.entries}
        Book.reconcile(self, kinds, findings, now_us, is_over)
        for number, entry in enumerate(self.entries):
            if entry.finding.severity is not Severity.INFO:
                self.warned_us.setdefault(number, now_us)
            if before.get(id(entry), "") != entry.finding.cause:
                self.named_us[number] = now_us


def _said(entry: Entry, book: Watched) -> Said:
    def minutes(us: int | None) -> float | None:
        return None if us is None else round((us - ONSET_US) / MINUTE_US, 1)

    finding, number = (
        entry.finding,
        next(n for n, other in enumerate(book.entries) if other is entry),
    )
    opened_min = minutes(entry.opened_us) or 0.0
    return Said(
        opened_min,
        minutes(entry.closed_us),
        finding.kind.value,
        finding.cause.value if finding.cause else "",
        entry.severity.value,
        finding.subject,
        finding.evidence.get("change_pct"),
        minutes(book.named_us.get(number)) or opened_min,
        minutes(book.warned_us.get(number)),
    )


def _felt_min(gpu: GpuKind, points: Iterable[Point]) -> float | None:
    """When the clocks had fallen so far that decoding was 3 % slower, by the model's own
    elasticity: its truth, not a measurement.
    """
    usual_mhz = None
    for p in points:
        if not isinstance(p, GpuPoint) or (p.util or 0.0) < 0.5 or not p.sm_clock_mhz:
            continue
        if p.at_us <= ONSET_US:
            usual_mhz = p.sm_clock_mhz
        elif usual_mhz is not None:
            memory = gpu.memory_clock_mhz / p.mem_clock_mhz if p.mem_clock_mhz else 1.0
            if gpu.decode_share * usual_mhz / p.sm_clock_mhz + (
                1.0 - gpu.decode_share
            ) * memory > 1.0 / (1.0 - FELT_PCT / 100.0):
                return round((p.at_us - ONSET_US) / MINUTE_US, 1)
    return None


def expectations() -> dict[str, Raises | None]:
    """What each scenario must raise, as its file says."""
    settable = make_world(("h100",), 0, 1.0, 0.0).settable
    return {
        name: load(name, settable).raises for name in names() if name not in NOT_IN_A_FILE
    } | BLINDED
