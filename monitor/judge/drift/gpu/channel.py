"""One GPU, watched for early warnings: throttled time, margin, clock, power limit, and heat that
its power does not explain.

Healthy, and not reported: idle clocks, H100 clock dips at prefill bursts, P2 on GeForce, clock
steps lost per degree, and a SwPowerCap bit that is always set (RTX 3090 under load, RTX 2080S even
at idle). The baseline is learned half an hour late and not at all while a condition is open, so
that a slow degradation does not become part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from monitor.judge.drift.evidence import Armed, GpuComparison
from monitor.judge.drift.gpu.armed import MISSING, armed_of, missing_of
from monitor.judge.drift.gpu.baseline import GpuBaseline
from monitor.judge.drift.gpu.ceiling import GpuCeiling
from monitor.judge.drift.gpu.conditions import GpuConditions
from monitor.judge.drift.gpu.elasticity import Elasticity
from monitor.judge.drift.gpu.history import GpuHistory, Period
from monitor.judge.drift.gpu.interval import Interval, rounded
from monitor.judge.drift.gpu.minute import minute_of
from monitor.judge.drift.gpu.presence import Presence
from monitor.judge.drift.gpu.reading import (
    Reading,
    has_gpu_reading,
    reading_of_poll,
    reading_of_sample,
)
from monitor.judge.drift.gpu.rules import FREEZING, is_unremarkable, judge_minute
from monitor.judge.drift.gpu.thermal_model import ThermalMinute
from monitor.judge.drift.gpu.time_grid import MinuteGrid
from monitor.judge.drift.gpu.warnings import Scene, warned_of
from monitor.judge.drift.settings import HOUR_US, MINUTE_US, DriftSettings
from monitor.model import CanaryPoint, GpuPoint, GpuWarning, Outcome

#: Conditions that become part of the baseline when a person accepts the present state. Throttling
#: and a small margin do not.
ACCEPTABLE = frozenset(
    {
        "power_limit",
        "power_duty",
        "clock_deficit",
        "clock_fall",
        "thermal_residual",
        "memory_residual",
    }
)
LAG_US = 30 * MINUTE_US  # the baseline is learned this much later
STALE_US = 5 * MINUTE_US  # precision with which the last time of a reading is kept
GAP_US = 15 * MINUTE_US  # after a longer gap conditions count from zero
AWAY_US = HOUR_US  # a GPU that was not seen for this long is reported with when it was last seen
DEFAULT_ELASTICITY = Elasticity()


class PendingMinute(NamedTuple):
    """A minute that waits to be learned from."""

    minute: Interval
    thermal: ThermalMinute | None


@dataclass(slots=True)
class GpuChannel:
    """One GPU of a target. Fed with its polls and with the samples that name it; all state is plain
    data.
    """

    uuid: str
    grid: MinuteGrid = field(default_factory=MinuteGrid)
    last_poll: Reading | None = None
    conditions: GpuConditions = field(default_factory=GpuConditions)
    baseline: GpuBaseline = field(default_factory=GpuBaseline)
    top_power_w: float = 0.0
    last_minute_us: int | None = None
    pending: list[PendingMinute] = field(default_factory=list)
    history: GpuHistory = field(default_factory=GpuHistory)
    before: Interval | None = None  # the GPU before the conditions that are open now
    # when each reading of MISSING was last there
    seen_us: dict[str, int] = field(default_factory=dict)
    presence: Presence = field(default_factory=Presence)
    ceiling: GpuCeiling = field(default_factory=GpuCeiling)

    def gpu(self, p: GpuPoint, settings: DriftSettings) -> None:
        """Processes one poll of the GPU."""
        self.ceiling.gpu(p)
        reading = reading_of_poll(p)
        if not self._take(reading, settings) or reading.event_reasons is None:
            return
        if self.conditions.note_poll(reading.event_reasons, reading.at_us):
            self.before = self.before or self.history.baseline()

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """Processes the GPU's state right after a good answer. It counts for a minute in which the
        polls saw no work, or where there are none.
        """
        if p.gpu_uuid != self.uuid:
            return
        self.ceiling.canary(p)
        if p.outcome == Outcome.OK and has_gpu_reading(p):
            self._take(reading_of_sample(p, self.top_power_w), settings)

    def _take(self, reading: Reading, settings: DriftSettings) -> bool:
        self.presence.note(reading.at_us, not reading.sampled)
        if self.grid.is_set_back(reading.at_us):
            self._set_back(reading.at_us)
        if settings.gpu_step_s != self.grid.step_s:
            self._change_step(settings)
        return self.grid.take(reading)

    def advance(self, now_us: int, settings: DriftSettings) -> None:
        """Closes the minutes that are over."""
        if settings.gpu_step_s != self.grid.step_s:
            self._change_step(settings)
        for at_us, readings in self.grid.over(now_us, settings):
            self._close(at_us, readings, settings)

    def _change_step(self, settings: DriftSettings) -> None:
        """Counts conditions that are not open from zero after a change of the step length. The
        baseline stays: temperatures, clocks and limits are the same in steps of any length, and
        their scatter is learned on.
        """
        self.grid.change_step(settings.gpu_step_s)
        self.conditions.forget()

    def _set_back(self, at_us: int) -> None:
        """Drops what was recorded while the clock was ahead, and is dated into the future."""
        self.history.forget_after(at_us)
        self.last_minute_us = self.history.minutes[-1].at_us if self.history.minutes else None
        self.grid.set_back(at_us, self.last_minute_us)
        self.pending = [one for one in self.pending if one.minute.at_us <= at_us]
        if (self.baseline.thermal.at_us or 0) > at_us:
            self.baseline.thermal.at_us = None  # its filters start again
        if self.last_poll is not None and self.last_poll.at_us > at_us:
            self.last_poll = None
        self.conditions.set_back(at_us)
        self.seen_us = {name: min(seen_us, at_us) for name, seen_us in self.seen_us.items()}
        self.presence.check_us = 0

    def leave(self) -> None:
        """Ends the conditions of a GPU that was removed. The baseline stays, in case it returns."""
        if not self.conditions.quiet:
            self.conditions.clear()
            self.before = None

    def relearn(self) -> None:
        """Accepts the present state: what open conditions contradict is learned again."""
        accepted = {name for name in ACCEPTABLE if self.conditions.states[name].open}
        self.baseline.accept(accepted)
        for name in accepted:
            self.conditions.states[name].clear()

    def _close(self, at_us: int, readings: list[Reading], settings: DriftSettings) -> None:
        """Judges one minute, learns from it later, and keeps it."""
        readings.sort(key=lambda reading: (reading.at_us, reading.sampled))
        minute = minute_of(at_us, readings, self.last_poll, self.top_power_w)
        thermal = None
        polls = [reading for reading in readings if not reading.sampled]
        if polls:  # a sample has the power of one moment only, too little for a thermal model
            self.last_poll = polls[-1]
            minute, thermal = self._with_residuals(minute, polls)
        self.top_power_w = max(self.top_power_w, minute.power_w or 0.0)
        quiet = self.conditions.quiet
        if polls or not quiet or not is_unremarkable(minute, self.baseline, settings):
            minute = self._judge(minute, settings)
        self.last_minute_us = at_us
        self._learn(PendingMinute(minute, thermal))
        self.history.add(minute)
        self._note_readings(minute)

    def _with_residuals(
        self, minute: Interval, polls: Sequence[Reading]
    ) -> tuple[Interval, ThermalMinute | None]:
        """The minute with what its power does not explain of its temperature, and what the thermal
        model can learn from it.
        """
        model = self.baseline.thermal
        thermal = model.follow(polls)
        if thermal is None:
            return minute, None
        residual_c, mem_residual_c = model.residuals(thermal)
        minute = minute._replace(
            residual_c=rounded(residual_c), mem_residual_c=rounded(mem_residual_c)
        )
        return minute, thermal if model.settled(minute.at_us) else None

    def _judge(self, minute: Interval, settings: DriftSettings) -> Interval:
        """Applies every rule to the minute; the minute with its expected clock."""
        last_us, at_us = self.last_minute_us, minute.at_us
        deficit = self.baseline.clock.deficit(minute)
        if self.baseline.power_limit_w is None:
            self.baseline.power_limit_w = minute.power_limit_w
        judged = judge_minute(minute, self.baseline, deficit, settings)
        self.conditions.judge(at_us, judged, last_us is not None and at_us - last_us > GAP_US)
        if not self.conditions.open:
            self.before = None
        elif self.before is None:
            self.before = self.history.baseline()
        if deficit is None:
            return minute
        return minute._replace(expected_clock_mhz=round(deficit.expected_mhz, 1))

    def _learn(self, pending: PendingMinute) -> None:
        """Learns from the minute of half an hour ago; discards what waits while a condition is
        open.
        """
        if self.conditions.open and self.conditions.any_open(FREEZING):
            self.pending.clear()
            return
        self.pending.append(pending)
        while self.pending[0].minute.at_us <= pending.minute.at_us - LAG_US:
            self.baseline.learn(*self.pending.pop(0))

    def _note_readings(self, minute: Interval) -> None:
        at_us = minute.at_us
        for name in MISSING:
            if at_us - self.seen_us.get(name, -STALE_US) < STALE_US:
                continue
            if getattr(minute, name) is not None:
                self.seen_us[name] = at_us

    def warnings(
        self, settings: DriftSettings, elasticity: Elasticity = DEFAULT_ELASTICITY
    ) -> list[GpuWarning]:
        """Open conditions, each with its predicted effect. A low clock that another condition
        explains is in the evidence of that condition only.
        """
        since = self.conditions.since()
        if not since:
            return []
        newest_us = self.grid.newest_us
        scene = Scene(
            uuid=self.uuid,
            history=self.history,
            before=self.before or Interval(0),
            baseline=self.baseline,
            elasticity=elasticity,
            settings=settings,
            away_us=newest_us if self.grid.now_us - newest_us > AWAY_US else None,
        )
        return warned_of(since, scene)

    def compare(self, before: Period, now: Period) -> GpuComparison:
        """Compares two periods (from, until), the earlier one at like utilisation."""
        compared = self.history.compare(self.uuid, before, now, self.missing())
        top_util, top_power_w, idle_util = self.ceiling.compare(before, now)
        return replace(compared, top_util=top_util, top_power_w=top_power_w, idle_util=idle_util)

    def missing(self) -> tuple[str, ...]:
        """Readings that this GPU's source does not give, with how to get them."""
        return missing_of(self.seen_us, self.last_minute_us)

    def armed(self) -> list[Armed]:
        """Which judges of this GPU work, and which are still learning."""
        seen, dropped = self.last_minute_us is not None, self.grid.dropped
        return armed_of(self.uuid, self.baseline, self.missing(), seen, dropped)
