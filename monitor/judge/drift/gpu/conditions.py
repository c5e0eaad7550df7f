"""The conditions of one GPU: which are open, and since when.

A minute counts when it is over (rules.py); only a hardware slowdown and a power brake are taken
from single polls, two in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monitor.judge.drift.gpu.rules import EXPLAINING, RULES
from monitor.judge.drift.stats.hysteresis import Hysteresis

POLLS = 2  # in a row: a hardware slowdown may flash at a change of P-state
# nvmlClocksEventReasonHwThermalSlowdown, nvmlClocksEventReasonHwPowerBrakeSlowdown
HARDWARE = {"hw_thermal": 0x40, "brake": 0x80}


@dataclass(slots=True)
class HardwareSlowdown:
    """A hardware slowdown in the polls."""

    polls: int = 0  # in a row
    first_us: int = 0
    last_us: int | None = None


@dataclass(slots=True)
class GpuConditions:
    """All conditions by name (rules.RULES)."""

    states: dict[str, Hysteresis] = field(
        default_factory=lambda: {name: Hysteresis() for name in RULES}
    )
    slowdowns: dict[str, HardwareSlowdown] = field(
        default_factory=lambda: {name: HardwareSlowdown() for name in HARDWARE}
    )
    polled_us: int | None = None  # when a poll last had event reasons
    quiet: bool = True  # no condition is open or has hits
    open: list[str] = field(default_factory=list)  # as of the last minute

    def note_poll(self, event_reasons: int, at_us: int) -> bool:
        """Processes the reasons of one poll; whether they opened a condition."""
        self.polled_us = at_us
        opened = False
        for name, bit in HARDWARE.items():
            if event_reasons & bit:
                opened |= self._note_slowdown(name, at_us)
            else:
                self.slowdowns[name].polls = 0
        return opened

    def _note_slowdown(self, name: str, at_us: int) -> bool:
        """A hardware slowdown cuts the clock in half or more: two polls are enough, whatever the
        minute shows.
        """
        seen, state = self.slowdowns[name], self.states[name]
        seen.first_us = at_us if seen.polls == 0 else seen.first_us
        seen.polls, seen.last_us = seen.polls + 1, at_us
        if seen.polls < POLLS or state.open:
            return False
        state.open, state.good, state.first_us = True, 0, seen.first_us
        self.quiet = False
        return True

    def judge(self, at_us: int, judged: Mapping[str, bool | None], after_gap: bool) -> None:
        """Processes one minute. `after_gap`: there was none for long before it."""
        if self.quiet and True not in judged.values():
            return
        was_explained = self.any_open(EXPLAINING)
        for name, state in self.states.items():
            if after_gap:
                state.forget()
            hit = judged.get(name)
            if state.open and name in HARDWARE:
                hit = self._slowed(name, at_us, hit)
            if hit or state.hits or state.open:
                state.minute(hit, at_us, RULES[name])
        if was_explained and not self.any_open(EXPLAINING):
            # from here on a low clock counts by itself
            self.states["clock_deficit"].clear()
            self.states["clock_fall"].clear()
        self.open = [name for name, state in self.states.items() if state.open]
        self.quiet = not any(state.open or state.hits for state in self.states.values())

    def _slowed(self, name: str, at_us: int, hit: bool | None) -> bool | None:
        """A slowdown that two polls opened lasts while any poll still shows it."""
        seen = self.slowdowns[name]
        if seen.last_us is not None and seen.last_us >= at_us:
            return True
        if hit is None and self.polled_us is not None and self.polled_us >= at_us:
            return False
        return hit

    def any_open(self, names: Iterable[str]) -> bool:
        """Whether one of these is open."""
        return any(self.states[name].open for name in names)

    def since(self) -> dict[str, int]:
        """Onset of each open condition."""
        return {name: state.first_us or 0 for name, state in self.states.items() if state.open}

    def forget(self) -> None:
        """Discards hits of conditions that are not open."""
        for state in self.states.values():
            state.forget()

    def set_back(self, at_us: int) -> None:
        """Corrects times that a wrong clock dated after this."""
        for state in self.states.values():
            if state.first_us is not None and state.first_us > at_us:
                state.first_us = at_us
        if self.polled_us is not None and self.polled_us > at_us:
            self.polled_us = None
            for seen in self.slowdowns.values():
                seen.polls, seen.last_us = 0, None

    def clear(self) -> None:
        """Ends all conditions."""
        for state in self.states.values():
            state.clear()
        for seen in self.slowdowns.values():
            seen.polls = 0
        self.open, self.quiet = [], True
