"""All of drift detection for one target: fed with points, told the time, asked what it finds. All
state is plain data.

    detector.observe(point, settings)      a canary, a look at a GPU, or a reading of the metrics
    page; each stream in its own order
    detector.advance(now_us, settings)     closes the blocks that are over; whether what is found
    may have changed
    detector.findings(target, now, ...)    what is open; nothing changes by asking

`pydantic.TypeAdapter(Detector)` writes it down and takes it up again without a difference to the
last digit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from monitor.judge.drift.evidence import (
    Armed,
    Effect,
    GpuComparison,
    Observations,
    ServerComparison,
)
from monitor.judge.drift.gpu.attendance import call_roll
from monitor.judge.drift.gpu.ceiling import Ceiling
from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.elasticity import Elasticity
from monitor.judge.drift.problem import problems as troubles
from monitor.judge.drift.problem.findings import finding_of
from monitor.judge.drift.problem.problem import Observed, Problem
from monitor.judge.drift.server.flow import FlowChannel
from monitor.judge.drift.server.prefix_cache import PrefixChannel
from monitor.judge.drift.server.starts import StartChannel, slope_per_h
from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US, SECOND_US, DriftSettings
from monitor.judge.drift.speed.channel import SpeedChannel
from monitor.judge.drift.speed.levels import LevelChannel
from monitor.judge.drift.window import ChangeWindow, Comparison
from monitor.model import CanaryPoint, Finding, GpuPoint, GpuWarning, Outcome, Point, Severity

STATE_VERSION = (
    2  # raise it when what is stored cannot be read by the next version: it then learns anew
)
GUARD_BLOCKS = 3  # what came so shortly before an onset may belong to it already
GROWN = 1.25
FORGET_GPU_US = 7 * DAY_US  # a GPU that was not seen for so long, while others were, is forgotten
RELEARNT = "learnt anew"  # in the place of what was open
COMPARED = ("decode", "ttft", "steps")
MOVED_PCT = {
    "decode": 3.0,
    "ttft": 10.0,
    "steps": 3.0,
}  # what moved by less is calm: a few blocks tell no better
WHOLE_US = 30 * MINUTE_US  # so long a slow start may take until all of it is seen


@dataclass(slots=True)
class Detector:
    """One target."""

    speed: SpeedChannel = field(default_factory=SpeedChannel)
    levels: LevelChannel = field(default_factory=LevelChannel)
    window: ChangeWindow = field(default_factory=ChangeWindow)
    gpus: dict[str, GpuChannel] = field(default_factory=dict)
    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    flow: FlowChannel = field(default_factory=FlowChannel)
    prefix: PrefixChannel = field(default_factory=PrefixChannel)
    starts: StartChannel = field(default_factory=StartChannel)
    elasticity: Elasticity = field(default_factory=Elasticity)
    compared: list[Comparison] = field(
        default_factory=list
    )  # before and after the newest change of configuration,
    compared_with: int = 0  # of so many canaries after it
    open: dict[str, Problem] = field(default_factory=dict)
    signature: list[str] = field(default_factory=list)  # of what was open when it was judged last

    def observe(self, point: Point, settings: DriftSettings) -> None:
        """Take up one point."""
        if isinstance(point, CanaryPoint):
            self._canary(point, settings)
        elif isinstance(point, GpuPoint):
            self._gpu(point.uuid, point.at_us).gpu(point, settings)
            self.ceilings[point.uuid].gpu(point)
        else:
            self.speed.server(point, settings)
            self.flow.server(point, settings)

    def _canary(self, point: CanaryPoint, settings: DriftSettings) -> None:
        for part in (self.speed, self.window, self.flow, self.prefix, self.starts, self.elasticity):
            part.canary(point, settings)
        if (
            point.outcome != Outcome.HUNG
            # an engine that stands still is a trouble of its own (judge/availability.py), and not a
            # queue
        ):
            self.levels.canary(point, settings)
        if point.gpu_uuid is not None:
            self._gpu(point.gpu_uuid, point.known_us).canary(point, settings)
            self.ceilings[point.gpu_uuid].canary(point)

    def _gpu(self, uuid: str, at_us: int) -> GpuChannel:
        if uuid not in self.gpus:
            self.gpus[uuid] = GpuChannel(uuid)
            self.ceilings[uuid] = Ceiling()
        gpu = self.gpus[uuid]
        if at_us >= gpu.attendance.roll_us:
            for name in call_roll(self.gpus, gpu.attendance, at_us, FORGET_GPU_US):
                del self.gpus[name], self.ceilings[name]
        return gpu

    def advance(self, now_us: int, settings: DriftSettings) -> bool:
        """Close what is over by now. Whether what is found may have changed."""
        before = self.speed.last_index
        self.speed.advance(now_us, settings)
        self.levels.advance(now_us, settings)
        self.window.advance(now_us, settings)
        for gpu in self.gpus.values():
            gpu.advance(now_us, settings)
        closed = self.flow.advance(now_us, settings) or self.speed.last_index != before
        signature = self._signature()
        if not closed and signature == self.signature:
            return False
        was_open = bool(self.open)
        self.signature = signature
        self.open = {trouble.name: trouble for trouble in self._judge(now_us, settings)}
        return was_open or bool(self.open)

    def _signature(self) -> list[str]:
        """What is open in the parts that wait for no block."""
        signs = [
            f"{uuid} {name}"
            for uuid, gpu in self.gpus.items()
            for name, latch in gpu.latches.items()
            if latch.open
        ]
        return signs + [
            name for name, state in self.levels.classes.items() if state.open is not None
        ]

    # -- judging
    # ------------------------------------------------------------------------------------------------------

    def _judge(self, now_us: int, settings: DriftSettings) -> list[Problem]:
        effects = self._effects(now_us, settings)
        levels = self.levels.effects(settings)
        warned = [
            warning
            for gpu in self.gpus.values()
            for warning in gpu.warnings(settings, self.elasticity)
        ]
        comparisons = self._compare(settings)
        slower = (
            _slower(comparisons, self.window.window.changed_us)
            if self.window.window is not None
            else {}
        )
        effects = {**slower, **effects}
        workload = self.flow.workload_shift()
        if not (effects or levels or warned or workload or comparisons):
            return []
        seen = Observed(
            effects=effects,
            levels=levels,
            warned=warned,
            observations=self._signs(effects or levels, warned, now_us, settings),
            workload=workload,
            changed_us=self._comparing(comparisons),
            comparisons={c.channel: c.verdict for c in comparisons},
        )
        return troubles.judge(seen, self.open, now_us)

    def _compare(self, settings: DriftSettings) -> list[Comparison]:
        """Before and after a change. A comparison is costly: it is made again when there is a
        quarter more to compare.
        """
        window = self.window.window
        if window is None:
            self.compared, self.compared_with = [], 0
        elif (
            not self.compared_with <= len(window.after) <= GROWN * self.compared_with
        ):  # fewer: it is another change
            self.compared, self.compared_with = self.window.compare(settings), len(window.after)
        return self.compared

    def _effects(self, now_us: int, settings: DriftSettings) -> dict[str, Effect]:
        """Slower decoding, first tokens, steps, a slow start, a lost cache; by channel."""
        found = {effect.channel: effect for effect in self.speed.effects(settings)}
        for effect in (self._slow_start(settings), self.prefix.effect()):
            if effect is not None:
                found[effect.channel] = effect
        decode = found.get("decode")
        if decode is not None and "start" not in found:
            start_us = self.starts.restarted(
                decode.since_us, within_us=int(settings.block_s * SECOND_US)
            )  # it is dated by blocks
            if start_us is not None and self.starts.digest_changed(decode.since_us) is None:
                found["start"] = Effect(
                    "start", decode.shift, start_us, decode.severity, decode.statistic
                )
        return {} if self._half_seen(found, now_us, settings) else found

    def _half_seen(self, found: dict[str, Effect], now_us: int, settings: DriftSettings) -> bool:
        """First tokens of a new start are slow, and its decoding shows a loss too that has not
        lasted for long enough: told as one.
        """
        if set(found) != {"ttft"}:
            return False
        start_us = self.starts.restarted(found["ttft"].since_us)
        return (
            start_us is not None
            and now_us - start_us < WHOLE_US
            and self._moves("decode", found["ttft"].since_us, settings)
        )

    def _moves(self, channel: str, since_us: int, settings: DriftSettings) -> bool:
        """Whether a channel differs from normal by more than chance and more than a little,
        although no effect is open.
        """
        shift = self.speed.shift_since(channel, since_us, settings)
        return (
            shift is not None
            and not shift.low_pct <= 0.0 <= shift.high_pct
            and abs(shift.change_pct) > MOVED_PCT[channel]
        )

    def _is_calm(self, channel: str, since_us: int, settings: DriftSettings) -> bool:
        known = self.speed.shift_since(channel, since_us, settings) is not None
        return known and not self._moves(channel, since_us, settings)

    def _slow_start(self, settings: DriftSettings) -> Effect | None:
        offsets = (
            self.speed.start_offsets() if self.starts.starts else []
        )  # nothing to compare before a second start
        if self.starts.effect(offsets, [], settings) is None:
            return None
        return self.starts.effect(offsets, self.speed.series("decode", settings), settings)

    def _comparing(self, comparisons: Iterable[Comparison]) -> int | None:
        """When the digest changed, while that is still being compared with before."""
        window = self.window.window
        if window is None or all(c.verdict in {"same", "faster"} for c in comparisons):
            return None
        return window.changed_us

    def _signs(
        self,
        effects: dict[str, Effect],
        warned: list[GpuWarning],
        now_us: int,
        settings: DriftSettings,
    ) -> Observations:
        """All that attribution may look at, before the trouble began and now."""
        since_us = min(
            [e.since_us for e in effects.values()] + [w.since_us for w in warned], default=now_us
        )
        held = [
            trouble.since_us
            for trouble in self.open.values()
            if trouble.name not in {"workload", "config"}
        ]
        since_us = min([since_us, *held])
        felt_us = min((e.since_us for e in effects.values()), default=since_us)
        before = (since_us - DAY_US, since_us - int(GUARD_BLOCKS * settings.block_s * SECOND_US))
        now = (max(felt_us, now_us - HOUR_US), now_us + 1)
        start_us = self.starts.process_start_us
        return Observations(
            effects=effects,
            calm=tuple(
                c for c in COMPARED if c not in effects and self._is_calm(c, felt_us, settings)
            ),
            gpus=tuple(self._gpu_signs(uuid, before, now, settings) for uuid in self.gpus),
            flow=self._flow_signs(before, now, settings),
            since_us=felt_us,
            restarted_us=self.starts.restarted(felt_us),
            digest_changed_us=self.starts.digest_changed(felt_us),
            slope_per_h=slope_per_h(self.speed.series("decode", settings), start_us)
            if effects
            else None,
        )

    def _gpu_signs(
        self, uuid: str, before: tuple[int, int], now: tuple[int, int], settings: DriftSettings
    ) -> GpuComparison:
        signs = self.gpus[uuid].signs(before, now, settings)
        top_util, top_power_w, idle_util = self.ceilings[uuid].signs(before, now)
        return replace(signs, top_util=top_util, top_power_w=top_power_w, idle_util=idle_util)

    def _flow_signs(
        self, before: tuple[int, int], now: tuple[int, int], settings: DriftSettings
    ) -> ServerComparison:
        return replace(self.flow.signs(before, now, settings), cached_share=self.prefix.share())

    # -- questions
    # ----------------------------------------------------------------------------------------------------

    def findings(self, target: str, now_us: int, settings: DriftSettings) -> list[Finding]:  # noqa: ARG002 - as all judges are asked
        """What is open, one finding a trouble."""
        return [finding_of(trouble, target) for trouble in self.open.values()]

    def suspicion(self, settings: DriftSettings) -> float:
        """0..1: how near the speed or level channels are to an alarm; what is open already needs no
        closer look.
        """
        return max(self.speed.suspicion(settings), self.levels.suspicion(settings))

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """What works, and what still learns."""
        found = [
            *self.levels.armed(settings),
            *(a for gpu in self.gpus.values() for a in gpu.armed(settings)),
        ]
        return [
            *found,
            *self.speed.armed(settings),
            *self.prefix.armed(),
            *self.flow.armed(settings),
        ]

    def relearn(self, now_us: int) -> None:
        """A person has accepted what is now (a pin): it is what is normal."""
        self.speed.relearn(now_us)
        self.flow.relearn(now_us)
        self.prefix.relearn()
        self.starts.accept(now_us)
        self.window.window = None
        for gpu in self.gpus.values():
            gpu.relearn(now_us)
        self.signature = [
            RELEARNT
        ]  # judged anew at once: what a GPU still shows is not over because an answer was pinned


def _slower(comparisons: Iterable[Comparison], changed_us: int) -> dict[str, Effect]:
    """What is slower after a change of configuration than before, as effects that began with it."""
    return {
        c.channel: Effect(
            c.channel,
            c.shift,
            changed_us,
            Severity.WARNING,
            {"p_value": c.p_value, "before": c.before, "after": c.after},
        )
        for c in comparisons
        if c.verdict == "slower" and c.shift is not None
    }
