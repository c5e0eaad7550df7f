"""Is the right cause named? Every scenario of the simulator in virtual time, read as a history and judged by the daemon's judges.

    .venv/bin/python benchmarks/causes.py [--seeds 20] [--only heat,calm] [--gpu h100] [--jobs 2] [--keep] [--write] [--work DIR]

A healthy server for 14 hours, so that what is normal is known, then the scenario; `calm` for 72 hours. For each seed it is asked which
incidents would have been opened, and whether one has the kind and the cause that the scenario must raise. What was judged already is not
judged again, so it can be stopped and started; the key is the source of the simulator and of the judges. `--keep` keeps the histories
(some 5 MB each), so that changed judges need no new ones. `--write` puts the tables into docs/detection.md between their marks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import merge
from operator import attrgetter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from common import ROOT, commit, machine, percentile

from monitor.judge.drift.beside import Rules
from monitor.judge.drift.book import Book, Entry
from monitor.judge.drift.detector import Detector
from monitor.judge.drift.replay import Replay, in_order
from monitor.judge.drift.values import DriftSettings
from monitor.model import CanaryPoint, CardPoint, Finding, Pin, PinnedOutput, Point, Severity
from monitor.simulate.assemble import make_world
from monitor.simulate.cards import CardKind, kind_of
from monitor.simulate.export import EPOCH, export
from monitor.simulate.scenario import Raises, load, names
from monitor.store.csvpoints import ReadingCsv, SampleCsv

PAGE = ROOT / "docs" / "detection.md"
WORK = Path.home() / ".cache" / "vllm-canary" / "causes"
ONSET_H = 14.0
LASTS_H = {"calm": 58.0, "hot-room": 5.0, "uptime-decay": 16.0, "more-clients": 3.0, "power-brake": 1.9, "batch-job": 0.5}
USUAL_LASTS_H = 3.0
MINUTE_US = 60_000_000
THERMAL = ("heat", "hot-room", "memory-heat")
FELT = 0.97  # a person's first 3 %
#: What may be said beside the expected without being wrong: a change of the configuration is one, whatever else it causes, and a restart
#: that takes half a minute is half a minute without a server.
BESIDE = {("config_change", "config_change"), ("server_down", "server_fault"), ("quality", "config_change")}
SILENT = ("calm",)
#: Scenarios whose trouble is not for a replay: what the daemon itself meets at the metrics page.
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
        return any(said.opened_min >= 0 and (said.kind, said.cause) == (raises.kind, raises.cause) for said in self.incidents)

    def beside(self, raises: Raises | None) -> list[Said]:
        """What was said that is neither expected nor implied."""
        wanted = set() if raises is None else {(raises.kind, raises.cause), *BESIDE}
        return [said for said in self.incidents if said.opened_min < 0 or (said.kind, said.cause) not in wanted]


# -- one run ----------------------------------------------------------------------------------------------------------


def run(scenario: str, seed: int, gpu: str, folder: Path) -> Run:
    """Export (unless it is there), replay, and note what was said."""
    file = folder / f"{gpu}-{scenario}-{seed}.csv"
    readings = file.with_name(f"{file.stem}.readings.csv")
    if not readings.exists():
        with TemporaryDirectory(dir=folder) as fresh:
            hours = ONSET_H + LASTS_H.get(scenario, USUAL_LASTS_H)
            made = export(Path(fresh) / file.name, hours, (gpu,), scenario, seed, onset_hours=ONSET_H)
            made.file.replace(file)
            made.readings_file.replace(readings)
    points = list(read(file, readings))
    onset_us = int(EPOCH.timestamp() * 1e6 + ONSET_H * 60 * MINUTE_US)
    book = Watched()
    Replay("simulated", Detector(), DriftSettings(), Rules(pins=_pins(points, onset_us)), book=book).run(points)
    felt_min = _felt_min(kind_of(gpu), points, onset_us) if scenario in THERMAL else None
    return Run(scenario, seed, [_said(entry, book, onset_us) for entry in book.entries], felt_min)


def _pins(points: Iterable[Point], until_us: int) -> dict[int, Pin]:
    """The pins by which the history was judged, with the noise that the healthy part shows: a file of samples does not carry them."""
    shifts: dict[int, list[float]] = {}
    probes: dict[int, str] = {}
    for point in points:
        if isinstance(point, CanaryPoint) and point.pin is not None and point.logprob_shift is not None and point.at_us < until_us:
            shifts.setdefault(point.pin, []).append(point.logprob_shift)
            probes[point.pin] = point.probe
    once = PinnedOutput("", (), (), (), None, count=3)
    end = EPOCH + timedelta(days=3650)
    return {
        number: Pin(number, "simulated", probes[number], "", None, "benchmark", "", EPOCH, end, (once,), None, max(values))
        for number, values in shifts.items()
    }


def read(file: Path, readings: Path) -> Iterator[Point]:
    """Both files as points, in the order in which they were known."""
    canaries = (point for chunk in SampleCsv(file).chunks() for point in chunk["simulated"])
    others = [point for chunk in ReadingCsv(readings).chunks() for _, point in chunk]
    return in_order(canaries, merge(others, key=attrgetter("at_us")))


@dataclass(slots=True)
class Watched(Book):
    """A book that remembers when each incident became loud, and when it came to its cause. By its number in `entries`."""

    warned_us: dict[int, int] = field(default_factory=dict)
    named_us: dict[int, int] = field(default_factory=dict)

    def reconcile(
        self, kinds: Iterable[str], findings: Sequence[Finding], now_us: int, is_over: Callable[[Entry], bool] = lambda _entry: True
    ) -> None:
        """As the daemon does, with notes."""
        before = {id(entry): entry.finding.cause for entry in self.entries}
        Book.reconcile(self, kinds, findings, now_us, is_over)
        for number, entry in enumerate(self.entries):
            if entry.finding.severity is not Severity.INFO:
                self.warned_us.setdefault(number, now_us)
            if before.get(id(entry), "") != entry.finding.cause:
                self.named_us[number] = now_us


def _said(entry: Entry, book: Watched, onset_us: int) -> Said:
    def minutes(us: int | None) -> float | None:
        return None if us is None else round((us - onset_us) / MINUTE_US, 1)

    finding, number = entry.finding, next(n for n, other in enumerate(book.entries) if other is entry)
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


def _felt_min(card: CardKind, points: Iterable[Point], onset_us: int) -> float | None:
    """When the clocks had fallen so far that decoding was 3 % slower, by the model's own elasticity: its truth, not a measurement."""
    usual_mhz = None
    for p in points:
        if not isinstance(p, CardPoint) or (p.util or 0.0) < 0.5 or not p.sm_clock_mhz:
            continue
        if p.at_us <= onset_us:
            usual_mhz = p.sm_clock_mhz
        elif usual_mhz is not None:
            memory = card.memory_clock_mhz / p.mem_clock_mhz if p.mem_clock_mhz else 1.0
            if card.decode_share * usual_mhz / p.sm_clock_mhz + (1.0 - card.decode_share) * memory > 1.0 / FELT:
                return round((p.at_us - onset_us) / MINUTE_US, 1)
    return None


# -- all runs ---------------------------------------------------------------------------------------------------------


def source_key(*folders: str) -> str:
    """A digest of all sources there."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".yaml", ".csv"}:
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def all_runs(scenarios: Sequence[str], seeds: int, gpu: str, jobs: int, work: Path, keep: bool) -> list[Run]:
    """Those that are not known yet are made; each is written down as soon as it is there."""
    histories = work / source_key("monitor/simulate", "probes")
    book = work / f"runs-{gpu}-{source_key('monitor/simulate', 'probes', 'monitor/judge')}.jsonl"
    histories.mkdir(parents=True, exist_ok=True)
    known = {(r.scenario, r.seed): r for r in _known(book)}
    wanted = [(scenario, seed) for seed in range(seeds) for scenario in scenarios]
    missing = [pair for pair in wanted if pair not in known]
    with ProcessPoolExecutor(jobs) as pool, book.open("a", encoding="utf-8") as out:
        jobs_of = {pool.submit(run, scenario, seed, gpu, histories): (scenario, seed) for scenario, seed in missing}
        for job, (scenario, seed) in jobs_of.items():
            found = job.result()
            known[scenario, seed] = found
            out.write(json.dumps(asdict(found)) + "\n")
            out.flush()
            if not keep:
                for file in histories.glob(f"{gpu}-{scenario}-{seed}.*csv"):
                    file.unlink()
            print(f"{len(known)}/{len(wanted)} {scenario} {seed}: {_told(found)}", file=sys.stderr, flush=True)
    if not keep:
        shutil.rmtree(histories, ignore_errors=True)
    return [known[pair] for pair in wanted]


def _known(book: Path) -> list[Run]:
    if not book.exists():
        return []
    rows = [json.loads(line) for line in book.read_text(encoding="utf-8").splitlines()]
    return [Run(r["scenario"], r["seed"], [Said(**said) for said in r["incidents"]], r["felt_min"]) for r in rows]


def _told(found: Run) -> str:
    return "; ".join(f"{s.kind}/{s.cause or '–'} {s.severity} at {s.opened_min:+.0f} min" for s in found.incidents) or "silent"


# -- tables -----------------------------------------------------------------------------------------------------------


def table(runs: Sequence[Run], expected: dict[str, Raises | None]) -> list[str]:
    """One line a scenario."""
    lines = ["| scenario | must be told | right | after, median (p90) | something else said |", "|---|---|---|---|---|"]
    for scenario, raises in expected.items():
        mine = [r for r in runs if r.scenario == scenario]
        if not mine:
            continue
        right = sum(r.right(raises) for r in mine)
        delays = [d for r in mine if raises is not None for d in _delays(r, raises)]
        after = f"{median(delays):.0f} ({percentile(delays, 0.9):.0f}) min" if delays else "–"
        other = sorted({f"{s.kind}/{s.cause or '–'}" for r in mine for s in r.beside(raises)})
        count = sum(bool(r.beside(raises)) for r in mine)
        must = "nothing" if raises is None else f"{raises.kind} / {raises.cause}" if raises.cause else raises.kind
        met = "" if right >= 0.95 * len(mine) else "**"
        lines.append(
            f"| `{scenario}` | {must} | {met}{right}/{len(mine)}{met} | {after} | {f'{count}: ' + ', '.join(other) if count else '–'} |"
        )
    return lines


def _delays(r: Run, raises: Raises) -> list[float]:
    found = [max(s.opened_min, s.named_min) for s in r.incidents if s.opened_min >= 0 and (s.kind, s.cause) == (raises.kind, raises.cause)]
    return found[:1]


def lead_table(runs: Sequence[Run]) -> list[str]:
    """How long a warning of heat comes before 3 % are lost."""
    lines = ["| scenario | warning before decoding is 3 % slower, least / median | |", "|---|---|---|"]
    for scenario in THERMAL:
        leads = []
        for r in runs:
            if r.scenario == scenario and r.felt_min is not None:
                warned = [s.warned_min for s in r.incidents if s.kind == "thermal" and s.warned_min is not None and s.warned_min >= 0]
                leads.append(r.felt_min - min(warned) if warned else float("-inf"))
        if leads:
            lines.append(f"| `{scenario}` | {min(leads):.0f} / {median(leads):.0f} min | {'' if min(leads) >= 2 else '**under 2 min**'} |")
    return lines


def put(text: str) -> None:
    """Between the marks of docs/detection.md. ValueError where it has none."""
    begin, end = "<!-- causes -->\n", "<!-- end of causes -->"
    head, found, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{PAGE} has no lines {begin.strip()} and {end}")
    PAGE.write_text(f"{head}{begin}{text.rstrip()}\n{closed}{tail}", encoding="utf-8")


def expectations() -> dict[str, Raises | None]:
    """What each scenario must raise, as its file says."""
    settable = make_world(("h100",), 0, 1.0, 0.0).settable
    return {name: load(name, settable).raises for name in names() if name not in NOT_IN_A_FILE}


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description="is the right cause named, in every scenario of the simulator")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="scenarios, with commas between them")
    parser.add_argument("--gpu", default="h100", help="a kind of card of the simulator")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=WORK, help=f"where histories and results are kept (default {WORK})")
    parser.add_argument("--keep", action="store_true", help="keep the histories")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    o = parser.parse_args()
    expected = expectations()
    if o.only:
        wanted = o.only.split(",")
        if unknown := [name for name in wanted if name not in expected]:
            parser.error(f"no such scenario here: {', '.join(unknown)}; there are: {', '.join(expected)}")
        expected = {name: expected[name] for name in wanted}
    runs = all_runs(list(expected), o.seeds, o.gpu, o.jobs, o.work, o.keep)
    head = f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {machine()}; {o.seeds} seeds, {o.gpu}, a small team's traffic."
    lines = [head, "", *table(runs, expected)]
    if any(name in THERMAL for name in expected):
        lines += ["", *lead_table(runs)]
    text = "\n".join(lines)
    print(text)
    if o.write:
        put(text)
    return 0 if all(sum(r.right(expected[r.scenario]) for r in runs if r.scenario == name) >= 0.95 * o.seeds for name in expected) else 1


if __name__ == "__main__":
    raise SystemExit(main())
