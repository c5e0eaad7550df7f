"""Whether the right cause is named: every scenario of the simulator in virtual time, judged as a
stored history by the daemon's judges.

    .venv/bin/python benchmarks/causes.py [--seeds 20] [--only heat,calm] [--gpu h100] [--jobs 2]
    [--keep] [--write] [--work DIR]

For each scenario and seed (causes_runs.py) it determines the incidents that the daemon would have
opened, and whether one has the kind and the cause that the scenario must raise. Results are kept
under a key made of the sources of the simulator and the judges, so the benchmark can be interrupted
and resumed. `--keep` keeps the histories (about 5 MB each) for further runs with changed judges.
`--write` writes the tables into docs/detection-measured.md. Exit code 1: a scenario has the right
cause in fewer than 19 of 20 seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import median

from causes_runs import BLIND, FELT_PCT, THERMAL, Opened, Run, expectations, run_scenario
from common import CACHE, ROOT, percentile, table
from proofpage import DETECTION, stamp, write_section

from monitor.simulate.scenarios.scenario import Raises

WORK = CACHE / "causes"
#: Folders on which a history depends; the results depend on the judges as well.
SIMULATOR = ("monitor/simulate", "monitor/replay/virtual", "probes")


def source_key(*folders: str) -> str:
    """A digest of all sources in these folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".yaml", ".csv"}:
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def all_runs(
    scenarios: Sequence[str], seeds: int, gpu: str, jobs: int, work: Path, keep: bool
) -> list[Run]:
    """Returns all runs. Runs that are not stored yet are made, and stored one by one."""
    histories = work / source_key(*SIMULATOR)
    stored = work / f"runs-{gpu}-{source_key(*SIMULATOR, 'monitor/judge')}.jsonl"
    histories.mkdir(parents=True, exist_ok=True)
    known = {(r.scenario, r.seed): r for r in _known(stored)}
    wanted = [(scenario, seed) for seed in range(seeds) for scenario in scenarios]
    missing: dict[tuple[str, int], list[str]] = {}
    for scenario, seed in wanted:
        if (scenario, seed) not in known:
            missing.setdefault((scenario.removesuffix(BLIND), seed), []).append(scenario)
    with ProcessPoolExecutor(jobs) as pool, stored.open("a", encoding="utf-8") as out:
        started = {
            pool.submit(run_scenario, name, variants, seed, gpu, histories): (name, seed)
            for (name, seed), variants in missing.items()
        }
        try:
            for job in as_completed(started):
                for found in job.result():
                    known[found.scenario, found.seed] = found
                    out.write(json.dumps(asdict(found)) + "\n")
                    progress = f"{len(known)}/{len(wanted)} {found.scenario} {found.seed}"
                    print(f"{progress}: {summary(found)}", file=sys.stderr, flush=True)
                out.flush()
                if not keep:
                    _delete(histories, f"{gpu}-{started[job][0]}-{started[job][1]}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [known[pair] for pair in wanted]


def _delete(histories: Path, name: str) -> None:
    for ending in (".csv", ".readings.csv"):
        (histories / f"{name}{ending}").unlink(missing_ok=True)


def _known(stored: Path) -> list[Run]:
    if not stored.exists():
        return []
    rows = [json.loads(line) for line in stored.read_text(encoding="utf-8").splitlines()]
    return [
        Run(r["scenario"], r["seed"], [Opened(**row) for row in r["incidents"]], r["felt_min"])
        for r in rows
    ]


def summary(found: Run) -> str:
    """The incidents of a run in one line."""
    return (
        "; ".join(
            f"{s.kind}/{s.cause or '–'} {s.severity} at {s.opened_min:+.0f} min"
            for s in found.incidents
        )
        or "no incident"
    )


# -- tables


def cause_table(runs: Sequence[Run], expected: dict[str, Raises | None]) -> list[str]:
    """The table of causes, one line per scenario."""
    headings = ("scenario", "expected", "correct", "after, median (p90)", "also raised")
    rows = []
    for scenario, raises in expected.items():
        if mine := [r for r in runs if r.scenario == scenario]:
            rows.append((f"`{scenario}`", _wanted(raises), *_cause_cells(mine, raises)))
    return table(headings, rows).splitlines()


def _wanted(raises: Raises | None) -> str:
    if raises is None:
        return "nothing"
    return f"{raises.kind} / {raises.cause}" if raises.cause else raises.kind


def _cause_cells(runs: Sequence[Run], raises: Raises | None) -> tuple[str, str, str]:
    correct = sum(r.correct(raises) for r in runs)
    bold = "" if correct >= 0.95 * len(runs) else "**"
    delays = [d for r in runs if raises is not None for d in _delays(r, raises)]
    after = f"{median(delays):.0f} ({percentile(delays, 0.9):.0f}) min" if delays else "–"
    names = sorted({f"{s.kind}/{s.cause or '–'}" for r in runs for s in r.unexpected(raises)})
    count = sum(bool(r.unexpected(raises)) for r in runs)
    others = f"{count}: {', '.join(names)}" if count else "–"
    return f"{bold}{correct}/{len(runs)}{bold}", after, others


def _delays(r: Run, raises: Raises) -> list[float]:
    found = [
        max(s.opened_min, s.named_min)
        for s in r.incidents
        if s.opened_min >= 0 and (s.kind, s.cause) == (raises.kind, raises.cause)
    ]
    return found[:1]


def lead_table(runs: Sequence[Run]) -> list[str]:
    """The table of lead times: from a thermal warning to a decode rate that is 3 % lower."""
    what = f"warning before decoding is {FELT_PCT:.0f} % slower, minimum / median"
    rows = []
    for scenario in THERMAL:
        leads = [
            r.felt_min - min(_warned_min(r), default=float("inf"))
            for r in runs
            if r.scenario == scenario and r.felt_min is not None
        ]
        if leads:
            late = "" if min(leads) >= 2 else "**under 2 min**"
            rows.append((f"`{scenario}`", f"{min(leads):.0f} / {median(leads):.0f} min", late))
    return table(("scenario", what, ""), rows).splitlines()


def _warned_min(r: Run) -> list[float]:
    """The times at which thermal incidents after the onset became a warning or a page."""
    return [
        s.warned_min
        for s in r.incidents
        if s.kind == "thermal" and s.warned_min is not None and s.warned_min >= 0
    ]


def options() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        description="check that the right cause is named in every scenario of the simulator"
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="scenarios, separated by commas")
    parser.add_argument("--gpu", default="h100", help="a GPU kind of the simulator")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--work",
        type=Path,
        default=WORK,
        help=f"folder for histories and results (default {WORK})",
    )
    parser.add_argument("--keep", action="store_true", help="keep the histories")
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables into {DETECTION.relative_to(ROOT)}"
    )
    parsed = parser.parse_args()
    known = expectations()
    parsed.scenarios = parsed.only.split(",") if parsed.only else list(known)
    if unknown := [name for name in parsed.scenarios if name not in known]:
        parser.error(f"unknown scenarios: {', '.join(unknown)}; known: {', '.join(known)}")
    return parsed


def main() -> int:
    """Judges the scenarios, prints the tables and writes them."""
    o = options()
    expected = {name: raises for name, raises in expectations().items() if name in o.scenarios}
    runs = all_runs(list(expected), o.seeds, o.gpu, o.jobs, o.work, o.keep)
    lines = [f"{stamp()}; {o.seeds} seeds, {o.gpu}.", "", *cause_table(runs, expected)]
    if any(name in THERMAL for name in expected):
        lines += ["", *lead_table(runs)]
    print("\n".join(lines))
    if o.write:
        write_section("causes" if o.gpu == "h100" else f"causes on {o.gpu}", lines, DETECTION)
    correct = Counter(r.scenario for r in runs if r.correct(expected[r.scenario]))
    return 0 if all(correct[name] >= 0.95 * o.seeds for name in expected) else 1


if __name__ == "__main__":
    raise SystemExit(main())
