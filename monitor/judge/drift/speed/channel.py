"""Speed: did decode or the first token get slower at the same load, since when, and by how much?

Every warm, good canary is compared with the baseline of its probe under the same configuration at
the same load; residuals are pooled over all probes, block by block, and judged (track.py). The
configuration's digest chooses the baseline: a new digest starts a new baseline, an old one that
returns is recognised. A start of the process is a constant inside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from monitor.judge.drift.evidence import Armed, Effect, Shift
from monitor.judge.drift.settings import SECOND_US, DriftSettings
from monitor.judge.drift.speed.load import (
    MetricValue,
    decode_load,
    decode_rate,
    probe_name,
    wait_load,
    wait_ms,
)
from monitor.judge.drift.speed.metric import MetricContext, MetricSpec, metrics, warning_threshold
from monitor.judge.drift.speed.start_offsets import StartOffset, scatter_of
from monitor.judge.drift.speed.step_rate import StepRate, steps_between
from monitor.judge.drift.speed.track import MetricTrack
from monitor.judge.drift.stats.blocks import OpenBlocks
from monitor.model import CanaryPoint, Outcome, Phase, ServerPoint

MOST_BASELINES = 4
NOISE_BLOCKS = 16  # over which the AR(1) noise averages out in the offset of a start


@dataclass(slots=True)
class SpeedBaseline:
    """Baselines of all metrics under one configuration."""

    digest: str
    keys: dict[str, int] = field(default_factory=dict)  # probe and priority
    decode: MetricTrack = field(default_factory=MetricTrack)
    ttft: MetricTrack = field(default_factory=MetricTrack)
    steps: MetricTrack = field(default_factory=MetricTrack)

    def tracks(self) -> tuple[MetricTrack, MetricTrack, MetricTrack]:
        """In the order of metric.metrics."""
        return self.decode, self.ttft, self.steps

    def key(self, p: CanaryPoint) -> int:
        """Number of a probe and priority; canaries after a rest are compared among themselves."""
        name = probe_name(p)
        if p.phase != Phase.WARM:
            name = f"{name} ({p.phase})"
        return self.keys.setdefault(name, len(self.keys))


@dataclass(slots=True)
class SpeedChannel:
    """Decode rate, time to first token and engine steps of one target."""

    canaries: OpenBlocks[CanaryPoint] = field(default_factory=OpenBlocks)
    rates: list[StepRate] = field(default_factory=list)  # of blocks that are still open
    last_reading: ServerPoint | None = None
    baselines: list[SpeedBaseline] = field(default_factory=list)  # the one in use is the last
    last_index: int = 0

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """Processes one good canary that was not cold. Cheap: the work is done when the block is
        over.
        """
        if p.outcome == Outcome.OK and p.phase != Phase.COLD:
            self.canaries.add(p, p.known_us, settings.block_us, settings.grace_us)

    def server(self, p: ServerPoint) -> None:
        """Processes one reading of the metrics page: engine steps since the last one."""
        before, self.last_reading = self.last_reading, p
        rate = steps_between(before, p)
        if rate is None or self.canaries.anchor_us is None:
            return
        if p.at_us >= self.canaries.start_us(self.canaries.next_index):
            self.rates.append(rate)

    def advance(self, now_us: int, settings: DriftSettings) -> None:
        """Closes the blocks that are over."""
        if now_us < self.canaries.due_us:
            return
        for index, points in self.canaries.closed(now_us, settings.grace_us):
            end_us = self.canaries.start_us(index + 1)
            rates = [rate for rate in self.rates if rate.at_us < end_us]
            self.rates = [rate for rate in self.rates if rate.at_us >= end_us]
            start_us = self.canaries.start_us(index)
            self._close(index, points, [r for r in rates if r.at_us >= start_us], settings)
        # engine steps of blocks without a canary are not judged
        open_us = self.canaries.start_us(self.canaries.next_index)
        self.rates = [rate for rate in self.rates if rate.at_us >= open_us]

    def _close(
        self,
        index: int,
        points: list[CanaryPoint],
        rates: list[StepRate],
        settings: DriftSettings,
    ) -> None:
        """Judges one block by the warm canaries of the configuration and the process seen last in
        it. Canaries after a rest, while clocks ramp up, count where there are no others (a server
        without other traffic).
        """
        self.last_index = index
        points = [p for p in points if p.phase == Phase.WARM] or points
        latest = max(points, key=attrgetter("at_us", "known_us"))
        digest, start_us = self._digest(points, latest), latest.process_start_us
        baseline = self._baseline(digest)
        # an unknown digest is no other configuration
        alike = [
            p
            for p in sorted(points, key=attrgetter("known_us", "at_us", "probe"))
            if (p.fingerprint or digest) == digest and p.process_start_us == start_us
        ]
        measured = (*_measurements(alike, baseline), _steps(rates))
        specs = metrics(settings)
        for track, values, metric in zip(baseline.tracks(), measured, specs, strict=True):
            track.close(index, values, start_us, MetricContext(metric, self.block_s, settings))

    def _digest(self, points: Sequence[CanaryPoint], latest: CanaryPoint) -> str:
        """The last known digest."""
        if latest.fingerprint:
            return latest.fingerprint
        named = [p.fingerprint for p in points if p.fingerprint is not None]
        if named:
            return named[-1]
        return self.baselines[-1].digest if self.baselines else ""

    @property
    def block_s(self) -> float:
        """Length of the blocks, which stays what it was at the first point."""
        return self.canaries.block_us / SECOND_US

    def _baseline(self, digest: str) -> SpeedBaseline:
        """The baseline of a configuration, moved to the end; a new one if it is not known. One
        learned before any digest could be read ("") belongs to the first digest that can.
        """
        if self.baselines and self.baselines[-1].digest in {digest, ""}:
            self.baselines[-1].digest = digest
            return self.baselines[-1]
        for track in self._tracks():
            track.rest()
        known = (b for b in self.baselines if b.digest == digest)
        found = next(known, None) or SpeedBaseline(digest)
        others = [b for b in self.baselines if b is not found]
        self.baselines = [*others, found][-MOST_BASELINES:]
        return found

    def _tracks(self) -> tuple[MetricTrack, ...]:
        return self.baselines[-1].tracks() if self.baselines else ()

    def _watched(self, settings: DriftSettings) -> list[tuple[MetricSpec, MetricTrack]]:
        return list(zip(metrics(settings), self._tracks(), strict=False))

    def effects(self, settings: DriftSettings) -> list[Effect]:
        """Open effects."""
        found = []
        for metric, track in self._watched(settings):
            if track.judge.effect is not None:
                start_us = self.canaries.start_us(track.judge.effect.onset)
                found.append(track.as_effect(metric, start_us, self.last_index))
        return [effect for effect in found if effect is not None]

    def shift_since(self, channel: str, since_us: int, settings: DriftSettings) -> Shift | None:
        """Change of a channel from its baseline since a time, whether or not that is an effect;
        None where nothing is known.
        """
        if self.canaries.anchor_us is None:
            return None
        index = (since_us - self.canaries.anchor_us) // self.canaries.block_us
        for metric, track in self._watched(settings):
            if metric.channel == channel:
                return track.shift_since(index, self.last_index, metric)
        return None

    def series(self, channel: str, settings: DriftSettings) -> list[tuple[int, float]]:
        """Start of each remembered block (us) and its residual (logarithm, lower is worse)."""
        for metric, track in self._watched(settings):
            if metric.channel == channel:
                return [(self.canaries.start_us(b.number), b.residual) for b in track.judge.blocks]
        return []

    def baseline_span(self) -> tuple[int, int] | None:
        """Start and end of the time from which the present baseline of decode was learned."""
        if not self.baselines or not self.baselines[-1].decode.model.span:
            return None
        first, last = self.baselines[-1].decode.model.span
        return self.canaries.start_us(first), self.canaries.start_us(last + 1)

    def suspicion(self, settings: DriftSettings) -> float:
        """0 … 1: how close the likeliest channel is to an alarm. Open effects do not count."""
        limit = warning_threshold(settings, self.block_s or settings.block_s)
        sums = [
            track.judge.evidence
            for track in self._tracks()
            if track.judge.effect is None and track.model.curve is not None
        ]
        return max(0.0, min(1.0, max(sums, default=0.0) / limit))

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Which channels work yet. Engine steps are listed only where there are any."""
        names = ("decode rate", "time to first token", "engine steps per second")
        tracks = self._tracks() or (MetricTrack(), MetricTrack(), MetricTrack())
        block_s = self.block_s or settings.block_s
        return [
            track.armed(name, MetricContext(metric, block_s, settings))
            for name, track, metric in zip(names, tracks, metrics(settings), strict=True)
            if track is not tracks[2] or track.model.learned_blocks
        ]

    def start_offsets(self) -> list[StartOffset]:
        """Offset of the decode rate from the baseline for each start of the process under the
        present configuration.
        """
        if not self.baselines:
            return []
        track, found = self.baselines[-1].decode, []
        starts, variance = track.judge.starts, track.model.noise.variance
        for start in starts:
            if start.offset is None:
                continue
            scatter, others = scatter_of(starts, start.process_start_us)
            noise = variance * NOISE_BLOCKS / (start.blocks + NOISE_BLOCKS)
            found.append(
                StartOffset(
                    process_start_us=start.process_start_us,
                    first_us=self.canaries.start_us(start.first_index),
                    offset=start.offset,
                    half_width=1.96 * math.sqrt(noise + 1 / start.weight),
                    blocks=start.blocks,
                    scatter=scatter,
                    others=others,
                )
            )
        return found

    def relearn(self, now_us: int) -> None:
        """Makes the present speed the baseline. Canaries known before this time that wait for their
        block are left out.
        """
        self.canaries.forget_until(now_us)
        for track in self._tracks():
            track.relearn()


def _measurements(
    points: Sequence[CanaryPoint], baseline: SpeedBaseline
) -> tuple[list[MetricValue], list[MetricValue]]:
    """Decode rates and waits for the first token."""
    rates: list[MetricValue] = []
    waits: list[MetricValue] = []
    for p in points:
        key, rate, wait = baseline.key(p), decode_rate(p), wait_ms(p)
        if rate is not None:
            rates.append(MetricValue(key, decode_load(p), math.log(rate)))
        if wait is not None:
            waits.append(MetricValue(key, wait_load(p), -math.log(wait)))
    return rates, waits


def _steps(rates: Sequence[StepRate]) -> list[MetricValue]:
    return [MetricValue(0, rate.load, rate.value) for rate in rates]
