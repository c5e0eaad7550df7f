"""How hot a GPU is for what it draws."""

from __future__ import annotations

from simulated_gpu import GpuHistory, warmed

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.reading import reading_of_poll
from monitor.judge.drift.gpu.thermal_model import ThermalModel
from monitor.judge.drift.settings import SECOND_US
from monitor.model import GpuPoint


def learnt(points: list[GpuPoint]) -> GpuChannel:
    story = GpuHistory()
    story.points = points
    return story.channel()


def varied(hours: float) -> GpuHistory:
    """Busy and quiet half hours in turn."""
    story = GpuHistory()
    for turn in range(round(hours * 2)):
        story.point = story.point._replace(power_w=500.0 if turn % 2 else 250.0)
        story.play(0.5)
    return story


def residuals(channel: GpuChannel, last: int) -> list[float]:
    return [
        minute.residual_c for minute in channel.history.last(last) if minute.residual_c is not None
    ]


def test_of_a_healthy_gpu_power_explains_the_temperature_also_while_it_warms_up() -> None:
    channel = learnt(warmed(varied(10.0).points))
    found = residuals(channel, 20)
    assert len(found) == 20
    assert max(abs(residual) for residual in found) < 1.5


def test_the_resistance_that_was_learnt_is_that_of_the_gpu() -> None:
    channel = learnt(warmed(varied(10.0).points))
    assert abs(sum(channel.baseline.thermal.core.slopes[1:]) - 0.054) < 0.004


def test_what_a_clogged_heat_sink_adds_is_left_over() -> None:
    channel = learnt(warmed(varied(10.0).points, cooling=lambda hours: 1.0 if hours < 9.5 else 1.6))
    expected_c = 0.6 * 0.034 * 500.0
    assert abs(residuals(channel, 5)[-1] - expected_c) < 2.0


def test_a_power_that_was_never_met_is_not_judged() -> None:
    story = varied(6.0)
    story.point = story.point._replace(power_w=680.0)
    story.play(0.4)
    channel = learnt(warmed(story.points))
    assert channel.history.last(1)[0].residual_c is None


def test_after_a_gap_the_filters_begin_where_the_temperature_is_explained() -> None:
    story = varied(6.5)  # ends with half an hour at 500 W, which leaves the heat sink hot
    hot_us = story.at_us
    story.point = story.point._replace(power_w=250.0)
    story.play(0.1)
    points = warmed(story.points)
    channel = learnt(
        [
            point
            for point in points
            if point.at_us >= hot_us or point.at_us < hot_us - 300 * SECOND_US
        ]
    )
    found = residuals(channel, 6)
    assert len(found) == 6
    assert max(abs(residual) for residual in found) < 3.0


def test_the_energy_counter_is_believed_rather_than_a_moment_of_power() -> None:
    model = ThermalModel()
    joules = 0.0
    for second in range(0, 3600, 10):
        joules += 3000.0  # 300 W
        point = GpuPoint(second * SECOND_US, "GPU-1", temp_c=50.0, power_w=90.0, energy_j=joules)
        model.step(reading_of_poll(point))
    assert all(abs(watts - 300.0) < 1.0 for watts in model.filters)


def test_an_energy_counter_that_was_reset_is_left_out() -> None:
    model = ThermalModel()
    for second, joules in ((0, 9e9), (10, 5.0), (20, 3005.0)):
        model.step(
            reading_of_poll(
                GpuPoint(second * SECOND_US, "GPU-1", temp_c=50.0, power_w=300.0, energy_j=joules)
            )
        )
    assert all(abs(watts - 300.0) < 1.0 for watts in model.filters)
