"""One GPU, watched for what will be felt later: throttle time, margin, clock, power limit, and
heat that its power does not explain.

Normal and silent: idle clocks, H100 clock dips at prefill bursts, P2 on GeForce, boost bins lost by
the degree, and a SwPowerCap bit that is always on (RTX 3090 under load, RTX 2080S even at idle).
What a minute shows is judged when the minute is over (cardrules.py); only a hardware slowdown and a
power brake are taken from the looks themselves, two in a row. What is normal is learnt half an hour
late and not at all while something is open, so that a trouble that creeps up does not become the
norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.evidence import Armed, GpuComparison
from monitor.judge.drift.gpu.armed import MISSING, armed_of, missing_of
from monitor.judge.drift.gpu.attendance import Attendance
from monitor.judge.drift.gpu.clock_model import ClockModel, Deficit
from monitor.judge.drift.gpu.elasticity import Elasticity
from monitor.judge.drift.gpu.history import GpuHistory
from monitor.judge.drift.gpu.readings import (
    Heat,
    Look,
    Stretch,
    look_of_gpu,
    look_of_sample,
    mean,
    minute_of,
    rounded,
    tells_of_gpu,
)
from monitor.judge.drift.gpu.rules import EXPLAINING, FREEZING, RULES, Normal, is_dull, judge_minute
from monitor.judge.drift.gpu.thermal_model import ThermalModel
from monitor.judge.drift.gpu.time_grid import GpuGrid
from monitor.judge.drift.gpu.warnings import Scene, warned_of
from monitor.judge.drift.settings import HOUR_US, MINUTE_US, DriftSettings
from monitor.judge.drift.stats.hysteresis import Latch, Usual
from monitor.model import CanaryPoint, GpuPoint, GpuWarning, Outcome

POLLS = 2  # in a row: a hardware slowdown may flash at a change of P-state
HARDWARE = {
    "hw_thermal": 0x40,
    "brake": 0x80,
}  # nvmlClocksEventReasonHwThermalSlowdown, …HwPowerBrakeSlowdown
ACCEPTABLE = (
    "power_limit",
    "power_duty",
    "clock_deficit",
    "clock_fall",
    "thermal_residual",
    "memory_residual",
)
LAG_US = 30 * MINUTE_US  # what is normal is learnt so much later
STALE_US = 5 * MINUTE_US  # how exactly it is kept when a reading was last there
SILENCE_US = 15 * MINUTE_US  # after so much of it a sign begins to count anew
AWAY_US = HOUR_US  # a GPU that was not seen for so long is told with when it was last seen
USUAL = Stretch._fields.index("usual_clock_mhz")
DEFAULT_ELASTICITY = Elasticity()


@dataclass(slots=True)
class Slowdown:
    """A hardware slowdown, as the looks show it."""

    polls: int = 0  # in a row
    first_us: int = 0
    last_us: int | None = None
    asked_us: int | None = None  # when a poll last told whether it is there


class Lesson(NamedTuple):
    """A minute that waits to be learnt from."""

    minute: Stretch
    heat: Heat | None


@dataclass(slots=True)
class GpuChannel:
    """One GPU of a target. Fed with its looks and with the samples that name it; all state is
    plain data.
    """

    uuid: str
    grid: GpuGrid = field(default_factory=GpuGrid)  # looks of open minutes
    last_poll: Look | None = None
    slowdowns: dict[str, Slowdown] = field(
        default_factory=lambda: {name: Slowdown() for name in HARDWARE}
    )
    latches: dict[str, Latch] = field(default_factory=lambda: {name: Latch() for name in RULES})
    normal: Normal = field(default_factory=Normal)
    top_power_w: float = 0.0
    last_minute_us: int | None = None
    unlearnt: list[Lesson] = field(default_factory=list)
    history: GpuHistory = field(default_factory=GpuHistory)
    quiet: bool = True  # no sign is open, and none is on its way
    open: list[str] = field(default_factory=list)  # signs, as of the last minute
    usual: Stretch | None = None  # what the GPU was like before what is open now
    seen_us: dict[str, int] = field(
        default_factory=dict
    )  # when a reading that proves something was last there
    attendance: Attendance = field(default_factory=Attendance)

    # -- feeding
    # ------------------------------------------------------------------------------------------------------

    def gpu(self, p: GpuPoint, settings: DriftSettings) -> None:
        """One poll of the GPU."""
        look = look_of_gpu(p)
        if self._take(look, settings) and look.reasons is not None:
            for name, bit in HARDWARE.items():
                self._note_slowdown(name, look.reasons & bit > 0, look.at_us)

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """One good answer: the GPU right after it. It speaks for a minute in which the polls saw
        no work, or where there are none.
        """
        if p.gpu_uuid == self.uuid and p.outcome == Outcome.OK and tells_of_gpu(p):
            self._take(look_of_sample(p, self.top_power_w), settings)

    def _take(self, look: Look, settings: DriftSettings) -> bool:
        self.attendance.note(look.at_us, not look.sampled)
        if self.grid.is_set_back(look.at_us):
            self._set_back(look.at_us)
        if settings.gpu_step_s != self.grid.step_s:
            self._change_step(settings)
        return self.grid.take(look)

    def _note_slowdown(self, name: str, there: bool, at_us: int) -> None:
        """A hardware slowdown cuts the clock in half or more: two polls are enough, whatever the
        minute says.
        """
        seen = self.slowdowns[name]
        seen.asked_us = at_us
        if not there:
            seen.polls = 0
            return
        seen.first_us = at_us if seen.polls == 0 else seen.first_us
        seen.polls, seen.last_us = seen.polls + 1, at_us
        latch = self.latches[name]
        if seen.polls >= POLLS and not latch.open:
            latch.open, latch.good, latch.first_us = True, 0, seen.first_us
            self.quiet = False
            self.usual = self.usual or self.history.usual()

    def advance(self, now_us: int, settings: DriftSettings) -> None:
        """Close the minutes that are over by now."""
        if settings.gpu_step_s != self.grid.step_s:
            self._change_step(settings)
        for at_us, looks in self.grid.over(now_us, settings):
            self._close(at_us, looks, settings)

    def _change_step(self, settings: DriftSettings) -> None:
        """Where the length of a step was changed, signs that are not open are counted anew. What
        was learnt stays: temperatures, clocks and limits are the same in steps of any length, and
        their scatter is learnt on.
        """
        self.grid.change_step(settings.gpu_step_s)
        for latch in self.latches.values():
            latch.forget()

    def _set_back(self, at_us: int) -> None:
        """The clock was ahead, and what was seen with it is dated into the future: forget that."""
        self.history.forget_after(at_us)
        self.last_minute_us = self.history.minutes[-1].at_us if self.history.minutes else None
        self.grid.set_back(at_us, self.last_minute_us)
        self.unlearnt = [lesson for lesson in self.unlearnt if lesson.minute.at_us <= at_us]
        if (self.normal.thermal.at_us or 0) > at_us:
            self.normal.thermal.at_us = None  # its filters begin anew
        if self.last_poll is not None and self.last_poll.at_us > at_us:
            self.last_poll = None
        for latch in self.latches.values():
            if latch.first_us is not None and latch.first_us > at_us:
                latch.first_us = at_us
        for seen in self.slowdowns.values():
            if seen.asked_us is not None and seen.asked_us > at_us:
                seen.polls, seen.last_us, seen.asked_us = 0, None, None
        self.seen_us = {name: min(seen_us, at_us) for name, seen_us in self.seen_us.items()}
        self.attendance.roll_us = 0

    def leave(self) -> None:
        """It was taken out: what it showed is over. What is normal for it stays, should it come
        back.
        """
        if not self.quiet:
            for latch in self.latches.values():
                latch.clear()
            for seen in self.slowdowns.values():
                seen.polls = 0
            self.open, self.quiet, self.usual = [], True, None

    def relearn(self, now_us: int) -> None:  # noqa: ARG002 - every part is told the time
        """A person accepted what is now: of what is open, the limit, the clocks and the unexplained
        heat become normal. Throttling and a small margin are what they are, accepted or not, and
        what is not open was learnt well and stays.
        """
        normal, accepted = self.normal, [name for name in ACCEPTABLE if self.latches[name].open]
        if "power_limit" in accepted:
            normal.power_limit_w = None
        if {"power_limit", "power_duty", "clock_deficit", "clock_fall"} & set(accepted):
            normal.clock, normal.power_duty = ClockModel(), Usual()
        if {"thermal_residual", "memory_residual"} & set(accepted):
            normal.thermal = ThermalModel()
        for name in accepted:
            self.latches[name].clear()

    # -- one minute
    # ---------------------------------------------------------------------------------------------------

    def _close(self, at_us: int, looks: list[Look], settings: DriftSettings) -> None:
        looks.sort(key=lambda look: (look.at_us, look.sampled))
        minute, heat = minute_of(at_us, looks, self.last_poll, self.top_power_w), None
        polls = [look for look in looks if not look.sampled]
        if polls:  # beside a sample there is the power of one moment: no heat can be told from that
            self.last_poll = polls[-1]
            minute, heat = self._with_heat(minute, polls)
        self.top_power_w = max(self.top_power_w, minute.power_w or 0.0)
        if polls or not self.quiet or not is_dull(minute, self.normal, settings):
            minute = self._judged(minute, settings)
        self.last_minute_us = at_us
        self._learn(Lesson(minute, heat))
        self.history.add(minute)
        for name in MISSING:
            if (
                at_us - self.seen_us.get(name, -STALE_US) >= STALE_US
                and getattr(minute, name) is not None
            ):
                self.seen_us[name] = at_us

    def _with_heat(self, minute: Stretch, polls: Sequence[Look]) -> tuple[Stretch, Heat | None]:
        """Let the thermal model follow; the minute with what its power explains of its temperature,
        and what it can teach.
        """
        thermal, states = self.normal.thermal, []
        for look in polls:
            thermal.step(look)
            states.append(thermal.filters)
        states = [state for state in states if state]
        if not states:
            return minute, None
        filters = tuple(
            [round(sum(values) / len(states), 2) for values in zip(*states, strict=True)]
        )
        heat = Heat(
            filters,
            mean([look.temp_c for look in polls]),
            mean([look.mem_temp_c for look in polls]),
        )
        residual_c, mem_residual_c = thermal.residuals(*heat)
        minute = minute._replace(
            residual_c=rounded(residual_c), mem_residual_c=rounded(mem_residual_c)
        )
        return minute, heat if thermal.settled(minute.at_us) else None

    def _judged(self, minute: Stretch, settings: DriftSettings) -> Stretch:
        """Every rule about the minute; the minute with what its temperature and power explain of
        its clock.
        """
        deficit = self.normal.clock.deficit(minute)
        self._judge(minute, deficit, settings)
        return (
            minute
            if deficit is None
            else Stretch._make((*minute[:USUAL], round(deficit.usual_mhz, 1), *minute[USUAL + 1 :]))
        )

    def _judge(self, minute: Stretch, deficit: Deficit | None, settings: DriftSettings) -> None:
        silent = self.last_minute_us is not None and minute.at_us - self.last_minute_us > SILENCE_US
        if self.normal.power_limit_w is None:
            self.normal.power_limit_w = minute.power_limit_w
        judged = judge_minute(minute, self.normal, deficit, settings)
        if self.quiet and True not in judged.values():
            return
        explained = self._open(EXPLAINING)
        for name, latch in self.latches.items():
            if silent:
                latch.forget()
            hit = judged.get(name)
            if latch.open and name in HARDWARE:
                hit = self._slowed(name, minute, hit)
            if hit or latch.hits or latch.open:
                latch.minute(hit, minute.at_us, RULES[name])
        self._note_open(explained)

    def _note_open(self, explained: list[str]) -> None:
        """What is open now, and what the GPU was like before."""
        if explained and not self._open(
            EXPLAINING
        ):  # what explained a low clock is over: from here on it must stand for itself
            self.latches["clock_deficit"].clear()
            self.latches["clock_fall"].clear()
        self.open = self._open(self.latches)
        self.quiet = not any(latch.open or latch.hits for latch in self.latches.values())
        if not self.open:
            self.usual = None
        elif self.usual is None:
            self.usual = self.history.usual()

    def _open(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.latches[name].open]

    def _slowed(self, name: str, minute: Stretch, hit: bool | None) -> bool | None:
        """A slowdown that two polls opened lasts while any poll still shows it."""
        seen = self.slowdowns[name]
        if seen.last_us is not None and seen.last_us >= minute.at_us:
            return True
        return (
            False
            if hit is None and seen.asked_us is not None and seen.asked_us >= minute.at_us
            else hit
        )

    def _learn(self, lesson: Lesson) -> None:
        if self.open and self._open(FREEZING):
            self.unlearnt.clear()
            return
        self.unlearnt.append(lesson)
        while self.unlearnt[0].minute.at_us <= lesson.minute.at_us - LAG_US:
            self.normal.learn(*self.unlearnt.pop(0))

    # -- questions
    # ----------------------------------------------------------------------------------------------------

    def warnings(
        self, settings: DriftSettings, elasticity: Elasticity = DEFAULT_ELASTICITY
    ) -> list[GpuWarning]:
        """What is open now, each with what it predicts and what to look at. One trouble is told
        once: a low clock that another sign explains is in the evidence of that sign.
        """
        signs = {name: latch.first_us or 0 for name, latch in self.latches.items() if latch.open}
        if not signs:
            return []
        away = self.grid.newest_us if self.grid.told_us - self.grid.newest_us > AWAY_US else None
        return warned_of(
            signs,
            Scene(
                self.uuid,
                self.history,
                self.usual or Stretch(0),
                self.normal,
                elasticity,
                settings,
                away,
            ),
        )

    def signs(
        self, before: tuple[int, int], now: tuple[int, int], _settings: DriftSettings
    ) -> GpuComparison:
        """Two times of this GPU side by side (from, until), the earlier one under like
        utilisation.
        """
        return self.history.signs(self.uuid, before, now, self.missing())

    def missing(self) -> tuple[str, ...]:
        """Readings that a proof would need and that this GPU's source does not give, as a person
        knows them, with how to get them.
        """
        return missing_of(self.seen_us, self.last_minute_us)

    def armed(self, settings: DriftSettings) -> list[Armed]:  # noqa: ARG002
        """What works for this GPU, and what still learns."""
        return armed_of(
            self.uuid,
            self.normal,
            self.missing(),
            self.last_minute_us is not None,
            self.grid.dropped,
        )
