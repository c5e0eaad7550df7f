"""Simulated GPU readings for tests, with the shape of a healthy GPU's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from random import Random

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.model import GpuPoint

SETTINGS = DriftSettings()
START_US = 1_700_000_000_000_000
HEALTHY = GpuPoint(
    at_us=0,
    uuid="GPU-1",
    temp_c=60.0,
    mem_temp_c=70.0,
    margin_c=27.0,
    sm_clock_mhz=1980.0,
    mem_clock_mhz=2619.0,
    util=0.9,
    power_w=400.0,
    power_limit_w=700.0,
    vram_used_mib=70_000.0,
    event_reasons=0,
    throttle_thermal_ns=0,
    throttle_power_ns=0,
    throttle_brake_ns=0,
)
Change = Callable[[GpuPoint, float], GpuPoint]  # a reading, and the hours since this change began


class GpuHistory:
    """The readings of one GPU. `play` adds hours of them with the given changes; throttle counters
    are given as duty cycles.
    """

    def __init__(self, point: GpuPoint = HEALTHY, every_s: int = 10) -> None:
        self.point, self.noise, self.every_s = point, Random(0), every_s
        self.at_us, self.counters = START_US, {"thermal": 0, "power": 0, "brake": 0}
        self.points: list[GpuPoint] = []

    def play(
        self, hours: float, change: Change = lambda point, _: point, **duties: float
    ) -> GpuHistory:
        """Adds hours of readings. Power varies by ±60 W, as on a GPU in use."""
        begun_us = self.at_us
        while self.at_us - begun_us < hours * 3600 * SECOND_US:
            watts = self.noise.uniform(-60.0, 60.0) if self.point.power_w is not None else 0.0
            point = self._moved(watts)
            for name, duty in duties.items():
                self.counters[name] += round(duty * self.every_s * 1e9)
            point = self._counted(point)
            self.points.append(change(point, (self.at_us - begun_us) / 3.6e9))
            self.at_us += self.every_s * SECOND_US
        return self

    def _moved(self, watts: float) -> GpuPoint:
        point = self.point
        power_w = None if point.power_w is None else point.power_w + watts
        return point._replace(at_us=self.at_us, power_w=power_w)

    def _counted(self, point: GpuPoint) -> GpuPoint:
        known = {
            f"throttle_{name}_ns": value
            for name, value in self.counters.items()
            if getattr(point, f"throttle_{name}_ns") is not None
        }
        return point._replace(**known)

    def channel(self, settings: DriftSettings = SETTINGS) -> GpuChannel:
        """A channel after all readings, advanced to the time of each."""
        return feed(GpuChannel(self.point.uuid), self.points, settings)


def feed(
    channel: GpuChannel, points: Iterable[GpuPoint], settings: DriftSettings = SETTINGS
) -> GpuChannel:
    """Reading by look, as the daemon does."""
    last_us = 0
    for point in points:
        channel.gpu(point, settings)
        channel.advance(point.at_us, settings)
        last_us = point.at_us
    channel.advance(last_us + 2 * MINUTE_US, settings)
    return channel


def conditions_of(channel: GpuChannel, settings: DriftSettings = SETTINGS) -> list[str]:
    """The names of what is open."""
    return sorted(warning.condition for warning in channel.warnings(settings))


def warmed(
    points: list[GpuPoint],
    tin_c: float = 30.0,
    limit_c: float = 87.0,
    cooling: Callable[[float], float] = lambda _: 1.0,
) -> list[GpuPoint]:
    """The readings with the temperatures that follow from their power in a two-pole model (an H100:
    0.020 °C/W in 4 s, 0.034 °C/W in 90 s), and the margins. `cooling` gives a factor on the slow
    thermal resistance by the hours since the first reading.
    """
    die = sink = 0.0
    found = []
    for before, point in zip([points[0], *points], points, strict=False):
        dt_s = max(1.0, (point.at_us - before.at_us) / SECOND_US)
        watts = point.power_w or 0.0
        hours = (point.at_us - points[0].at_us) / 3.6e9
        if not found:
            die, sink = watts * 0.020, watts * 0.034
        die += (watts * 0.020 - die) * -math.expm1(-dt_s / 4.0)
        sink += (watts * 0.034 * cooling(hours) - sink) * -math.expm1(-dt_s / 90.0)
        temp_c = tin_c + die + sink
        found.append(
            point._replace(temp_c=float(round(temp_c)), margin_c=float(round(limit_c - temp_c)))
        )
    return found
