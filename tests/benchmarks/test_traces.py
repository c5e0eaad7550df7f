"""The thermal model for faults in real traces, and the reading of the traces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("an installed package has no benchmarks", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))
import cooling  # noqa: E402
import traces_data  # noqa: E402 - after the check above
from traces import healthy  # noqa: E402

POINTS = traces_data.chained(traces_data.spark(None)).points[100:460]  # an hour


def test_unchanged_cooling_does_not_change_the_trace() -> None:
    same = cooling.changed(POINTS, counters=False)
    assert same.points == POINTS
    assert max(same.decode_loss) == 0.0


def test_worse_cooling_adds_the_heat_of_its_resistance_up_to_the_limit_of_the_governor() -> None:
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


def test_a_limited_clock_costs_decode_rate_according_to_its_share() -> None:
    limited = cooling.changed(POINTS, limit_mhz=lambda _: 799.0)
    assert limited.points[50].sm_clock_mhz == 799.0
    assert limited.decode_loss[50] == pytest.approx(
        1.0 - 1.0 / (0.8 + 0.2 * 2509.0 / 799.0), abs=0.02
    )


def test_a_healthy_real_gpu_raises_nothing_and_the_models_are_armed() -> None:
    found = healthy(traces_data.chained(traces_data.spark(None)))
    assert found.findings == []
    assert found.clock > found.busy / 2
    assert found.heat > found.busy / 2
