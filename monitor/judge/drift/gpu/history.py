"""History of one GPU: single minutes, five-minute intervals of eight hours, hours of four days; and
two periods of it compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.judge.drift.evidence import GpuComparison, Pair
from monitor.judge.drift.gpu.interval import Interval, merge
from monitor.judge.drift.settings import HOUR_US, MINUTE_US

MINUTES, BLOCKS, HOURS = 20, 96, 96
BLOCK_US = 5 * MINUTE_US
BLOCKS_PER_HOUR = 12
ALIKE_UTIL = 0.15  # largest difference between like utilisations
ENOUGH_ALIKE = 3  # intervals of the reference with like utilisation, before the rest is left out
COMPARED = (
    *("temp_c", "mem_temp_c", "margin_c", "sm_clock_mhz", "mem_clock_mhz", "util", "power_w"),
    *("power_limit_w", "vram_used_mib", "thermal_duty", "power_duty", "brake_duty"),
)

Period = tuple[int, int]  # from, until


@dataclass(slots=True)
class GpuHistory:
    """Bounded: under 30 kB as JSON, however long a GPU is watched."""

    minutes: list[Interval] = field(default_factory=list)
    blocks: list[Interval] = field(default_factory=list)
    hours: list[Interval] = field(default_factory=list)
    block_start_us: int | None = None  # minutes from here on are in no block yet

    def add(self, minute: Interval) -> None:
        """Keeps a minute that is over; they come in order."""
        if self.block_start_us is None:
            self.block_start_us = minute.at_us
        if minute.at_us >= self.block_start_us + BLOCK_US:
            self._close_block(self.block_start_us)
            self.block_start_us += (minute.at_us - self.block_start_us) // BLOCK_US * BLOCK_US
        self.minutes.append(minute)
        if len(self.minutes) > MINUTES:
            del self.minutes[0]

    def _close_block(self, start_us: int) -> None:
        inside = [minute for minute in self.minutes if start_us <= minute.at_us]
        if inside:
            self.blocks.append(merge(inside))
        if len(self.blocks) >= BLOCKS + BLOCKS_PER_HOUR:
            until_us = self.blocks[0].at_us + HOUR_US
            count = sum(block.at_us < until_us for block in self.blocks[:BLOCKS_PER_HOUR])
            self.hours.append(merge(self.blocks[:count]))
            del self.blocks[:count]
            del self.hours[:-HOURS]

    def forget_after(self, at_us: int) -> None:
        """Drops intervals dated later, which were recorded while the clock was ahead."""
        for parts in (self.minutes, self.blocks, self.hours):
            parts[:] = [part for part in parts if part.at_us <= at_us]
        if self.block_start_us is not None and self.block_start_us > at_us:
            self.block_start_us += (at_us - self.block_start_us) // BLOCK_US * BLOCK_US

    def baseline(self) -> Interval:
        """The last days as one interval, without the last ten minutes or so."""
        parts = [part for part in (*self.hours, *self.blocks[:-2]) if part.busy]
        return merge(parts) if parts else Interval(0)

    def last(self, count: int, busy: bool = False) -> list[Interval]:
        """The newest minutes, oldest first."""
        return [minute for minute in self.minutes if minute.busy or not busy][-count:]

    def within(self, period: Period) -> list[Interval]:
        """The intervals of a period, as finely as they are kept."""
        start_us, end_us = period
        fresh = [
            minute
            for minute in self.minutes
            if self.block_start_us is None or minute.at_us >= self.block_start_us
        ]
        every = (*self.hours, *self.blocks, *fresh)
        found = [part for part in every if start_us <= part.at_us < end_us]
        if len(found) <= 2:  # a short period: minutes, also those that are in a block already
            return [minute for minute in self.minutes if start_us <= minute.at_us < end_us] or found
        return found

    def compare(
        self, uuid: str, before: Period, now: Period, missing: tuple[str, ...]
    ) -> GpuComparison:
        """Compares two periods, the earlier one at like utilisation where there was any."""
        parts = self.within(now)
        late = merge(parts) if parts else Interval(0)
        early = _alike(self.within(before), late)
        return GpuComparison(
            uuid,
            residual_c=late.residual_c,
            missing=missing,
            **{name: Pair(getattr(early, name), getattr(late, name)) for name in COMPARED},
        )


def _alike(parts: Sequence[Interval], late: Interval) -> Interval:
    """The reference as one interval. Utilisation itself is that of all parts: at like utilisation a
    neighbour on the GPU would not show.
    """
    if not parts:
        return Interval(0)
    alike = [
        p
        for p in parts
        if p.util is not None and late.util is not None and abs(p.util - late.util) <= ALIKE_UTIL
    ]
    every = merge(parts)
    return merge(alike)._replace(util=every.util) if len(alike) >= ENOUGH_ALIKE else every
