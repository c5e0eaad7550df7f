"""What one GPU was like: single minutes, five-minute blocks of eight hours, hours of four days;
and two times of it side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.judge.drift.evidence import GpuComparison, Pair
from monitor.judge.drift.gpu.readings import Stretch, merged
from monitor.judge.drift.settings import HOUR_US, MINUTE_US

MINUTES, BLOCKS, HOURS = 20, 96, 96
BLOCK_US = 5 * MINUTE_US
AN_HOUR = 12  # blocks
ALIKE_UTIL = 0.15  # utilisations so close to each other are alike
ENOUGH_ALIKE = 3  # stretches of the reference with like utilisation, before the rest is left out
LIKE = tuple[int, int]  # from, until


@dataclass(slots=True)
class GpuHistory:
    """Bounded: under 30 kB as JSON, however long a GPU is watched."""

    minutes: list[Stretch] = field(default_factory=list)
    blocks: list[Stretch] = field(default_factory=list)
    hours: list[Stretch] = field(default_factory=list)
    blocked_us: int | None = None  # minutes from here on are in no block yet

    def add(self, minute: Stretch) -> bool:
        """Keep a minute that is over; they come in order. Whether a block was closed by it."""
        if self.blocked_us is None:
            self.blocked_us = minute.at_us
        closed = minute.at_us >= self.blocked_us + BLOCK_US
        if closed:
            self._close_block(self.blocked_us)
            self.blocked_us += (minute.at_us - self.blocked_us) // BLOCK_US * BLOCK_US
        self.minutes.append(minute)
        if len(self.minutes) > MINUTES:
            del self.minutes[0]
        return closed

    def _close_block(self, start_us: int) -> None:
        inside = [minute for minute in self.minutes if start_us <= minute.at_us]
        if inside:
            self.blocks.append(merged(inside))
        if len(self.blocks) >= BLOCKS + AN_HOUR:
            until_us = self.blocks[0].at_us + HOUR_US
            count = sum(block.at_us < until_us for block in self.blocks[:AN_HOUR])
            self.hours.append(merged(self.blocks[:count]))
            del self.blocks[:count]
            del self.hours[:-HOURS]

    def forget_after(self, at_us: int) -> None:
        """Leave out what is dated later: the clock was ahead when it was seen."""
        for parts in (self.minutes, self.blocks, self.hours):
            parts[:] = [part for part in parts if part.at_us <= at_us]
        if self.blocked_us is not None and self.blocked_us > at_us:
            self.blocked_us += (at_us - self.blocked_us) // BLOCK_US * BLOCK_US

    def usual(self) -> Stretch:
        """The last days as one stretch, without the last quarter of an hour or so."""
        parts = [part for part in (*self.hours, *self.blocks[:-2]) if part.busy]
        return merged(parts) if parts else Stretch(0)

    def last(self, count: int, busy: bool = False) -> list[Stretch]:
        """The newest minutes, oldest first."""
        return [minute for minute in self.minutes if minute.busy or not busy][-count:]

    def within(self, span: LIKE) -> list[Stretch]:
        """What is known of that time, as finely as it is kept."""
        start_us, end_us = span
        fresh = [
            minute
            for minute in self.minutes
            if self.blocked_us is None or minute.at_us >= self.blocked_us
        ]
        found = [
            part for part in (*self.hours, *self.blocks, *fresh) if start_us <= part.at_us < end_us
        ]
        if len(found) <= 2:  # a short time: minutes, also those that are in a block already
            return [minute for minute in self.minutes if start_us <= minute.at_us < end_us] or found
        return found

    def signs(self, uuid: str, before: LIKE, now: LIKE, missing: tuple[str, ...]) -> GpuComparison:
        """Now beside before, the latter under like utilisation where there was such a time."""
        parts = self.within(now)
        late = merged(parts) if parts else Stretch(0)
        early = _alike(self.within(before), late)
        return GpuComparison(
            uuid,
            residual_c=late.residual_c,
            missing=missing,
            **{name: Pair(getattr(early, name), getattr(late, name)) for name in COMPARED},
        )


COMPARED = (
    "temp_c", "mem_temp_c", "margin_c", "sm_clock_mhz", "mem_clock_mhz", "util", "power_w", "power_limit_w", "vram_used_mib",
    "thermal_duty", "power_duty", "brake_duty",
)  # fmt: skip


def _alike(parts: Sequence[Stretch], late: Stretch) -> Stretch:
    """The reference as one stretch. Utilisation itself is compared with all of it: to compare it
    with its like would hide a neighbour.
    """
    if not parts:
        return Stretch(0)
    alike = [
        p
        for p in parts
        if p.util is not None and late.util is not None and abs(p.util - late.util) <= ALIKE_UTIL
    ]
    every = merged(parts)
    return merged(alike)._replace(util=every.util) if len(alike) >= ENOUGH_ALIKE else every
