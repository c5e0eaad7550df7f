"""The physics that is laid over real traces, and what the benchmark reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("an installed package has no benchmarks", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))
import cooling  # noqa: E402
import traces_data  # noqa: E402 - once it is known to be there
from traces import healthy  # noqa: E402

POINTS = traces_data.chained(traces_data.spark(None)).points[100:460]  # an hour


def test_with_cooling_as_it_was_the_trace_stays_what_it_was() -> None:
    same = cooling.changed(POINTS, counters=False)
    assert same.points == POINTS
    assert max(same.decode_loss) == 0.0


def test_worse_cooling_adds_what_its_resistance_says_and_no_more_than_the_governor_allows() -> None:
    mild, bad = (cooling.changed(POINTS, cooling=lambda _, m=factor: m) for factor in (1.2, 3.0))
    rise_c = [
        (after.temp_c or 0.0) - (before.temp_c or 0.0)
        for before, after in zip(POINTS, mild.points, strict=True)
    ]
    expected_c = 0.2 * cooling.R2 * (POINTS[200].power_w or 0.0)
    assert max(rise_c) == pytest.approx(expected_c, abs=4.0)
    assert max(point.temp_c or 0.0 for point in bad.points) <= cooling.SLOWDOWN_C + 6.0
    assert max(bad.decode_loss) > 0.03
    assert (bad.points[-1].throttle_thermal_ns or 0) > 0


def test_a_held_clock_costs_what_the_share_of_the_clock_says() -> None:
    held = cooling.changed(POINTS, limit_mhz=lambda _: 799.0)
    assert held.points[50].sm_clock_mhz == 799.0
    assert held.decode_loss[50] == pytest.approx(1.0 - 1.0 / (0.8 + 0.2 * 2509.0 / 799.0), abs=0.02)


def test_a_healthy_real_gpu_raises_nothing_and_the_models_are_armed() -> None:
    told = healthy(traces_data.chained(traces_data.spark(None)))
    assert told.findings == []
    assert told.clock > told.busy / 2
    assert told.heat > told.busy / 2
