"""The benchmarks use internal modules of the product; these tests fail when they no longer match.
The figures themselves are checked by `make bench`.
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


def run(script: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_every_scenario_of_the_accuracy_benchmark_can_be_measured() -> None:
    rows = [line for line in run("accuracy.py", "1").splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 4  # headings and rule, then the scenarios


def test_the_disk_benchmark_fits_the_tables() -> None:
    assert "database per sample" in run("cost.py", "disk")


def test_the_runner_has_a_help_text() -> None:
    assert "--peers" in run("run.py", "--help")
