"""`make bench`: run the benchmarks, print their tables and write docs/benchmarks.md.

    .venv/bin/python benchmarks/run.py [--quick] [--peers] [--realtime] [--only accuracy|cost]
    [--out FILE]

About 12 minutes, 2 more with --peers; --quick takes 5 and writes nothing unless --out is given. The
figures of a busy machine are those of its other work: run it on a quiet one, or as root with
--realtime, which puts the accuracy part before other work (not the rest: on a single core, threads
of equal real-time priority hold each other up). The load is in the tables.
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
from common import ROOT, Section, before_other_work, commit, machine

PAGE = ROOT / "docs" / "benchmarks.md"


def heading(command: str, realtime: bool) -> str:
    """When, what, where and how."""
    lines = [
        "# Benchmarks",
        "",
        (
            "Written by the command below; `benchmarks/` holds the programs. **no** in the last "
            "column: the limit is not met."
        ),
        "",
        f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- Commit: {commit()}",
        f"- Machine: {machine()}",
        (
            "- Scheduling: "
            f"{'accuracy before other work (real-time), the rest ' if realtime else ''}as "
            "any program"
        ),
        f"- Command: `{command}`",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description="run the benchmarks and write docs/benchmarks.md")
    parser.add_argument(
        "--quick", action="store_true", help="short runs, for work on the benchmarks themselves"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help=f"measure {peers.GUIDELLM} beside us (installs it into {peers.HOME})",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="before the other work of a busy machine (needs root)",
    )
    parser.add_argument("--only", choices=["accuracy", "cost"], help="one half")
    parser.add_argument(
        "--out", type=Path, help=f"where to write (default {PAGE.relative_to(ROOT)})"
    )
    o = parser.parse_args()
    command = shlex.join([".venv/bin/python", "benchmarks/run.py", *sys.argv[1:]])
    sections: list[Section] = []
    if o.only != "cost":
        with before_other_work(o.realtime):
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
