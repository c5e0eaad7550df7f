"""Writes a measured section between its markers in a page of docs/, so that each benchmark renews
only its own part.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from common import ROOT, git

PROOF = ROOT / "docs" / "proof.md"
DETECTION = ROOT / "docs" / "detection-measured.md"
QUALITY = ROOT / "docs" / "quality-measured.md"


def stamp() -> str:
    """Day and commit of a measurement; a plus sign: the checkout had uncommitted changes."""
    changed = "+" if git("status", "--porcelain", "--", "monitor", "benchmarks") else ""
    return f"{datetime.now(UTC):%Y-%m-%d}, commit {git('rev-parse', '--short', 'HEAD')}{changed}"


def write_section(name: str, lines: Sequence[str], page: Path = PROOF) -> None:
    """Replaces the text between the markers of this name; appends both to a page without them."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    block = "\n".join([begin, *(line.rstrip() for line in lines), end])
    head, found, rest = text.partition(begin)
    text = head + block + rest.partition(end)[2] if found else f"{text.rstrip()}\n\n{block}\n"
    page.write_text(text, encoding="utf-8")
