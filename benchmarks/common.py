"""What the benchmarks share: figures, tables, the machine, and servers as processes of their
own.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
PAGE = ROOT / "tests/captures/vllm-0.32.0/metrics_under_load.txt"


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value with at least `share` of the values at or below it."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure beside its limit. `met` None: there is no limit."""

    what: str
    measured: str
    limit: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """As they stand in the table."""
        return (
            self.what,
            self.measured,
            self.limit,
            {None: "", True: "yes", False: "**no**"}[self.met],
        )


def at_most(what: str, value: float, limit: float, unit: str, digits: int = 2) -> Row:
    """A row that is met when the value is at most the limit."""
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
        """The section as it stands in docs/benchmarks.md."""
        lines = [
            f"## {self.title}",
            "",
            self.text,
            "",
            _line(self.headings),
            _line(["---"] * len(self.headings)),
        ]
        lines += [_line(row) for row in self.rows]
        lines += [text for note in self.notes for text in ("", note)]
        return "\n".join(lines) + "\n"


def figures(title: str, text: str, rows: Sequence[Row]) -> Section:
    """A section of figures and limits."""
    return Section(title, text, ("what", "measured", "limit", "met"), [row.cells for row in rows])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def load() -> float:
    """How many processes wanted to run in the last minute, ours included."""
    return os.getloadavg()[0]


def machine() -> str:
    """Processor, cores, memory, system and Python in one sentence."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = next(
        (
            int(line.split()[1]) / 2**20
            for line in _lines("/proc/meminfo")
            if line.startswith("MemTotal")
        ),
        0.0,
    )
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def commit() -> str:
    """The commit that was measured, and whether the tree held changes beyond it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown (no git)"
    changed = _git("status", "--porcelain", "--", "monitor", "migrations", "pyproject.toml")
    return f"{head} with uncommitted changes" if changed else head


def _git(*arguments: str) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@contextmanager
def before_other_work(wanted: bool) -> Iterator[None]:
    """Real-time scheduling for this process and what it starts inside. Needs root."""
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
    """A server of this folder in a process of its own; what it prints first is handed out, at the
    end it is stopped.
    """
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
