"""Puts a measured table into its place in a page of docs/: between its markers, so that each proof
renews its own part alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROOF = ROOT / "docs" / "proof.md"


def stamp() -> str:
    """Day and commit, as every measured table carries them; a plus sign says that the tree had
    changes beyond the commit.
    """

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = "+" if git("status", "--porcelain", "--", "monitor", "benchmarks") else ""
    return f"{datetime.now(UTC):%Y-%m-%d}, commit {git('rev-parse', '--short', 'HEAD')}{changed}"


def write_section(name: str, lines: Sequence[str], page: Path = PROOF) -> None:
    """Replace what stands between the markers of this name; a page without them gets them at its
    end.
    """
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    block = "\n".join([begin, *(line.rstrip() for line in lines), end])
    head, found, rest = text.partition(begin)
    text = head + block + rest.partition(end)[2] if found else f"{text.rstrip()}\n\n{block}\n"
    page.write_text(text, encoding="utf-8")
