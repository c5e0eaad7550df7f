"""All of drift detection for one target: processes points, advances in time, returns findings.
All state is plain data.

    detector.observe(point, settings)      a canary, a poll of a GPU, or a reading of the metrics
                                           page; each stream in its own order
    detector.advance(now_us, settings)     closes the blocks that are over; whether findings may
                                           have changed
    detector.findings(target, now, ...)    open problems; asking changes nothing

`pydantic.TypeAdapter(Detector)` serialises it without losing a digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from monitor.judge.drift.evidence import Armed, Effect, Observations
from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.elasticity import Elasticity
from monitor.judge.drift.gpu.presence import check_others
from monitor.judge.drift.problem import problems
from monitor.judge.drift.problem.findings import finding_of
from monitor.judge.drift.problem.problem import Observed, Problem
from monitor.judge.drift.server.channel import ServerChannel
from monitor.judge.drift.server.prefix_cache import PrefixCacheChannel
from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US, DriftSettings
from monitor.judge.drift.speed.change_window import ChangeComparison, ChangeWindow
from monitor.judge.drift.speed.channel import SpeedChannel
from monitor.judge.drift.speed.levels import LevelChannel
from monitor.judge.drift.speed.starts import StartChannel, slope_per_h
from monitor.model import CanaryPoint, Finding, GpuPoint, GpuWarning, Outcome, Point

# raise it when the same fields mean something else: the state is then learned again from history
STATE_VERSION = 2
GUARD_BLOCKS = 3  # blocks this shortly before an onset may belong to it already
FORGET_GPU_US = 7 * DAY_US  # a GPU that was not seen for this long, while others were, is forgotten
RELEARN = "relearn"  # replaces the signature, so that everything is judged again
CHANNELS = ("decode", "ttft", "steps")
# a channel with a smaller change is calm: a few blocks cannot tell
MOVED_PCT = {"decode": 3.0, "ttft": 10.0, "steps": 3.0}
WHOLE_US = 30 * MINUTE_US  # after this the whole effect of a slow start is visible
#: Problems that are no loss of speed, and do not set the reference period.
NO_LOSS = frozenset({"workload", "config"})


@dataclass(slots=True)
class Detector:
    """One target."""

    speed: SpeedChannel = field(default_factory=SpeedChannel)
    levels: LevelChannel = field(default_factory=LevelChannel)
    change_window: ChangeWindow = field(default_factory=ChangeWindow)
    gpus: dict[str, GpuChannel] = field(default_factory=dict)
    server: ServerChannel = field(default_factory=ServerChannel)
    prefix_cache: PrefixCacheChannel = field(default_factory=PrefixCacheChannel)
    starts: StartChannel = field(default_factory=StartChannel)
    elasticity: Elasticity = field(default_factory=Elasticity)
    open: dict[str, Problem] = field(default_factory=dict)
    signature: list[str] = field(default_factory=list)  # as of the last judgement

    def observe(self, point: Point, settings: DriftSettings) -> None:
        """Processes one point."""
        if isinstance(point, CanaryPoint):
            self._canary(point, settings)
        elif isinstance(point, GpuPoint):
            self._gpu(point.uuid, point.at_us).gpu(point, settings)
        else:
            self.speed.server(point)
            self.server.server(point)

    def _canary(self, point: CanaryPoint, settings: DriftSettings) -> None:
        self.speed.canary(point, settings)
        self.change_window.canary(point)
        self.server.canary(point)
        self.prefix_cache.canary(point, settings)
        self.starts.canary(point)
        self.elasticity.canary(point)
        if point.outcome != Outcome.HUNG:  # a hang has a judge of its own (judge/availability.py)
            self.levels.canary(point, settings)
        if point.gpu_uuid is not None:
            self._gpu(point.gpu_uuid, point.known_us).canary(point, settings)

    def _gpu(self, uuid: str, at_us: int) -> GpuChannel:
        if uuid not in self.gpus:
            self.gpus[uuid] = GpuChannel(uuid)
        gpu = self.gpus[uuid]
        if at_us >= gpu.presence.check_us:
            for name in check_others(self.gpus, gpu.presence, at_us, FORGET_GPU_US):
                del self.gpus[name]
        return gpu

    def advance(self, now_us: int, settings: DriftSettings) -> bool:
        """Closes finished blocks; returns whether findings may have changed."""
        before = self.speed.last_index
        self.speed.advance(now_us, settings)
        self.change_window.advance(now_us)
        for gpu in self.gpus.values():
            gpu.advance(now_us, settings)
        closed = self.server.advance(now_us, settings) or self.speed.last_index != before
        signature = self._signature()
        if not closed and signature == self.signature:
            return False
        was_open = bool(self.open)
        self.signature = signature
        self.open = {problem.name: problem for problem in self._judge(now_us, settings)}
        return was_open or bool(self.open)

    def _signature(self) -> list[str]:
        """Open conditions and levels, which wait for no block."""
        conditions = [
            f"{uuid} {name}" for uuid, gpu in self.gpus.items() for name in gpu.conditions.since()
        ]
        levels = [name for name, state in self.levels.classes.items() if state.open is not None]
        return conditions + levels

    def _judge(self, now_us: int, settings: DriftSettings) -> list[Problem]:
        effects = self._effects(now_us, settings)
        levels = self.levels.effects(settings)
        warned = [w for gpu in self.gpus.values() for w in gpu.warnings(settings, self.elasticity)]
        comparisons = self.change_window.comparisons(settings)
        effects = {**self.change_window.slower(comparisons), **effects}
        workload = self.server.workload_shift()
        if not (effects or levels or warned or workload or comparisons):
            return []
        observed = Observed(
            effects=effects,
            levels=levels,
            warned=warned,
            observations=self._observations(effects or levels, warned, now_us, settings),
            workload=workload,
            changed_us=self._undecided_change(comparisons),
            comparisons={c.channel: c.verdict for c in comparisons},
        )
        return problems.judge(observed, self.open, now_us)

    def _undecided_change(self, comparisons: Sequence[ChangeComparison]) -> int | None:
        """When the digest changed, while the comparison with before has no verdict or is slower."""
        change = self.change_window.change
        if change is None or all(c.verdict in {"same", "faster"} for c in comparisons):
            return None
        return change.changed_us

    def _effects(self, now_us: int, settings: DriftSettings) -> dict[str, Effect]:
        """Effects by channel: decode, ttft, steps, start, cache."""
        found = {effect.channel: effect for effect in self.speed.effects(settings)}
        for effect in (self._slow_start(settings), self.prefix_cache.effect()):
            if effect is not None:
                found[effect.channel] = effect
        decode = found.get("decode")
        if decode is not None and "start" not in found:
            # the effect is dated to the start of its block
            start_us = self.starts.restarted(decode.since_us, within_us=settings.block_us)
            if start_us is not None and self.starts.digest_changed(decode.since_us) is None:
                found["start"] = replace(decode, channel="start", since_us=start_us)
        return {} if self._is_incomplete(found, now_us, settings) else found

    def _slow_start(self, settings: DriftSettings) -> Effect | None:
        # nothing to compare before a second start
        offsets = self.speed.start_offsets() if self.starts.starts else []
        if self.starts.effect(offsets, [], settings) is None:
            return None
        return self.starts.effect(offsets, self.speed.series("decode", settings), settings)

    def _is_incomplete(
        self, found: dict[str, Effect], now_us: int, settings: DriftSettings
    ) -> bool:
        """Whether first tokens after a start are slow and the loss of decode rate has not lasted
        long enough yet: both are reported as one.
        """
        if set(found) != {"ttft"}:
            return False
        since_us = found["ttft"].since_us
        start_us = self.starts.restarted(since_us)
        if start_us is None or now_us - start_us >= WHOLE_US:
            return False
        return self._has_moved("decode", since_us, settings)

    def _has_moved(self, channel: str, since_us: int, settings: DriftSettings) -> bool:
        """Whether a channel differs from its baseline by more than chance and by a relevant size,
        although no effect is open.
        """
        shift = self.speed.shift_since(channel, since_us, settings)
        if shift is None or shift.low_pct <= 0.0 <= shift.high_pct:
            return False
        return abs(shift.change_pct) > MOVED_PCT[channel]

    def _is_calm(self, channel: str, since_us: int, settings: DriftSettings) -> bool:
        known = self.speed.shift_since(channel, since_us, settings) is not None
        return known and not self._has_moved(channel, since_us, settings)

    def _observations(
        self,
        effects: dict[str, Effect],
        warned: Sequence[GpuWarning],
        now_us: int,
        settings: DriftSettings,
    ) -> Observations:
        """Everything that attribution may use: the last hour, compared with the day before the
        earliest onset.
        """
        onsets = [e.since_us for e in effects.values()]
        earliest_us = min([*onsets, *(w.since_us for w in warned)], default=now_us)
        known = [p.since_us for p in self.open.values() if p.name not in NO_LOSS]
        earliest_us = min([earliest_us, *known])
        effect_us = min(onsets, default=earliest_us)
        before = (earliest_us - DAY_US, earliest_us - GUARD_BLOCKS * settings.block_us)
        now = (max(effect_us, now_us - HOUR_US), now_us + 1)
        start_us, cached_share = self.starts.process_start_us, self.prefix_cache.share()
        slope = slope_per_h(self.speed.series("decode", settings), start_us) if effects else None
        return Observations(
            effects=effects,
            calm=tuple(
                channel
                for channel in CHANNELS
                if channel not in effects and self._is_calm(channel, effect_us, settings)
            ),
            gpus=tuple(gpu.compare(before, now) for gpu in self.gpus.values()),
            server=self.server.compare(before, now, settings, cached_share),
            since_us=effect_us,
            restarted_us=self.starts.restarted(effect_us),
            digest_changed_us=self.starts.digest_changed(effect_us),
            slope_per_h=slope,
        )

    def findings(self, target: str, now_us: int, settings: DriftSettings) -> list[Finding]:  # noqa: ARG002 - the interface of all judges
        """Open problems, one finding each."""
        return [finding_of(problem, target) for problem in self.open.values()]

    def suspicion(self, settings: DriftSettings) -> float:
        """0..1: how close the speed or level channels are to an alarm. Open problems do not
        count.
        """
        return max(self.speed.suspicion(settings), self.levels.suspicion(settings))

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Which parts work, and which are still learning."""
        return [
            *self.levels.armed(settings),
            *(armed for gpu in self.gpus.values() for armed in gpu.armed()),
            *self.speed.armed(settings),
            *self.prefix_cache.armed(),
            *self.server.armed(settings),
        ]

    def relearn(self, now_us: int) -> None:
        """Makes the present state the baseline: a person has accepted it (a pin)."""
        self.speed.relearn(now_us)
        self.server.relearn(now_us)
        self.prefix_cache.relearn()
        self.starts.accept(now_us)
        self.change_window.change = None
        for gpu in self.gpus.values():
            gpu.relearn()
        # judged again at once: a GPU's conditions do not end because an answer was pinned
        self.signature = [RELEARN]
