"""The judges of GPUs on the readings of a real one: eleven tests of a model on a GB10, 10 hours
(benchmarks/data/gpu/PROVENANCE.md).
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.settings import SECOND_US, DriftSettings
from monitor.model import GpuPoint

FILE = Path(__file__).parents[3] / "benchmarks/data/gpu/spark_qwen3.6_27b_bf16.csv"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="an installed package has no benchmarks")
SETTINGS = DriftSettings()
LIMIT_C = 94.0  # a GB10 tells 13 °C of margin at 81 °C (github.com/ollama/ollama/issues/13552)


@pytest.fixture(scope="module")
def points() -> list[GpuPoint]:
    """The tests one after another, a minute between two."""
    found: list[GpuPoint] = []
    base_s, test = 0.0, "01"
    with FILE.open() as rows:
        for row in csv.DictReader(rows):
            if row["test"] != test:
                base_s, test = found[-1].at_us / SECOND_US + 60.0, row["test"]
            temp_c = float(row["temp_c"])
            found.append(
                GpuPoint(
                    round((base_s + float(row["elapsed_s"])) * SECOND_US),
                    "GB10",
                    temp_c,
                    margin_c=LIMIT_C - temp_c,
                    sm_clock_mhz=float(row["sm_mhz"]),
                    util=float(row["gpu_util"]) / 100,
                    power_w=float(row["power_w"]),
                )
            )
    return found


def played(points: list[GpuPoint]) -> tuple[GpuChannel, dict[str, str]]:
    """The channel at the end, and the cause that each sign named at first."""
    channel, causes = GpuChannel("GB10"), dict[str, str]()
    for point in points:
        channel.gpu(point, SETTINGS)
        channel.advance(point.at_us, SETTINGS)
        if channel.conditions.open:
            for warning in channel.warnings(SETTINGS):
                causes.setdefault(warning.condition, warning.cause.value)
    return channel, causes


def test_a_healthy_gpu_raises_nothing_although_it_works_at_84_degrees(
    points: list[GpuPoint],
) -> None:
    channel, causes = played(points)
    assert max(point.temp_c or 0.0 for point in points) >= 84.0
    assert causes == {}
    assert all(
        armed.armed for armed in channel.armed() if "clock" in armed.what or "heat" in armed.what
    )


def test_worse_cooling_in_the_last_hours_is_found_and_called_heat(points: list[GpuPoint]) -> None:
    """12 °C more at the end, and the clock that a GB10 loses by the degree."""
    since_us = points[-1].at_us - 3 * 3600 * SECOND_US
    worse = []
    for point in points:
        more = min(12.0, max(0.0, (point.at_us - since_us) / SECOND_US / 300))
        temp_c, margin_c = (point.temp_c or 0.0) + more, (point.margin_c or 0.0) - more
        worse.append(
            point._replace(
                temp_c=temp_c,
                margin_c=margin_c,
                sm_clock_mhz=(point.sm_clock_mhz or 0.0) - 4.5 * more,
            )
        )
    _, causes = played(worse)
    assert "thermal_residual" in causes
    assert set(causes.values()) == {"heat"}


def test_a_clock_that_firmware_holds_is_a_hidden_limit_where_reasons_say_nothing(
    points: list[GpuPoint],
) -> None:
    since_us = points[-1].at_us - 1800 * SECOND_US
    held = [
        point._replace(event_reasons=0)
        if point.at_us < since_us
        else point._replace(
            event_reasons=0,
            sm_clock_mhz=799.0,
            power_w=20.0 + 0.1 * max(0.0, (point.power_w or 0.0) - 20.0),
        )
        for point in points
    ]
    assert played(held)[1] == {"hidden_limit": "hidden_limit"}
