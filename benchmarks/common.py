"""Shared by the benchmarks: percentiles, Markdown tables, the machine, git, caches, and servers in
processes of their own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
METRICS_PAGE = ROOT / "tests/captures/vllm-0.32.0/metrics_under_load.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-canary"


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value with at least `share` of the values at or below it."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


# -- tables


def met_cell(met: bool | None) -> str:
    """The last cell of a row; None: the row has no limit."""
    return {None: "", True: "yes", False: "**no**"}[met]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure and its limit. `met` None: there is no limit."""

    what: str
    measured: str
    limit: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its row in the table."""
        return self.what, self.measured, self.limit, met_cell(self.met)


def at_most(what: str, value: float, limit: float, unit: str, digits: int = 2) -> Row:
    """Returns a row that is met when the value is at most the limit."""
    return Row(what, f"{value:.{digits}f}{unit}", f"≤ {limit:g}{unit}", value <= limit)


@dataclass(frozen=True, slots=True)
class Section:
    """One table with the sentences that say how it was measured."""

    title: str
    text: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The section as written into a page of docs/."""
        parts = [f"## {self.title}", self.text, table(self.headings, self.rows), *self.notes]
        return "\n\n".join(parts) + "\n"


def figures(title: str, text: str, rows: Sequence[Row]) -> Section:
    """A section of figures and limits."""
    return Section(title, text, ("what", "measured", "limit", "met"), [row.cells for row in rows])


# -- the machine and the commit


def load() -> float:
    """The load average of the last minute, this process included."""
    return os.getloadavg()[0]


def machine() -> str:
    """Processor, cores, memory, system and Python in one sentence."""
    cpu = _value("/proc/cpuinfo", "model name") or platform.machine()
    memory_kib = int((_value("/proc/meminfo", "MemTotal") or "0 kB").split()[0])
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory_kib / 2**20:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def _value(path: str, name: str) -> str | None:
    """The first value of a name in a file of `name: value` lines."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def commit() -> str:
    """The measured commit, and whether the product had uncommitted changes."""
    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown (no git)"
    changed = git("status", "--porcelain", "--", "monitor", "migrations", "pyproject.toml")
    return f"{head} with uncommitted changes" if changed else head


def git(*arguments: str) -> str:
    """The output of a git command in this checkout; empty where it fails."""
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


# -- processes and environments


@contextmanager
def real_time(wanted: bool) -> Iterator[None]:
    """Schedules this process and what it starts in real time, before other work. Needs root."""
    if not wanted:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def served(script: str, *arguments: str, core: int | None = None) -> Iterator[str]:
    """Runs a server of this folder as a process; yields the first line that it prints."""
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pinned, sys.executable, str(HERE / script), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline().strip()
            if not first:
                raise RuntimeError(f"{script} did not start")
            yield first
        finally:
            process.terminate()


def environment(home: Path, packages: Sequence[str]) -> Path:
    """The Python of a virtual environment with these packages, created where it is missing."""
    python = home / "bin" / "python"
    installed = home / (
        ".installed-" + hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    )
    if not installed.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *packages], check=True)
        installed.touch()
    return python
