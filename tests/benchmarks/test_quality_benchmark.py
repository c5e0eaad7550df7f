"""The benchmark of the quality gate uses internal modules of the product; this test fails when they
no longer match.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="an installed package has no benchmarks"
)


def test_a_quick_run_measures_every_rule_and_every_fault_and_does_not_change_the_page() -> None:
    page = (ROOT / "docs" / "quality-measured.md").read_bytes()
    command = [sys.executable, ROOT / "benchmarks" / "quality.py", "--quick"]
    # exit code 1 means that a limit is not met: the figures of few runs vary
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == (2 + 3) + (2 + 8), done.stderr
    assert (ROOT / "docs" / "quality-measured.md").read_bytes() == page
