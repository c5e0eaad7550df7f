"""Is the right cause named? Every scenario of the simulator in virtual time, read as a history and
judged by the daemon's judges.

    .venv/bin/python benchmarks/causes.py [--seeds 20] [--only heat,calm] [--gpu h100] [--jobs 2]
    [--keep] [--write] [--work DIR]

For each scenario and seed (causes_runs.py) it is asked which incidents would have been opened, and
whether one has the kind and the cause that the scenario must raise. What was judged already is not
judged again, so it can be stopped and started; the key is the source of the simulator and of the
judges. `--keep` keeps the histories (some 5 MB each), so that changed judges need no new ones.
`--write` puts the tables into docs/detection-measured.md. Exit code 1: a scenario is named right
in fewer than 19 of 20.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import median

from causes_runs import BLIND, FELT_PCT, THERMAL, Run, Said, expectations, tell
from common import ROOT, percentile
from proofpage import stamp, write_section

from monitor.simulate.scenario import Raises

PAGE = ROOT / "docs" / "detection-measured.md"
WORK = Path.home() / ".cache" / "vllm-canary" / "causes"


def source_key(*folders: str) -> str:
    """A digest of all sources there."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".yaml", ".csv"}:
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def all_runs(
    scenarios: Sequence[str], seeds: int, gpu: str, jobs: int, work: Path, keep: bool
) -> list[Run]:
    """Those that are not known yet are made; each is written down as soon as it is there."""
    histories = work / source_key("monitor/simulate", "probes")
    book = work / f"runs-{gpu}-{source_key('monitor/simulate', 'probes', 'monitor/judge')}.jsonl"
    histories.mkdir(parents=True, exist_ok=True)
    known = {(r.scenario, r.seed): r for r in _known(book)}
    wanted = [(scenario, seed) for seed in range(seeds) for scenario in scenarios]
    missing: dict[tuple[str, int], list[str]] = {}
    for scenario, seed in wanted:
        if (scenario, seed) not in known:
            missing.setdefault((scenario.removesuffix(BLIND), seed), []).append(scenario)
    with ProcessPoolExecutor(jobs) as pool, book.open("a", encoding="utf-8") as out:
        seeds = {
            pool.submit(tell, story, variants, seed, gpu, histories): (story, seed)
            for (story, seed), variants in missing.items()
        }
        try:
            for job in as_completed(seeds):
                for found in job.result():
                    known[found.scenario, found.seed] = found
                    out.write(json.dumps(asdict(found)) + "\n")
                    print(
                        f"{len(known)}/{len(wanted)} {found.scenario} {found.seed}: {said(found)}",
                        file=sys.stderr,
                        flush=True,
                    )
                out.flush()
                if not keep:
                    _forget(histories, f"{gpu}-{seeds[job][0]}-{seeds[job][1]}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [known[pair] for pair in wanted]


def _forget(histories: Path, name: str) -> None:
    for ending in (".csv", ".readings.csv"):
        (histories / f"{name}{ending}").unlink(missing_ok=True)


def _known(book: Path) -> list[Run]:
    if not book.exists():
        return []
    rows = [json.loads(line) for line in book.read_text(encoding="utf-8").splitlines()]
    return [
        Run(r["scenario"], r["seed"], [Said(**said) for said in r["incidents"]], r["felt_min"])
        for r in rows
    ]


def said(found: Run) -> str:
    return (
        "; ".join(
            f"{s.kind}/{s.cause or '–'} {s.severity} at {s.opened_min:+.0f} min"
            for s in found.incidents
        )
        or "silent"
    )


# -- tables


def table(runs: Sequence[Run], expected: dict[str, Raises | None]) -> list[str]:
    """One line a scenario."""
    lines = [
        "| scenario | expected | right | after, median (p90) | also raised |",
        "|---|---|---|---|---|",
    ]
    for scenario, raises in expected.items():
        mine = [r for r in runs if r.scenario == scenario]
        if not mine:
            continue
        right = sum(r.right(raises) for r in mine)
        delays = [d for r in mine if raises is not None for d in _delays(r, raises)]
        after = f"{median(delays):.0f} ({percentile(delays, 0.9):.0f}) min" if delays else "–"
        other = sorted({f"{s.kind}/{s.cause or '–'}" for r in mine for s in r.beside(raises)})
        count = sum(bool(r.beside(raises)) for r in mine)
        must = (
            "nothing"
            if raises is None
            else f"{raises.kind} / {raises.cause}"
            if raises.cause
            else raises.kind
        )
        met = "" if right >= 0.95 * len(mine) else "**"
        lines.append(
            f"| `{scenario}` | {must} | {met}{right}/{len(mine)}{met} | {after} | "
            f"{f'{count}: ' + ', '.join(other) if count else '–'} |"
        )
    return lines


def _delays(r: Run, raises: Raises) -> list[float]:
    found = [
        max(s.opened_min, s.named_min)
        for s in r.incidents
        if s.opened_min >= 0 and (s.kind, s.cause) == (raises.kind, raises.cause)
    ]
    return found[:1]


def lead_table(runs: Sequence[Run]) -> list[str]:
    """How long a warning of heat comes before 3 % are lost."""
    lines = [
        f"| scenario | warning before decoding is {FELT_PCT:.0f} % slower, least / median | |",
        "|---|---|---|",
    ]
    for scenario in THERMAL:
        leads = []
        for r in runs:
            if r.scenario == scenario and r.felt_min is not None:
                warned = [
                    s.warned_min
                    for s in r.incidents
                    if s.kind == "thermal" and s.warned_min is not None and s.warned_min >= 0
                ]
                leads.append(r.felt_min - min(warned) if warned else float("-inf"))
        if leads:
            lines.append(
                f"| `{scenario}` | {min(leads):.0f} / {median(leads):.0f} min | "
                f"{'' if min(leads) >= 2 else '**under 2 min**'} |"
            )
    return lines


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description="is the right cause named, in every scenario of the simulator"
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="scenarios, with commas between them")
    parser.add_argument("--gpu", default="h100", help="a kind of GPU of the simulator")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--work",
        type=Path,
        default=WORK,
        help=f"where histories and results are kept (default {WORK})",
    )
    parser.add_argument("--keep", action="store_true", help="keep the histories")
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}"
    )
    o = parser.parse_args()
    expected = expectations()
    if o.only:
        wanted = o.only.split(",")
        if unknown := [name for name in wanted if name not in expected]:
            parser.error(
                f"no such scenario here: {', '.join(unknown)}; there are: {', '.join(expected)}"
            )
        expected = {name: expected[name] for name in wanted}
    runs = all_runs(list(expected), o.seeds, o.gpu, o.jobs, o.work, o.keep)
    lines = [f"{stamp()}; {o.seeds} seeds, {o.gpu}.", "", *table(runs, expected)]
    if any(name in THERMAL for name in expected):
        lines += ["", *lead_table(runs)]
    print("\n".join(lines))
    if o.write:
        write_section("causes" if o.gpu == "h100" else f"causes on {o.gpu}", lines, PAGE)
    return (
        0
        if all(
            sum(r.right(expected[r.scenario]) for r in runs if r.scenario == name) >= 0.95 * o.seeds
            for name in expected
        )
        else 1
    )


if __name__ == "__main__":
    raise SystemExit(main())
