"""A GPU that is polled every second of virtual time, without a call every second.

While the GPU's power is constant, its temperatures and averages lie on known curves (physics.py),
so every poll in between can be computed directly. Five polls make one row of readings with minimum,
median and maximum, as in the daemon. A real GPU is never as steady as its model: power fluctuates,
and so does the intake air.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, sqrt
from random import Random

from monitor.simulate.gpu.gpu import NS, Gpu
from monitor.simulate.gpu.physics import (
    GPU_IDLE,
    HW_POWER_BRAKE,
    HW_THERMAL,
    IDLE_AFTER_S,
    MEMORY_TAU_S,
    RAMP_S,
    SW_POWER_CAP,
    SW_THERMAL,
    WINDOW_S,
    Ends,
    GpuPhysics,
)

POLL_EVERY_S, WINDOW = 1.0, 5
# polls from the first of five to the third, to the fifth, to the next window
TO_NEXT_OF_THREE = (
    2,
    2,
    1,
)
# of one poll; 0.7 to 2 % in the steadiest half minutes of 104 recordings of GB10 under vLLM
POWER_SD = 0.015
# of five draws, in standard deviations: distance of the minimum, spread of the median
LEAST_OF_FIVE, MEDIAN_OF_FIVE = (
    1.16,
    0.54,
)
# a poll may hit a prefill burst: an H100 under vLLM fell from 1830 to 1530 MHz for 250 ms
BURST_SEEN, BURST_CLOCK = (
    0.1,
    0.84,
)
ROOM_SD_C, ROOM_TAU_S = 0.6, 7200.0  # assumed
# utilisation with two decimals, as text; needed a hundred thousand times
CENTI = tuple(str(number / 100) for number in range(101))
ROOM_EVERY = 12  # windows: a minute
ROOM_KEPT = exp(-ROOM_EVERY * WINDOW * POLL_EVERY_S / ROOM_TAU_S)
ROOM_MOVED_C = ROOM_SD_C * sqrt(1.0 - ROOM_KEPT * ROOM_KEPT)
# time of the last poll, and the columns of a GPU reading
WindowRow = tuple[float, tuple[object, ...]]
# temperature, clock, power, utilisation
Poll = tuple[float, float, float, float]
# remaining share of the way to the end for die, heat sink and averages, from poll to poll
Fades = tuple[float, float, float]


@dataclass(slots=True)
class PolledGpu(Gpu):
    """Adds one row to `windows` for each WINDOW polls, the first of which is at second 0."""

    _windows: list[WindowRow] = field(default_factory=list)
    _name: str = ""
    _at_s: float = 0.0
    _next_poll_s: float = POLL_EVERY_S
    _polls: list[Poll] = field(default_factory=list)
    _reasons_seen: int = 0
    _chance: Random = field(default_factory=Random)
    _room_c: float = 0.0  # deviation of the intake air from its setting
    _one_on: Fades = (1.0, 1.0, 1.0)
    _two_on: Fades = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        """Takes the first poll."""
        Gpu.__post_init__(self)
        heat_s = POLL_EVERY_S * self.thermal_speed
        a, b, average = (
            exp(-heat_s / self.kind.t1_s),
            exp(-heat_s / self.kind.t2_s),
            exp(-POLL_EVERY_S / WINDOW_S),
        )
        self._one_on, self._two_on = (a, b, average), (a * a, b * b, average * average)
        now, self._name = self.reading(), self.uuid
        self._polls.append((now.temp_c, now.sm_clock_mhz, now.power_w, now.util))
        self._reasons_seen = now.event_reasons

    def seed(self, seed: int) -> None:
        """Seeds its fluctuations."""
        self._chance.seed(f"looks/{seed}/{self.index}")

    @property
    def windows(self) -> list[WindowRow]:
        """The rows so far."""
        return self._windows

    def _pass(self, step: float, power_w: float, reasons: int, ends_c: Ends) -> None:
        end_s = self._at_s + step / self.thermal_speed
        if self._next_poll_s <= end_s:
            self._poll_until(end_s, power_w, reasons, ends_c)
        self._at_s = end_s
        GpuPhysics._pass(self, step, power_w, reasons, ends_c)

    def _poll_until(self, end_s: float, power_w: float, reasons: int, ends_c: Ends) -> None:
        """Takes all polls up to then, on the curves that begin now. Of five polls on the
        same monotonic curves, three are enough.
        """
        kind, after_s, busy = self.kind, self._next_poll_s - self._at_s, self._busy
        heat_s, fading = after_s * self.thermal_speed, exp(-after_s / WINDOW_S)
        end_a, end_b, end_memory = ends_c
        base_c = self.temp_c - self._a - self._b + end_a + end_b
        a = (self._a - end_a) * exp(-heat_s / kind.t1_s)  # what remains of each
        b = (self._b - end_b) * exp(-heat_s / kind.t2_s)
        power, util = (self._power_w - power_w) * fading, (self._util - busy) * fading
        clock_mhz, idle_mhz = self._clock_mhz, kind.idle_clock_mhz
        loses_from_c = -inf if kind.boost_loss_mhz > 0 else inf
        steady = busy > 0 and self._ramp > 0.999
        self._reasons_seen |= (shown := reasons if busy else reasons or GPU_IDLE)
        seen, next_s = self._polls, self._next_poll_s
        while next_s <= end_s:
            whole = not seen and next_s + POLL_EVERY_S * (WINDOW - 1) <= end_s
            for on in TO_NEXT_OF_THREE if whole else (1,):
                temp_c, ramp = base_c + a + b, 1.0 if steady else self._ramp_after(after_s)
                clock = self._clock(temp_c)[0] if temp_c > loses_from_c else clock_mhz
                seen.append(
                    (temp_c, idle_mhz + (clock - idle_mhz) * ramp, power_w + power, busy + util)
                )
                last_s, last_after_s = next_s, after_s
                fade_a, fade_b, fade = self._one_on if on == 1 else self._two_on
                a, b, power, util = a * fade_a, b * fade_b, power * fade, util * fade
                after_s += POLL_EVERY_S * on
                next_s += POLL_EVERY_S * on
            if whole:
                self._store_window(last_s, last_after_s, power_w, reasons, end_memory, seen)
                self._reasons_seen = shown
            elif len(seen) == WINDOW:
                ordered = list(zip(*map(sorted, zip(*seen, strict=True)), strict=True))
                self._store_window(last_s, last_after_s, power_w, reasons, end_memory, ordered[::2])
                self._reasons_seen = shown
        if not seen:
            self._reasons_seen = 0
        self._next_poll_s = next_s

    def _ramp_after(self, after_s: float) -> float:
        """How far the clocks have ramped up then."""
        if self._busy > 0:
            return 1.0 - (1.0 - self._ramp) * exp(-after_s / RAMP_S)
        return self._ramp if self._idle_s + after_s <= IDLE_AFTER_S else 0.0

    def _store_window(
        self,
        at_s: float,
        after_s: float,
        power_w: float,
        reasons: int,
        end_memory: float,
        seen: Sequence[Poll],
    ) -> None:
        """Stores a row of readings from three polls of a window: on monotonic curves, or
        sorted, so that the middle one is the median.
        """
        (
            (low_c, low_mhz, low_w, low),
            (temp, clock, power, util),
            (temp_c, high_mhz, high_w, high),
        ) = seen
        kind, over_c, memory_mhz, margin = self.kind, 0.0, None, None
        if kind.shows_memory:
            memory_mhz = self._memory_mhz(self._ramp_after(after_s))
        if kind.shows_memory_temp or kind.shows_margin:
            over_c = end_memory + (self._memory_over - end_memory) * exp(
                -after_s * self.thermal_speed / MEMORY_TAU_S
            )
            margin = self._margin(temp_c, temp_c + over_c)
        low_c, high_c = (low_c, temp_c) if low_c <= temp_c else (temp_c, low_c)
        low_mhz, high_mhz = (low_mhz, high_mhz) if low_mhz <= high_mhz else (high_mhz, low_mhz)
        low_w, high_w = (low_w, high_w) if low_w <= high_w else (high_w, low_w)
        low, high = (low, high) if low <= high else (high, low)
        if self._prefill > 0.0 and self._chance.random() < BURST_SEEN:
            low_mhz *= BURST_CLOCK
        uneven = self._chance.gauss(1.0, MEDIAN_OF_FIVE * POWER_SD)
        off = LEAST_OF_FIVE * POWER_SD
        row = (
            self._name,
            WINDOW,
            round(low_c),
            round(temp),
            round(high_c),
            round(low_mhz),
            round(clock),
            round(high_mhz),
            _milli(low_w * (uneven - off)),
            _milli(power * uneven),
            _milli(high_w * (uneven + off)),
            CENTI[int(low * 100 + 0.5)],
            CENTI[int(util * 100 + 0.5)],
            CENTI[int(high * 100 + 0.5)],
            round(temp_c + over_c) if kind.shows_memory_temp else None,
            margin,
            memory_mhz,
            self._vram_used_mib(),
            self.limit_w if kind.shows_limit else None,
            self._reasons_seen,
            _milli(self._energy_j + power_w * after_s),
            *self._throttled_ns(after_s, reasons),
        )
        self._windows.append((at_s, row))
        self._polls.clear()
        if len(self._windows) % ROOM_EVERY == 0:
            self._change_intake()

    def _change_intake(self) -> None:
        """Changes the temperature of the intake air a little, once a minute."""
        if self.inlet_c is not None:
            room_c = self._room_c * ROOM_KEPT + self._chance.gauss(0.0, ROOM_MOVED_C)
            self.inlet_c += room_c - self._room_c
            self._room_c = room_c

    def _throttled_ns(self, after_s: float, reasons: int) -> tuple[int, int, int]:
        """Time throttled by heat, by the power limit and by the power brake, after that
        much more time.
        """
        thermal_s, capped_s, brake_s = (
            self._sw_thermal_s + self._hw_thermal_s,
            self._sw_power_s,
            self._brake_s,
        )
        if reasons:
            working_s = after_s * self._busy
            thermal_s += working_s * (bool(reasons & SW_THERMAL) + bool(reasons & HW_THERMAL))
            capped_s += (after_s if self._idle_reasons else working_s) * bool(
                reasons & SW_POWER_CAP
            )
            brake_s += working_s * bool(reasons & HW_POWER_BRAKE)
        return int(thermal_s * NS), int(capped_s * NS), int(brake_s * NS)


def _milli(value: float) -> float:
    """Rounds a non-negative number to three decimals, in a third of the time of `round`."""
    return int(value * 1e3 + 0.5) / 1e3
