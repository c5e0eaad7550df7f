"""One scenario of the simulator with one seed: its history in virtual time, and the incidents that
the daemon's judges open on it.

The server is healthy for 14 hours, so that the baseline is known; then the scenario begins. A
history may be judged twice: as the daemon records it, and *blind*, as an exporter with its default
counters shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import merge
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.evaluator.assessment import Assessment, Rules
from monitor.judge.evaluator.drift import Drift
from monitor.model import CanaryPoint, GpuPoint, Pin, PinnedOutput, Point, Severity
from monitor.replay.csv.points import ReadingCsv, SampleCsv
from monitor.replay.incidents import ReplayedIncident, ReplayedIncidents
from monitor.replay.replay import Replay, in_order
from monitor.replay.virtual.export import EPOCH, export
from monitor.simulate.assemble import make_world
from monitor.simulate.gpu.kinds import GpuKind, kind_of
from monitor.simulate.scenarios.scenario import Raises, load, names

ONSET_H = 14.0
LASTS_H = {
    "calm": 58.0,
    "hot-room": 5.0,
    "uptime-decay": 16.0,
    "more-clients": 3.0,
    "power-brake": 1.9,
    "batch-job": 0.5,
}
DEFAULT_LASTS_H = 3.0
MINUTE_US = 60_000_000
ONSET_US = int(EPOCH.timestamp() * 1e6 + ONSET_H * 60 * MINUTE_US)
THERMAL = ("heat", "hot-room", "memory-heat")
FELT_PCT = 2.95  # 3 % when rounded: the H100 of the model settles at 2.98
#: Incidents that may be opened besides the expected one: a configuration change is reported
#: whatever it causes, and a restart leaves half a minute without a server.
IMPLIED = {
    ("config_change", "config_change"),
    ("server_down", "server_fault"),
    ("quality", "config_change"),
}
#: The same histories as an exporter with its default counters shows them: no throttle times, no
#: event reasons, no margins. A cause without evidence must not be guessed.
BLIND = ":blind"
BLINDED = {
    f"heat{BLIND}": Raises("thermal", "heat"),
    f"power-brake{BLIND}": Raises("speed", "unexplained"),
    f"hidden-limit{BLIND}": Raises("speed", "unexplained"),
}
#: Scenarios that a file of samples does not show: the daemon detects them on the metrics page.
NOT_IN_A_FILE = ("metrics-gone", "renamed-metrics", "sleep")


@dataclass(frozen=True, slots=True)
class Opened:
    """One incident: its times in minutes after the onset, and its last finding."""

    opened_min: float
    closed_min: float | None
    kind: str
    cause: str
    severity: str
    subject: str
    change_pct: float | None
    named_min: float  # when it got this cause
    warned_min: float | None = None  # when it became a warning or a page


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario with one seed."""

    scenario: str
    seed: int
    incidents: list[Opened]
    felt_min: float | None = None  # when decoding became 3 % slower in the model

    def correct(self, raises: Raises | None) -> bool:
        """Whether the expected incident was opened, and not before the onset."""
        if raises is None:
            return not self.incidents
        return any(
            incident.opened_min >= 0
            and (incident.kind, incident.cause) == (raises.kind, raises.cause)
            for incident in self.incidents
        )

    def unexpected(self, raises: Raises | None) -> list[Opened]:
        """The incidents that are neither expected nor implied."""
        wanted = set() if raises is None else {(raises.kind, raises.cause), *IMPLIED}
        return [
            incident
            for incident in self.incidents
            if incident.opened_min < 0 or (incident.kind, incident.cause) not in wanted
        ]


def run_scenario(
    scenario: str, variants: Sequence[str], seed: int, gpu: str, folder: Path
) -> list[Run]:
    """Exports the history unless it exists, and judges each variant of it."""
    file = folder / f"{gpu}-{scenario}-{seed}.csv"
    readings = file.with_name(f"{file.stem}.readings.csv")
    if not readings.exists():
        with TemporaryDirectory(dir=folder) as fresh:
            hours = ONSET_H + LASTS_H.get(scenario, DEFAULT_LASTS_H)
            made = export(
                Path(fresh) / file.name, hours, (gpu,), scenario, seed, onset_hours=ONSET_H
            )
            made.file.replace(file)
            made.readings_file.replace(readings)
    points = list(read(file, readings))
    return [_judged(variant, seed, gpu, points) for variant in variants]


def _judged(variant: str, seed: int, gpu: str, points: Sequence[Point]) -> Run:
    if variant.endswith(BLIND):
        points = [blinded(point) for point in points]
    timed = TimedIncidents()
    drift = Drift("simulated", Detector(), DriftSettings())
    Replay(drift, Rules(pins=_pins(points)), incidents=timed).run(points)
    felt_min = _felt_min(kind_of(gpu), points) if variant in THERMAL else None
    return Run(variant, seed, [_opened(incident, timed) for incident in timed.all], felt_min)


def _pins(points: Iterable[Point]) -> dict[int, Pin]:
    """The pins of the history, with the noise of its healthy part: a sample file has no pins."""
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
            id=number,
            target="simulated",
            probe=probes[number],
            revision="",
            fingerprint=None,
            reason="benchmark",
            author="",
            created_at=EPOCH,
            expires_at=end,
            outputs=(once,),
            prompt_tokens=None,
            noise_nat=max(values),
        )
        for number, values in shifts.items()
    }


def read(file: Path, readings: Path) -> Iterator[Point]:
    """The points of both files, in the order in which they became known."""
    canaries = (point for chunk in SampleCsv(file).chunks() for point in chunk["simulated"])
    others = [point for chunk in ReadingCsv(readings).chunks() for _, point in chunk]
    return in_order(canaries, merge(others, key=attrgetter("at_us")))


def blinded(point: Point) -> Point:
    """The point without the values that dcgm-exporter's default counters lack."""
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
class TimedIncidents(ReplayedIncidents):
    """Incidents with the time when each became loud, and when it came to its cause, by number."""

    warned_us: dict[int, int] = field(default_factory=dict)
    named_us: dict[int, int] = field(default_factory=dict)

    def reconcile(self, assessment: Assessment, now_us: int) -> None:
        """As the daemon does, with notes."""
        before = {id(incident): incident.cause for incident in self.all}
        ReplayedIncidents.reconcile(self, assessment, now_us)
        for number, incident in enumerate(self.all):
            if incident.severity is not Severity.INFO:
                self.warned_us.setdefault(number, now_us)
            if before.get(id(incident), "") != incident.cause:
                self.named_us[number] = now_us


def _opened(incident: ReplayedIncident, timed: TimedIncidents) -> Opened:
    def minutes(us: int | None) -> float | None:
        return None if us is None else round((us - ONSET_US) / MINUTE_US, 1)

    number = next(n for n, other in enumerate(timed.all) if other is incident)
    opened_min = minutes(incident.opened_us) or 0.0
    return Opened(
        opened_min,
        minutes(incident.closed_us),
        incident.kind.value,
        incident.cause.value if incident.cause else "",
        incident.loudest.value,
        incident.subject,
        incident.evidence.get("change_pct"),
        minutes(timed.named_us.get(number)) or opened_min,
        minutes(timed.warned_us.get(number)),
    )


def _felt_min(gpu: GpuKind, points: Iterable[Point]) -> float | None:
    """The time at which decoding became 3 % slower, from the GPU clocks and the model's own
    elasticity: the truth of the simulation, not a measurement.
    """
    baseline_mhz = None
    for p in points:
        if not isinstance(p, GpuPoint) or (p.util or 0.0) < 0.5 or not p.sm_clock_mhz:
            continue
        if p.at_us <= ONSET_US:
            baseline_mhz = p.sm_clock_mhz
        elif baseline_mhz is not None:
            memory = gpu.memory_clock_mhz / p.mem_clock_mhz if p.mem_clock_mhz else 1.0
            core = baseline_mhz / p.sm_clock_mhz
            time_ratio = gpu.decode_share * core + (1.0 - gpu.decode_share) * memory
            if time_ratio > 1.0 / (1.0 - FELT_PCT / 100.0):
                return round((p.at_us - ONSET_US) / MINUTE_US, 1)
    return None


def expectations() -> dict[str, Raises | None]:
    """The incident that each scenario must raise, from its file."""
    settable = make_world(("h100",), 0, 1.0, 0.0).settable
    return {
        name: load(name, settable).raises for name in names() if name not in NOT_IN_A_FILE
    } | BLINDED
