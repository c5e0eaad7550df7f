"""How often does drift detection cry wolf, and how long does it take? The product beside other
detectors on the same series.

    .venv/bin/python benchmarks/detection.py [--seeds 60] [--jobs 2] [--data FOLDER] [--write]

Simulated target-months, busy and idle (detection_simulated.py tells the assumptions), the product on every
canary (detection_product.py), the others on the same series raw and with the product's load curve
taken out (detection_peers.py); then service levels from few canaries (detection_levels.py) and real
series (detection_series.py; those that may not be passed on are read from --data). About twenty
minutes on two idle cores. What was measured already is not measured again: results lie in the
user's cache under a key made of the sources, so it can be stopped and started. It makes its own
environments there: numpy, river and ruptures in one, Apache Otava in another, for they ask for
different versions of numpy. --write puts the tables into docs/detection-measured.md between their
marks.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from common import ROOT, commit, machine

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-canary"
PEERS = {
    "river": ("numpy==2.4.6", "river==0.26.1", "ruptures==1.1.10"),
    "otava": ("numpy==2.2.0", "apache-otava==0.8.0"),
}
PAGE = ROOT / "docs" / "detection-measured.md"
KEPT = CACHE / "detection" / "others"
BEGIN, END = "<!-- begin: detection -->", "<!-- end: detection -->"


def environment(name: str) -> Path:
    """The Python of a peers' environment, made when it is not there."""
    home = CACHE / "peers" / name
    python = home / "bin" / "python"
    mark = home / (".installed-" + hashlib.sha256(" ".join(PEERS[name]).encode()).hexdigest()[:12])
    if not mark.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *PEERS[name],
            ],
            check=True,
        )
        mark.touch()
    return python


def key() -> str:
    """Of all sources that the results depend on."""
    digest = hashlib.sha256()
    drift = ROOT / "monitor/judge/drift"
    sources = sorted([*(drift / "stats").glob("*.py"), *(drift / "speed").glob("*.py")])
    for path in [
        *sources,
        *(HERE / f"{name}.py" for name in ("detection_simulated", "detection_product")),
    ]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """Run in the environment that has numpy; begin again there when this one has not."""
    parser = argparse.ArgumentParser(
        description="false alarms and delays of drift detection, beside other detectors"
    )
    parser.add_argument("--seeds", type=int, default=60, help="target-months of each kind")
    parser.add_argument(
        "--extra-seeds",
        type=int,
        default=20,
        help="of the rows with three probes and with the raised cadence",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with nab/, tcpd/ and vmnoise/ (sources: benchmarks/data/PROVENANCE.md)",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}"
    )
    o = parser.parse_args()
    if find_spec("river") is None:
        python = str(environment("river"))
        os.execve(
            python, [python, __file__, *sys.argv[1:]], {**os.environ, "PYTHONPATH": str(ROOT)}
        )
    text = report(o)
    print(text)
    if o.write:
        put(text)
    return 0


def report(o: argparse.Namespace) -> str:
    """Measure what is missing, then tell."""
    from detection_product import Way, run  # noqa: PLC0415 - they want numpy, which only the environment that is entered above has
    from detection_tables import levels_section, months_section, series_section, ttft_section  # noqa: PLC0415 - likewise

    work = CACHE / "detection" / key()
    tasks = [(kind, seed, Way()) for kind in ("busy", "idle") for seed in range(o.seeds)]
    tasks += [
        (kind, seed, way)
        for kind in ("busy", "idle")
        for way in (Way(3), Way(1, True))
        for seed in range(o.extra_seeds)
    ]
    with ProcessPoolExecutor(o.jobs) as pool:
        started = [
            pool.submit(run, kind, seed, way, work / name(way) / f"{kind}-{seed}")
            for kind, seed, way in tasks
        ]
        for i, future in enumerate(started):
            future.result()
            print(f"\r{i + 1} of {len(started)} targets", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    folders = [work / name(Way()) / f"{kind}-{seed}" for kind, seed, way in tasks if way == Way()]
    for which in PEERS:
        run_peers(which, folders, o.jobs)
    heading = (
        f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC at commit {commit()} by "
        f"`benchmarks/detection.py`; {machine()}."
    )
    parts = [
        heading,
        months_section(
            work, folders, [w for w in (Way(3), Way(1, True)) if o.extra_seeds], o.extra_seeds, KEPT
        ),
    ]
    parts += [ttft_section(o.jobs, o.extra_seeds), levels_section(o.jobs), series_section(o.data)]
    return "\n\n".join(parts)


def name(way: object) -> str:
    """Of the folder of a way to send canaries."""
    return f"{getattr(way, 'probes', 1)}-{'boost' if getattr(way, 'boost', False) else 'steady'}"


def run_peers(which: str, folders: list[Path], jobs: int) -> None:
    """The other detectors, in their own environment."""
    from detection_peers import result_path  # noqa: PLC0415 - likewise

    missing = [str(folder) for folder in folders if not result_path(which, KEPT, folder).exists()]
    if missing:
        command = [
            str(environment(which)),
            str(HERE / "detection_peers.py"),
            "--which",
            which,
            "--out",
            str(KEPT),
            "--jobs",
            str(jobs),
        ]
        command += missing
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for i, _ in enumerate(process.stdout or ()):
                print(
                    f"\r{which}: {i + 1} of {len(missing)} targets",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
        print(file=sys.stderr)
        if process.returncode:
            raise SystemExit(
                f"{which} ended with {process.returncode}; what it has measured is kept, "
                "start again"
            )


def put(text: str) -> None:
    """Between the marks of docs/detection-measured.md, at its end when it has none yet."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, found = page.partition(BEGIN)
    tail = found.partition(END)[2]
    section = f"{BEGIN}\n## Speed and levels: false alarms and delays\n\n{text.rstrip()}\n{END}"
    rest = tail.lstrip()
    PAGE.write_text(
        f"{head.rstrip()}\n\n{section}\n" + (f"\n{rest}" if rest else ""), encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
