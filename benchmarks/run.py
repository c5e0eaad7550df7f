"""`make bench`: runs the benchmarks, prints their tables and writes docs/benchmarks.md.

    .venv/bin/python benchmarks/run.py [--quick] [--peers] [--realtime] [--only accuracy|cost]
    [--out FILE]

Takes about 12 minutes, 2 more with --peers; --quick takes 5 and writes nothing unless --out is
given. Other work on the machine distorts the figures: run it on an idle machine, or as root with
--realtime, which schedules the accuracy part in real time (not the rest: on a single core, threads
of equal real-time priority block each other). The tables show the load.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import accuracy
import cost
import peers
from common import ROOT, Section, commit, machine, real_time

PAGE = ROOT / "docs" / "benchmarks.md"


def heading(command: str, realtime: bool) -> str:
    """The head of the page: date, commit, machine, scheduling and command."""
    lines = [
        "# Benchmarks",
        "",
        (
            "Written by the command below; the programs are in `benchmarks/`. **no** in the last "
            "column: the limit is not met."
        ),
        "",
        f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- Commit: {commit()}",
        f"- Machine: {machine()}",
        (
            "- Scheduling: "
            f"{'real-time for accuracy, default for the rest' if realtime else 'default'}"
        ),
        f"- Command: `{command}`",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the benchmarks, prints the page and writes it."""
    parser = argparse.ArgumentParser(description="run the benchmarks and write docs/benchmarks.md")
    parser.add_argument(
        "--quick", action="store_true", help="short runs, for development of the benchmarks"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help=f"also measure {peers.GUIDELLM} (installs it into {peers.HOME})",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="real-time scheduling for the accuracy part (needs root)",
    )
    parser.add_argument("--only", choices=["accuracy", "cost"], help="run one part")
    parser.add_argument(
        "--out", type=Path, help=f"where to write (default {PAGE.relative_to(ROOT)})"
    )
    o = parser.parse_args()
    command = shlex.join([".venv/bin/python", "benchmarks/run.py", *sys.argv[1:]])
    sections: list[Section] = []
    if o.only != "cost":
        with real_time(o.realtime):
            canaries = 15 if o.quick else 40
            found = accuracy.section(canaries)
            sections.append(replace(found, notes=[peers.note(canaries)]) if o.peers else found)
    if o.only != "accuracy":
        sections.append(cost.section(o.quick))
    text = "\n".join([heading(command, o.realtime), *(section.markdown() for section in sections)])
    print(text)
    out = o.out or (None if o.quick or o.only else PAGE)
    if out is not None:
        out.write_text(text)
        print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
