"""False alarms and delays of drift detection: the product and other detectors on the same series.

    .venv/bin/python benchmarks/detection.py [--seeds 60] [--jobs 2] [--data FOLDER] [--write]

It measures simulated target-months, busy and idle (assumptions in detection_simulated.py): the
product on every canary (detection_product.py), the other detectors on the same series, raw and with
the product's load curve removed (detection_peers.py); then service levels (detection_levels.py) and
real series (detection_series.py; those that may not be redistributed are read from --data). About
twenty minutes on two idle cores. Results are kept in the user's cache under a key made of the
sources, so the benchmark can be interrupted and resumed. It creates its own environments there:
numpy, river and ruptures in one, Apache Otava in another, since they need different versions of
numpy. --write writes the tables into docs/detection-measured.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from common import CACHE, HERE, ROOT, commit, environment, machine
from proofpage import DETECTION, write_section

if TYPE_CHECKING:
    from detection_product import Cadence

PEERS = {
    "river": ("numpy==2.4.6", "river==0.26.1", "ruptures==1.1.10"),
    "otava": ("numpy==2.2.0", "apache-otava==0.8.0"),
}
KEPT = CACHE / "detection" / "others"
TITLE = "## Speed and levels: false alarms and delays"


def peer_python(name: str) -> Path:
    """The Python of a peer's environment, created where it is missing."""
    return environment(CACHE / "peers" / name, PEERS[name])


def key() -> str:
    """A digest of all sources on which the results depend."""
    digest = hashlib.sha256()
    drift = ROOT / "monitor/judge/drift"
    sources = sorted([*(drift / "stats").glob("*.py"), *(drift / "speed").glob("*.py")])
    own = [HERE / "detection_simulated.py", HERE / "detection_product.py"]
    for path in [*sources, *own]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """Measures, prints and writes; restarts in the environment with numpy where it is missing."""
    parser = argparse.ArgumentParser(
        description="false alarms and delays of drift detection, with other detectors"
    )
    parser.add_argument("--seeds", type=int, default=60, help="target-months of each kind")
    parser.add_argument(
        "--extra-seeds",
        type=int,
        default=20,
        help="target-months with three probes and with the increased rate",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with nab/, tcpd/ and vmnoise/ (sources: benchmarks/data/PROVENANCE.md)",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables into {DETECTION.relative_to(ROOT)}"
    )
    o = parser.parse_args()
    if find_spec("river") is None:
        python = str(peer_python("river"))
        os.execve(
            python, [python, __file__, *sys.argv[1:]], {**os.environ, "PYTHONPATH": str(ROOT)}
        )
    text = report(o)
    print(text)
    if o.write:
        write_section("detection", [TITLE, "", *text.splitlines()], DETECTION)
    return 0


def report(o: argparse.Namespace) -> str:
    """Measures what is missing, and returns the section of the page."""
    # numpy is only in the environment that main() enters
    from detection_product import Cadence  # noqa: PLC0415
    from detection_tables import (  # noqa: PLC0415
        levels_section,
        months_section,
        series_section,
        ttft_section,
    )

    work = CACHE / "detection" / key()
    extra = [Cadence(3), Cadence(1, True)] if o.extra_seeds else []
    run_product(work, o.seeds, extra, o.extra_seeds, o.jobs)
    folders = [
        work / Cadence().name / f"{kind}-{seed}"
        for kind in ("busy", "idle")
        for seed in range(o.seeds)
    ]
    for which in PEERS:
        run_peers(which, folders, o.jobs)
    heading = (
        f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC at commit {commit()} by "
        f"`benchmarks/detection.py`; {machine()}."
    )
    return "\n\n".join(
        [
            heading,
            months_section(work, folders, extra, o.extra_seeds, KEPT),
            ttft_section(o.jobs, o.extra_seeds),
            levels_section(o.jobs),
            series_section(o.data),
        ]
    )


def run_product(
    work: Path, seeds: int, extra: Sequence[Cadence], extra_seeds: int, jobs: int
) -> None:
    """Runs the product on every target-month that is not stored yet."""
    from detection_product import Cadence, run  # noqa: PLC0415 - needs numpy

    counts = [(Cadence(), seeds), *((cadence, extra_seeds) for cadence in extra)]
    with ProcessPoolExecutor(jobs) as pool:
        started = [
            pool.submit(run, kind, seed, cadence, work / cadence.name / f"{kind}-{seed}")
            for cadence, count in counts
            for kind in ("busy", "idle")
            for seed in range(count)
        ]
        for i, future in enumerate(started):
            future.result()
            print(f"\r{i + 1} of {len(started)} targets", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def run_peers(which: str, folders: list[Path], jobs: int) -> None:
    """Runs the other detectors in their own environment, on the targets not stored yet."""
    from detection_peers import result_path  # noqa: PLC0415 - needs numpy

    missing = [str(folder) for folder in folders if not result_path(which, KEPT, folder).exists()]
    if not missing:
        return
    script = [str(peer_python(which)), str(HERE / "detection_peers.py")]
    options = ["--which", which, "--out", str(KEPT), "--jobs", str(jobs)]
    with subprocess.Popen(
        [*script, *options, *missing], stdout=subprocess.PIPE, text=True
    ) as process:
        for i, _ in enumerate(process.stdout or ()):
            progress = f"\r{which}: {i + 1} of {len(missing)} targets"
            print(progress, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if process.returncode:
        raise SystemExit(
            f"{which} ended with exit code {process.returncode}; its results so far are kept, "
            "run it again"
        )


if __name__ == "__main__":
    sys.exit(main())
