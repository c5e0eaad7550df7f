"""One card: what it draws, how hot it gets, which clock its governor leaves it, and what it says about that.

Pure and in virtual time: `advance` is told how long and how busy. Heat has two poles (die; heat sink and air), memory a third; the
governor takes clock away above the maximum temperature and gives it back below; the constants are in cards.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from typing import Final

from monitor.simulate.cards import CardKind
from monitor.simulate.speeds import Speeds

# Clocks event reasons, nvml.h: nvmlClocksEventReason*
GPU_IDLE: Final = 0x1
SW_POWER_CAP: Final = 0x4
HW_SLOWDOWN: Final = 0x8
SW_THERMAL: Final = 0x20
HW_THERMAL: Final = 0x40
HW_POWER_BRAKE: Final = 0x80

GOVERNOR_S = 0.5  # one step of clock in this time; a quarter of it back (measured: an RTX A4000 loses 800 MHz in some 30 s)
HYSTERESIS_C = 2.0
HARDWARE_HYSTERESIS_C = 5.0
MEMORY_TAU_S = 36.0  # measured on a V100: 33 to 39 s
MEMORY_STEP = 0.02  # of the memory clock, each GOVERNOR_S above the memory's maximum
MEMORY_FLOOR = 0.4
SM_PER_MEMORY = 0.25  # how much of a loss of memory clock the SM clock shares (a V100 at 93 °C HBM lost SM clock as well)
IDLE_AFTER_S = 10.0  # clocks ramp down after so long without work, and are back after about three RAMP_S
RAMP_S = 0.15  # assumed; real cards need some tenths of a second
WINDOW_S = 1.0  # power and utilisation are averages over about so long (NVML: power of Ampere and newer, 1 s)
MAX_MOVE_C = 0.25  # a step of the simulation moves no temperature further than this
MIN_STEP_S = 0.1
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CardReading:
    """What a driver would say now; None where this kind of card does not say it. Counters run since the card was made."""

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
class Card:
    """One card and its state. The fields up to `thermal_speed` are settings and may be changed at any moment."""

    kind: CardKind
    index: int = 0
    inlet_c: float | None = None  # air that comes in; None: as the kind has it
    cooling: float = 1.0  # thermal resistance of heat sink and air against healthy: 2 = dust, a stuck fan
    memory_cooling: float = 1.0  # likewise for the memory
    power_limit_w: float | None = None  # None: the kind's
    power_cap_share: float | None = None  # instead of a figure in watts: share of what this kind draws at full clock
    power_brake: bool = False
    hidden_limit_mhz: float | None = None  # firmware holds the clock there and sets no reason bit
    neighbour: float = 0.0  # share of the card's time that another process takes
    neighbour_mib: float = 0.0
    kernel_power: float = 1.0  # dynamic power against healthy kernels: a fallback kernel draws less
    model_mib: float = 0.0
    driver_version: str = "580.95.05"
    xid: int = 0
    thermal_speed: float = 1.0  # heat and governor move so many times faster; counters and energy stay in real time

    _a: float = 0.0
    _b: float = 0.0
    _memory_over: float = 0.0
    _taken_mhz: float = 0.0  # by the thermal governor
    _memory_taken: float = 0.0  # share of the memory clock
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
        """A card begins as one that has been idle for long, with the settings of its kind."""
        self.inlet_c = self.kind.inlet_c if self.inlet_c is None else self.inlet_c
        self.power_limit_w = self.kind.limit_w if self.power_limit_w is None else self.power_limit_w
        self._power_w = self.kind.p_idle_w
        self._a = self._power_w * self.kind.r1
        self._b = self._power_w * self.kind.r2 * self.cooling

    @property
    def uuid(self) -> str:
        """Always the same for the same kind and index."""
        return f"{self.kind.uuid_prefix}-0000-4000-8000-{self.index + 1:012x}"

    @property
    def temp_c(self) -> float:
        """Of the die, °C."""
        return (self.kind.inlet_c if self.inlet_c is None else self.inlet_c) + self._a + self._b

    @property
    def mem_temp_c(self) -> float:
        """Of the memory, °C."""
        return self.temp_c + self._memory_over

    @property
    def limit_w(self) -> float:
        """The power limit in force."""
        if self.power_cap_share is not None:
            return round(self.power_cap_share * self.kind.full_w)
        return self.kind.limit_w if self.power_limit_w is None else self.power_limit_w

    def clock_mhz(self) -> float:
        """The SM clock while it works, whatever holds it back."""
        return self._clock()[0]

    def speeds(self) -> Speeds:
        """Speed left, from the clocks by elasticity: the share of the work that follows the SM clock, and the rest the memory clock."""
        kind, own = self.kind, 1.0 - min(self.neighbour, 0.95)
        slow = kind.clock_mhz / max(self._ramped(self.clock_mhz()), 1.0)
        memory = 1.0 / (1.0 - self._memory_taken)
        decode = (1.0 - kind.decode_share) * memory + kind.decode_share * slow
        prefill = (1.0 - kind.prefill_share) + kind.prefill_share * slow
        return Speeds(own / prefill, own / decode)

    def advance(self, dt_s: float, busy: float, prefill_share: float = 0.0) -> None:
        """Let `dt_s` pass with kernels running in a share `busy` of it, of which `prefill_share` on prompts."""
        if dt_s <= 0:
            return
        self._busy = min(1.0, busy * (1.0 - self.neighbour) + self.neighbour)
        self._prefill = prefill_share
        self._note_activity(dt_s)
        left = dt_s * self.thermal_speed
        while left > 0:
            power_w, reasons = self._power()
            step = left if left <= MIN_STEP_S else min(left, self._calm_s(power_w))
            self._count(step / self.thermal_speed, power_w, reasons)
            self._heat(step, power_w)
            self._govern(step)
            left -= step

    def reading(self) -> CardReading:
        """What the driver says now."""
        kind, working = self.kind, self._ramp > 0.5
        clock, _ = self._clock()
        memory_mhz = kind.memory_clock_mhz * (1.0 - self._memory_taken)
        return CardReading(
            uuid=self.uuid,
            name=kind.model_name,
            driver_version=self.driver_version,
            temp_c=round(self.temp_c),
            mem_temp_c=round(self.mem_temp_c) if kind.shows_memory_temp else None,
            margin_c=self._margin() if kind.shows_margin else None,
            sm_clock_mhz=round(self._ramped(clock)),
            mem_clock_mhz=(round(memory_mhz) if working else 405.0) if kind.shows_memory else None,
            util=round(self._util, 2),
            power_w=round(self._power_w, 3),
            power_limit_w=self.limit_w if kind.shows_limit else None,
            energy_j=self._energy_j,
            vram_used_mib=round(min(self.model_mib + self.neighbour_mib, kind.vram_mib)) if kind.shows_memory else None,
            vram_total_mib=kind.vram_mib if kind.shows_memory else None,
            event_reasons=self._reasons(),
            sw_power_ns=int(self._sw_power_s * NS),
            sw_thermal_ns=int(self._sw_thermal_s * NS),
            hw_thermal_ns=int(self._hw_thermal_s * NS),
            brake_ns=int(self._brake_s * NS),
            xid=self.xid,
        )

    # -- power and clock ----------------------------------------------------------------------------------------------

    def _dynamic_w(self) -> float:
        kind = self.kind
        return kind.pd_w * self.kernel_power * (1.0 + (kind.prefill_power - 1.0) * self._prefill)

    def _clock(self) -> tuple[float, bool]:
        """The clock while working, and whether the power limit is what holds it."""
        kind, temp_c = self.kind, self.temp_c
        free = kind.clock_mhz - self._taken_mhz - kind.clock_mhz * SM_PER_MEMORY * self._memory_taken
        if temp_c > kind.boost_from_c:
            free -= kind.boost_loss_mhz * (temp_c - kind.boost_from_c)
        if self.hidden_limit_mhz is not None and self.hidden_limit_mhz < free:
            free = self.hidden_limit_mhz
        clock, capped = free, False
        room_w, wanted_w = self.limit_w - kind.p0_w, self._dynamic_w()
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
        """Mean power now, and the reasons that hold while it works."""
        kind = self.kind
        if self._busy <= 0:
            return kind.p_idle_w, 0
        clock, capped = self._clock()
        working = kind.p0_w + self._dynamic_w() * (clock / kind.clock_mhz) ** kind.exponent
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

    def _reasons(self) -> int:
        return self._working_reasons(self._clock()[1]) if self._idle_s == 0 else GPU_IDLE

    def _margin(self) -> float:
        """Degrees to the nearest threshold, be it the die's or the memory's; so it is not maximum minus die temperature."""
        return round(min(self.kind.max_c - self.temp_c, self.kind.memory_max_c - self.mem_temp_c))

    # -- one step -----------------------------------------------------------------------------------------------------

    def _note_activity(self, dt_s: float) -> None:
        if self._busy > 0:
            self._ramp = 1.0 - (1.0 - self._ramp) * exp(-dt_s / RAMP_S)
            self._idle_s = 0.0
            return
        self._idle_s += dt_s
        if self._idle_s > IDLE_AFTER_S:
            self._ramp = 0.0

    def _calm_s(self, power_w: float) -> float:
        """How long nothing changes but temperatures on their known curves: for ever when idle and cool, short when a limit is near."""
        kind = self.kind
        if self._taken_mhz > 0 or self._memory_taken > 0 or self._halved:
            return GOVERNOR_S / 2
        if self._busy <= 0:
            return inf  # constant power: the closed form is exact
        die_speed = abs(power_w * kind.r1 - self._a) / kind.t1_s
        speed = die_speed + abs(power_w * kind.r2 * self.cooling - self._b) / kind.t2_s
        speed += abs(self._memory_target(power_w) - self._memory_over) / MEMORY_TAU_S
        calm = min(60.0, max(MIN_STEP_S, MAX_MOVE_C / max(speed, 1e-9)))
        near = self.temp_c > kind.max_c - 2 or self.mem_temp_c > kind.memory_max_c - 2
        return min(calm, GOVERNOR_S) if near else calm

    def _memory_target(self, power_w: float) -> float:
        kind = self.kind
        return kind.memory_over_c * self.memory_cooling * min(1.0, power_w / kind.full_w) * (1.0 - self._memory_taken)

    def _count(self, real_s: float, power_w: float, reasons: int) -> None:
        fade = exp(-real_s / WINDOW_S)
        self._power_w = power_w + (self._power_w - power_w) * fade
        self._util = self._busy + (self._util - self._busy) * fade
        self._energy_j += power_w * real_s
        working_s = real_s * self._busy
        if reasons & SW_POWER_CAP:
            self._sw_power_s += working_s
        if reasons & SW_THERMAL:
            self._sw_thermal_s += working_s
        if reasons & HW_THERMAL:
            self._hw_thermal_s += working_s
        if reasons & HW_POWER_BRAKE:
            self._brake_s += working_s

    def _heat(self, step: float, power_w: float) -> None:
        kind = self.kind
        target_a, target_b = power_w * kind.r1, power_w * kind.r2 * self.cooling
        self._a = target_a + (self._a - target_a) * exp(-step / kind.t1_s)
        self._b = target_b + (self._b - target_b) * exp(-step / kind.t2_s)
        target = self._memory_target(power_w)
        self._memory_over = target + (self._memory_over - target) * exp(-step / MEMORY_TAU_S)

    def _govern(self, step: float) -> None:
        kind, temp = self.kind, self.temp_c
        steps = step / GOVERNOR_S
        if temp > kind.max_c:
            room = kind.clock_mhz - kind.idle_clock_mhz
            self._taken_mhz = min(room, self._taken_mhz + steps * kind.step_mhz * (1.0 + temp - kind.max_c))
        elif temp < kind.max_c - HYSTERESIS_C:
            self._taken_mhz = max(0.0, self._taken_mhz - steps * kind.step_mhz / 4)
        if temp >= kind.slowdown_c:
            self._halved = True
        elif temp < kind.slowdown_c - HARDWARE_HYSTERESIS_C:
            self._halved = False
        memory = self.mem_temp_c
        if memory > kind.memory_max_c:
            self._memory_taken = min(1.0 - MEMORY_FLOOR, self._memory_taken + steps * MEMORY_STEP)
        elif memory < kind.memory_max_c - HYSTERESIS_C:
            self._memory_taken = max(0.0, self._memory_taken - steps * MEMORY_STEP / 4)
