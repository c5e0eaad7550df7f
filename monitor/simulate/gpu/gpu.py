"""One GPU: what its driver reports of its physics (physics.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from monitor.simulate.gpu.physics import (
    GPU_IDLE,
    GpuPhysics,
)

IDLE_MEMORY_MHZ = 405.0
NS = 1_000_000_000


class DriverReading(NamedTuple):
    """What the driver reports now; None where this kind of GPU does not report it. Counters run
    since the GPU was created.
    """

    uuid: str
    name: str
    driver_version: str
    temp_c: float
    mem_temp_c: float | None
    margin_c: float | None
    sm_clock_mhz: float
    mem_clock_mhz: float | None
    util: float
    power_w: float
    power_limit_w: float | None
    energy_j: float
    vram_used_mib: float | None
    vram_total_mib: float | None
    event_reasons: int
    sw_power_ns: int
    sw_thermal_ns: int
    hw_thermal_ns: int
    brake_ns: int
    xid: int


@dataclass(slots=True)
class Gpu(GpuPhysics):
    """One GPU and its state. Fields without an underscore are settings and can be changed at
    any time.
    """

    @property
    def uuid(self) -> str:
        """The UUID, fixed by kind and index."""
        return f"{self.kind.uuid_prefix}-0000-4000-8000-{self.index + 1:012x}"

    def reading(self) -> DriverReading:
        """The driver's report now."""
        kind, temp_c, mem_temp_c = self.kind, self.temp_c, self.mem_temp_c
        clock, capped = self._clock(temp_c)
        return DriverReading(
            uuid=self.uuid,
            name=kind.model_name,
            driver_version=self.driver_version,
            temp_c=round(temp_c),
            mem_temp_c=round(mem_temp_c) if kind.shows_memory_temp else None,
            margin_c=self._margin(temp_c, mem_temp_c),
            sm_clock_mhz=round(self._ramped(clock)),
            mem_clock_mhz=self._memory_mhz(self._ramp),
            util=round(self._util, 2),
            power_w=round(self._power_w, 3),
            power_limit_w=self.limit_w if kind.shows_limit else None,
            energy_j=self._energy_j,
            vram_used_mib=self._vram_used_mib(),
            vram_total_mib=kind.vram_mib if kind.shows_memory else None,
            event_reasons=self._reasons(capped),
            sw_power_ns=int(self._sw_power_s * NS),
            sw_thermal_ns=int(self._sw_thermal_s * NS),
            hw_thermal_ns=int(self._hw_thermal_s * NS),
            brake_ns=int(self._brake_s * NS),
            xid=self.xid,
        )

    def _margin(self, temp_c: float, mem_temp_c: float) -> float | None:
        """Degrees to the nearest threshold, of the die or the memory; so it is not simply
        maximum minus die temperature.
        """
        kind = self.kind
        return (
            round(min(kind.max_c - temp_c, kind.memory_max_c - mem_temp_c))
            if kind.shows_margin
            else None
        )

    def _memory_mhz(self, ramp: float) -> float | None:
        if not self.kind.shows_memory:
            return None
        return (
            round(self.kind.memory_clock_mhz * (1.0 - self._memory_taken))
            if ramp > 0.5
            else IDLE_MEMORY_MHZ
        )

    def _vram_used_mib(self) -> float | None:
        kind = self.kind
        return (
            round(min(self.model_mib + self.neighbour_mib, kind.vram_mib))
            if kind.shows_memory
            else None
        )

    def _reasons(self, capped: bool) -> int:
        return (
            self._working_reasons(capped) if self._idle_s == 0 else self._idle_reasons or GPU_IDLE
        )
