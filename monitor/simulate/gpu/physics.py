"""The physics of a GPU: power draw, temperatures, the clock that its governor allows, and the
resulting speed.

Pure and in virtual time: `advance` gets a duration and a load. Heat has two poles (die; heat sink
and air), memory a third; the governor lowers the clock above the maximum temperature and raises it
again below; the constants are in kinds.py. `cooling` is a factor on the thermal resistance of heat
sink and air only: the resistance between die and heat sink (r1) does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from typing import Final

from monitor.simulate.engine.costs import Speeds
from monitor.simulate.gpu.kinds import GpuKind
from monitor.simulate.settings import Celsius, Factor, Natural, NotNegative, Positive, Share

# Clocks event reasons, nvml.h: nvmlClocksEventReason*
GPU_IDLE: Final = 0x1
SW_POWER_CAP: Final = 0x4
HW_SLOWDOWN: Final = 0x8
SW_THERMAL: Final = 0x20
HW_THERMAL: Final = 0x40
HW_POWER_BRAKE: Final = 0x80

# one clock step in this time; back up at a quarter of that pace (measured: an RTX A4000 loses 800
# MHz in some 30 s)
GOVERNOR_S = 0.5
HYSTERESIS_C = 2.0
HARDWARE_HYSTERESIS_C = 5.0
MEMORY_TAU_S = 36.0  # measured on a V100: 33 to 39 s
MEMORY_STEP = 0.02  # of the memory clock, each GOVERNOR_S above the memory's maximum
MEMORY_FLOOR = 0.4
# the SM clock's share of a loss of memory clock (a V100 at 93 °C HBM lost SM clock as well)
SM_PER_MEMORY = 0.25
# clocks ramp down after this long without work, and are back after about three RAMP_S
IDLE_AFTER_S = 10.0
RAMP_S = 0.15  # assumed; real GPUs need some tenths of a second
# averaging time of power and utilisation (NVML: power of Ampere and newer, 1 s)
WINDOW_S = 1.0
# where the clock follows the temperature, one simulation step moves it no further than this
MAX_MOVE_C = 1.0
MOST_STEP_S = 60.0
Ends = tuple[float, float, float]  # final temperatures of die, heat sink and memory, °C


@dataclass(slots=True)
class GpuPhysics:
    """The settings of a GPU, which can be changed at any time, and its state."""

    kind: GpuKind
    index: Natural = 0
    inlet_c: Celsius | None = None  # intake air; None: the kind's
    # thermal resistance of heat sink and air relative to healthy: 2 = dust, a stuck fan
    cooling: Factor = 1.0
    memory_cooling: Factor = 1.0  # the same for the memory
    power_limit_w: Positive | None = None  # None: the kind's
    # instead of watts: share of this kind's power at full clock
    power_cap_share: Factor | None = None
    power_brake: bool = False
    # firmware caps the clock there and sets no reason bit
    hidden_limit_mhz: Positive | None = None
    neighbour: Share = 0.0  # share of the GPU's time that another process takes
    neighbour_mib: NotNegative = 0.0
    # dynamic power relative to healthy kernels: a fallback kernel draws less
    kernel_power: Factor = 1.0
    model_mib: NotNegative = 0.0
    driver_version: str = "580.95.05"
    xid: Natural = 0
    # heat and governor run this many times faster; counters and energy stay in real time
    thermal_speed: Factor = 1.0

    _full_w: float = 0.0
    _idle_reasons: int = 0
    _clock_mhz: float = 0.0  # when last busy
    _a: float = 0.0
    _b: float = 0.0
    _memory_over: float = 0.0
    _taken_mhz: float = 0.0  # taken by the thermal governor
    _memory_taken: float = 0.0  # share of the memory clock that is lost
    _halved: bool = False
    _ramp: float = 0.0  # 0: idle clock, 1: full
    _idle_s: float = inf
    _busy: float = 0.0
    _prefill: float = 0.0
    _power_w: float = 0.0
    _util: float = 0.0
    _energy_j: float = 0.0
    _sw_power_s: float = 0.0
    _sw_thermal_s: float = 0.0
    _hw_thermal_s: float = 0.0
    _brake_s: float = 0.0

    def __post_init__(self) -> None:
        """Starts after a long idle time, with the settings of its kind."""
        self.inlet_c = self.kind.inlet_c if self.inlet_c is None else self.inlet_c
        self.power_limit_w = self.kind.limit_w if self.power_limit_w is None else self.power_limit_w
        self._full_w, self._power_w = self.kind.full_w, self.kind.p_idle_w
        self._clock_mhz = self.clock_mhz()
        self._idle_reasons = SW_POWER_CAP if self.kind.power_cap_bit == "always" else 0
        self._a = self._power_w * self.kind.r1
        self._b = self._power_w * self.kind.r2 * self.cooling

    @property
    def temp_c(self) -> float:
        """Die temperature, °C."""
        return (self.kind.inlet_c if self.inlet_c is None else self.inlet_c) + self._a + self._b

    @property
    def mem_temp_c(self) -> float:
        """Memory temperature, °C."""
        return self.temp_c + self._memory_over

    @property
    def limit_w(self) -> float:
        """The power limit in force."""
        if self.power_cap_share is not None:
            return round(self.power_cap_share * self.kind.full_w)
        return self.kind.limit_w if self.power_limit_w is None else self.power_limit_w

    def clock_mhz(self) -> float:
        """The SM clock under load, with all limits applied."""
        return self._clock(self.temp_c)[0]

    def speeds(self, work_s: float = 0.0) -> Speeds:
        """The speed, from the clocks by elasticity: one share of the work follows the SM
        clock, the rest the memory clock.

        `work_s`: the speed after that much more work, while the clocks ramp up.
        """
        kind, own = self.kind, 1.0 - min(self.neighbour, 0.95)
        ramp = 1.0 - (1.0 - self._ramp) * exp(-work_s / RAMP_S) if work_s else self._ramp
        slow = kind.clock_mhz / max(
            kind.idle_clock_mhz + (self.clock_mhz() - kind.idle_clock_mhz) * ramp, 1.0
        )
        memory = 1.0 / (1.0 - self._memory_taken)
        decode = (1.0 - kind.decode_share) * memory + kind.decode_share * slow
        prefill = (1.0 - kind.prefill_share) + kind.prefill_share * slow
        return Speeds(own / prefill, own / decode)

    def clock_state(self) -> tuple[float, ...]:
        """What limits the clocks and changes by itself: while it stays the same, so does
        the speed.
        """
        kind, temp_c = self.kind, self.temp_c if self.kind.boost_loss_mhz else 0.0
        return (
            min(self._ramp, 0.999),
            self._taken_mhz,
            self._memory_taken,
            self._halved,
            max(temp_c, kind.boost_from_c),
        )

    def advance(self, dt_s: float, busy: float, prefill_share: float = 0.0) -> None:
        """Lets `dt_s` pass with kernels running in a share `busy` of it, of which
        `prefill_share` is prefill.
        """
        if dt_s <= 0:
            return
        self._busy = (
            min(1.0, busy * (1.0 - self.neighbour) + self.neighbour) if self.neighbour else busy
        )
        self._prefill = prefill_share
        left = dt_s * self.thermal_speed
        while left > 0:
            power_w, reasons = (
                self._power() if self._busy > 0 else (self.kind.p_idle_w, self._idle_reasons)
            )
            ends = self._ends_c(power_w)
            if self._stays_cool(ends):
                # constant power: the closed form is exact for any time
                self._pass(left, power_w, reasons, ends)
                return
            step = left if left <= GOVERNOR_S else min(left, self._calm_s(ends))
            self._pass(step, power_w, reasons, ends)
            self._govern(step)
            left -= step

    # -- power and clock

    def _clock(self, temp_c: float) -> tuple[float, bool]:
        """The clock under load at this temperature, and whether the power limit caps it."""
        kind = self.kind
        free = (
            kind.clock_mhz - self._taken_mhz - kind.clock_mhz * SM_PER_MEMORY * self._memory_taken
        )
        if temp_c > kind.boost_from_c:
            free -= kind.boost_loss_mhz * (temp_c - kind.boost_from_c)
        if self.hidden_limit_mhz is not None and self.hidden_limit_mhz < free:
            free = self.hidden_limit_mhz
        clock, capped = free, False
        limit_w = self.power_limit_w if self.power_cap_share is None else self.limit_w
        room_w = (kind.limit_w if limit_w is None else limit_w) - kind.p0_w
        wanted_w = (
            kind.pd_w * self.kernel_power * (1.0 + (kind.prefill_power - 1.0) * self._prefill)
        )
        if room_w < wanted_w:
            clock = kind.clock_mhz * (max(0.0, room_w) / wanted_w) ** (1.0 / kind.exponent)
            capped = clock < free
            clock = min(clock, free)
        if self._halved or self.power_brake:
            clock /= 2
        return max(clock, kind.idle_clock_mhz), capped

    def _ramped(self, clock: float) -> float:
        return self.kind.idle_clock_mhz + (clock - self.kind.idle_clock_mhz) * self._ramp

    def _power(self) -> tuple[float, int]:
        """Mean power at the present load, and the clocks event reasons."""
        kind = self.kind
        clock, capped = self._clock(self.temp_c)
        self._clock_mhz = clock
        share = 1.0 if clock == kind.clock_mhz else (clock / kind.clock_mhz) ** kind.exponent
        dynamic_w = (
            kind.pd_w * self.kernel_power * (1.0 + (kind.prefill_power - 1.0) * self._prefill)
        )
        working = kind.p0_w + dynamic_w * share
        return kind.p_idle_w + (working - kind.p_idle_w) * self._busy, self._working_reasons(capped)

    def _working_reasons(self, capped: bool) -> int:
        reasons = SW_POWER_CAP if capped or self.kind.power_cap_bit == "always" else 0
        if self._taken_mhz > 0 or self._memory_taken > 0:
            reasons |= SW_THERMAL
        if self._halved:
            reasons |= HW_SLOWDOWN | HW_THERMAL
        if self.power_brake:
            reasons |= HW_SLOWDOWN | HW_POWER_BRAKE
        return reasons

    # -- one step

    def _ends_c(self, power_w: float) -> Ends:
        """Final temperatures of die, heat sink and memory at this power, each relative to
        the next cooler part.
        """
        kind, share = self.kind, power_w / self._full_w
        memory_c = (
            kind.memory_over_c
            * self.memory_cooling
            * (min(share, 1.0))
            * (1.0 - self._memory_taken)
        )
        return power_w * kind.r1, power_w * kind.r2 * self.cooling, memory_c

    def _stays_cool(self, ends_c: Ends) -> bool:
        """Whether neither governor nor boost clock will ever react at this power."""
        kind = self.kind
        if self._taken_mhz > 0 or self._memory_taken > 0 or self._halved:
            return False
        if self._busy <= 0:
            return True
        end_a, end_b, end_memory = ends_c
        inlet_c = kind.inlet_c if self.inlet_c is None else self.inlet_c
        hottest_c = inlet_c + (max(self._a, end_a)) + (max(self._b, end_b))
        if hottest_c > kind.max_c or (kind.boost_loss_mhz and hottest_c > kind.boost_from_c):
            return False
        return hottest_c + max(end_memory, self._memory_over) <= kind.memory_max_c

    def _calm_s(self, ends_c: Ends) -> float:
        """Time until the governor may act, or until the clock must follow the temperature."""
        kind, temp_c = self.kind, self.temp_c
        room_c = _room(temp_c, kind.max_c, self._taken_mhz > 0)
        memory_room_c = _room(temp_c + self._memory_over, kind.memory_max_c, self._memory_taken > 0)
        room_c = min(room_c, memory_room_c)
        if room_c <= 0 or self._halved:
            return GOVERNOR_S
        end_a, end_b, end_memory = ends_c
        speed = (
            abs(end_a - self._a) / kind.t1_s
            + abs(end_b - self._b) / kind.t2_s
            + abs(end_memory - self._memory_over) / MEMORY_TAU_S
        )
        move_c = min(room_c, MAX_MOVE_C) if kind.boost_loss_mhz else room_c
        return min(MOST_STEP_S, max(GOVERNOR_S, move_c / max(speed, 1e-9)))

    def _pass(self, step: float, power_w: float, reasons: int, ends_c: Ends) -> None:
        """Advances averages, counters and temperatures by `step` at constant power, on
        their exact curves.
        """
        kind, real_s, busy = self.kind, step / self.thermal_speed, self._busy
        fade = exp(-real_s / WINDOW_S)
        self._power_w = power_w + (self._power_w - power_w) * fade
        self._util = busy + (self._util - busy) * fade
        self._energy_j += power_w * real_s
        if reasons:
            self._count(real_s, real_s * busy, reasons)
        end_a, end_b, end_memory = ends_c
        self._a = end_a + (self._a - end_a) * exp(-step / kind.t1_s)
        self._b = end_b + (self._b - end_b) * exp(-step / kind.t2_s)
        self._memory_over = end_memory + (self._memory_over - end_memory) * exp(
            -step / MEMORY_TAU_S
        )
        if busy > 0:
            self._ramp = 1.0 - (1.0 - self._ramp) * exp(-real_s / RAMP_S)
            self._idle_s = 0.0
        else:
            self._idle_s += real_s
            if self._idle_s > IDLE_AFTER_S:
                self._ramp = 0.0

    def _count(self, real_s: float, working_s: float, reasons: int) -> None:
        if reasons & SW_POWER_CAP:
            self._sw_power_s += real_s if self._idle_reasons else working_s
        if reasons & SW_THERMAL:
            self._sw_thermal_s += working_s
        if reasons & HW_THERMAL:
            self._hw_thermal_s += working_s
        if reasons & HW_POWER_BRAKE:
            self._brake_s += working_s

    def _govern(self, step: float) -> None:
        kind, temp, steps = self.kind, self.temp_c, step / GOVERNOR_S
        memory = temp + self._memory_over
        if temp > kind.max_c:
            room = kind.clock_mhz - kind.idle_clock_mhz
            self._taken_mhz = min(
                room, self._taken_mhz + steps * kind.step_mhz * (1.0 + temp - kind.max_c)
            )
        elif self._taken_mhz and temp < kind.max_c - HYSTERESIS_C:
            self._taken_mhz = max(0.0, self._taken_mhz - steps * kind.step_mhz / 4)
        if temp >= kind.slowdown_c:
            self._halved = True
        elif temp < kind.slowdown_c - HARDWARE_HYSTERESIS_C:
            self._halved = False
        if memory > kind.memory_max_c:
            self._memory_taken = min(1.0 - MEMORY_FLOOR, self._memory_taken + steps * MEMORY_STEP)
        elif self._memory_taken and memory < kind.memory_max_c - HYSTERESIS_C:
            self._memory_taken = max(0.0, self._memory_taken - steps * MEMORY_STEP / 4)


def _room(temp_c: float, max_c: float, taken: bool) -> float:
    """How far the temperature may move before the governor acts; 0 where it acts now."""
    if temp_c > max_c:
        return 0.0
    return min(max_c - temp_c, temp_c - max_c + HYSTERESIS_C) if taken else max_c - temp_c
