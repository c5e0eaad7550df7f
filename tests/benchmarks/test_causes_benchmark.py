"""The benchmark of causes: which incidents count as correct."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason="an installed package has no benchmarks"
)
COUNT = """
from causes import Opened, Raises, Run, cause_table, lead_table
def opened(kind, cause, at=20.0, severity="warning"):
    return Opened(at, None, kind, cause, severity, "GPU-1", -3.0, at, at)
raises = Raises("thermal", "heat")
right = Run("heat", 0, [opened("thermal", "heat")], felt_min=50.0)
wrong = Run("heat", 1, [opened("speed", "unexplained")], felt_min=50.0)
early = Run("heat", 2, [opened("thermal", "heat", at=-100.0)], felt_min=50.0)
print(right.correct(raises), wrong.correct(raises), early.correct(raises))
print(*(len(run.unexpected(raises)) for run in (right, wrong, early)))
noisy = Run("calm", 1, [opened("speed", "unexplained")])
print(Run("calm", 0, []).correct(None), noisy.correct(None))
print(cause_table([right, wrong, early], {"heat": raises})[-1])
print(lead_table([right])[-1])
"""


def count() -> list[str]:
    program = [sys.executable, "-c", COUNT]
    return subprocess.run(
        program, cwd=BENCHMARKS, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_only_what_is_named_after_the_onset_counts_as_found() -> None:
    found = count()
    assert found[0] == "True False False"
    assert found[1] == "0 1 1"
    assert found[2] == "True False"


def test_the_tables_say_how_often_and_how_early() -> None:
    found = count()
    assert "**1/3**" in found[3]
    assert "speed/unexplained" in found[3]
    assert "30 / 30 min" in found[4]


def test_the_benchmark_has_a_help_text() -> None:
    program = [sys.executable, str(BENCHMARKS / "causes.py"), "--help"]
    assert "--gpu" in subprocess.run(program, check=True, capture_output=True, text=True).stdout
