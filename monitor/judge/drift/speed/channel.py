"""Speed: did decode or the first token get slower under the same load, since when, and by how much?

Every warm, good canary is compared with what its probe shows under the same configuration at the
same load; what is left is pooled over all probes, block by block, and watched (track.py). The
configuration's digest chooses the reference: a new one begins a new reference, an old one that
comes back is known again. A start of the process is a constant inside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from monitor.judge.drift.evidence import Armed, Effect, Shift
from monitor.judge.drift.settings import SECOND_US, DriftSettings
from monitor.judge.drift.speed.effects import Metric, warning_threshold
from monitor.judge.drift.speed.load import Load, Taken, decode_load, prompt_scale, wait_load
from monitor.judge.drift.speed.offsets import StartOffset, scatter_of
from monitor.judge.drift.speed.track import Track
from monitor.judge.drift.stats.blocks import OpenBlocks
from monitor.model import CanaryPoint, Outcome, Phase, ServerPoint

LEAST_TOKENS = 8  # below this one late chunk is most of the decode rate
MOST_REFERENCES = 4
TTFT_DROPS = (
    math.log(1.15),
    math.log(1.5),
)  # first tokens are noisy (their CV over three runs has a p90 of 20 %)
TTFT_PRACTICAL = math.log(1.10)
TTFT_PAGE = math.log(1.5)
DECODE_PAGE = -math.log(0.90)
STEPS_SEQUENCES = (
    4.0  # fewer than this running, and the engine may have stood still between two readings
)
STEPS_PROMPT_TOK_S = 1500.0  # below this, steps a second of a busy server scatter by 1.8 % only
STEPS_GAP_S = 60.0  # readings further apart say nothing


class Rate(NamedTuple):
    """Engine steps a second between two readings of the server's own figures."""

    at_us: int
    load: Load
    value: float


@dataclass(slots=True)
class Reference:
    """What is normal under one configuration."""

    digest: str
    keys: dict[str, int] = field(default_factory=dict)  # probe and priority
    decode: Track = field(default_factory=Track)
    ttft: Track = field(default_factory=Track)
    steps: Track = field(default_factory=Track)

    def tracks(self) -> tuple[Track, Track, Track]:
        """In the order of METRICS."""
        return self.decode, self.ttft, self.steps


@dataclass(slots=True)
class SpeedChannel:
    """Decode rate, time to first token and engine steps of one target."""

    canaries: OpenBlocks[CanaryPoint] = field(default_factory=OpenBlocks)
    rates: list[Rate] = field(default_factory=list)  # of blocks that are still open
    last_reading: ServerPoint | None = None
    references: list[Reference] = field(default_factory=list)  # the one in use is the last
    last_index: int = 0

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """Take in one good canary that was not cold. Costs next to nothing: the work is done when
        the block is over.
        """
        if p.outcome == Outcome.OK and p.phase != Phase.COLD:
            self.canaries.add(p, p.known_us, settings)

    def server(self, p: ServerPoint, settings: DriftSettings) -> None:  # noqa: ARG002 - fed like the other parts
        """Take in one reading of the server's own figures: engine steps since the last one, where
        the engine was busy all the time.
        """
        before, self.last_reading = self.last_reading, p
        rate = steps_between(before, p)
        if (
            rate is not None
            and self.canaries.anchor_us is not None
            and p.at_us >= self.canaries.start_us(self.canaries.next_index)
        ):
            self.rates.append(rate)

    def advance(self, now_us: int, settings: DriftSettings) -> None:
        """Close the blocks that are over."""
        if now_us < self.canaries.due_us:
            return
        for index, points in self.canaries.closed(now_us, settings):
            end_us = self.canaries.start_us(index + 1)
            rates = [rate for rate in self.rates if rate.at_us < end_us]
            self.rates = [rate for rate in self.rates if rate.at_us >= end_us]
            self._close(
                index,
                points,
                [r for r in rates if r.at_us >= self.canaries.start_us(index)],
                settings,
            )
        open_us = self.canaries.start_us(self.canaries.next_index)
        self.rates = [
            rate for rate in self.rates if rate.at_us >= open_us
        ]  # where no canary came, nothing is asked of the engine either

    def _close(
        self, index: int, points: list[CanaryPoint], rates: list[Rate], settings: DriftSettings
    ) -> None:
        """One block: of the configuration and of the process that were seen last in it, and of its
        warm canaries. Those after a rest, while clocks came up, count where there are no others (a
        server that nobody else uses), and are compared with their like.
        """
        self.last_index = index
        points = [p for p in points if p.phase == Phase.WARM] or points
        latest = max(points, key=attrgetter("at_us", "known_us"))
        named = [p.fingerprint for p in points if p.fingerprint is not None]
        digest = latest.fingerprint or (
            named[-1] if named else self.references[-1].digest if self.references else ""
        )
        reference, start_us, block_s = (
            self._reference(digest),
            latest.process_start_us,
            self.block_s,
        )
        rated: list[Taken] = []
        waited: list[Taken] = []
        for p in sorted(points, key=attrgetter("known_us", "at_us", "probe")):
            if (
                (p.fingerprint or digest) == digest and p.process_start_us == start_us
            ):  # what is not known is no other configuration
                key, rate, wait_ms = self._key(reference, p), _rate(p), _wait_ms(p)
                if rate is not None:
                    rated.append(Taken(key, decode_load(p), math.log(rate)))
                if wait_ms is not None:
                    waited.append(Taken(key, wait_load(p), -math.log(wait_ms)))
        stepped = [Taken(0, rate.load, rate.value) for rate in rates]
        reference.decode.close(index, rated, start_us, block_s, decode_metric(settings), settings)
        reference.ttft.close(index, waited, start_us, block_s, TTFT, settings)
        reference.steps.close(index, stepped, start_us, block_s, steps_metric(settings), settings)

    @property
    def block_s(self) -> float:
        """Length of the blocks of this state, which stays what it was when its first point came."""
        return self.canaries.block_us / SECOND_US

    def _reference(self, digest: str) -> Reference:
        """The reference of a configuration, moved to the end; a new one when it is not known. What
        was learnt before any configuration could be read ("") belongs to the first that can.
        """
        if self.references and self.references[-1].digest in {digest, ""}:
            self.references[-1].digest = digest
            return self.references[-1]
        for track in self.references[-1].tracks() if self.references else ():
            track.rest()
        found = next((r for r in self.references if r.digest == digest), None) or Reference(digest)
        self.references = [*(r for r in self.references if r is not found), found][
            -MOST_REFERENCES:
        ]
        return found

    @staticmethod
    def _key(reference: Reference, p: CanaryPoint) -> int:
        name = p.probe if p.priority is None else f"{p.probe} at priority {p.priority}"
        if p.phase != Phase.WARM:
            name = f"{name} ({p.phase})"
        return reference.keys.setdefault(name, len(reference.keys))

    def _watched(self, settings: DriftSettings) -> list[tuple[Metric, Track]]:
        if not self.references:
            return []
        return list(
            zip(
                (decode_metric(settings), TTFT, steps_metric(settings)),
                self.references[-1].tracks(),
                strict=True,
            )
        )

    def effects(self, settings: DriftSettings) -> list[Effect]:
        """What is open now."""
        found = []
        for metric, track in self._watched(settings):
            if track.effect is not None:
                effect = track.as_effect(
                    metric, self.canaries.start_us(track.effect.onset), self.last_index
                )
                found.append(effect)
        return [effect for effect in found if effect is not None]

    def shift_since(self, channel: str, since_us: int, settings: DriftSettings) -> Shift | None:
        """How much a channel differs from normal since a moment, whether or not that is an effect;
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
                return [(self.canaries.start_us(b.number), b.residual) for b in track.blocks]
        return []

    def reference_span(self) -> tuple[int, int] | None:
        """From when to when the present reference of decode was learnt; None while it is not."""
        if not self.references or not self.references[-1].decode.span:
            return None
        first, last = self.references[-1].decode.span
        return self.canaries.start_us(first), self.canaries.start_us(last + 1)

    def suspicion(self, settings: DriftSettings) -> float:
        """0 … 1: how far the likeliest channel is on its way to an alarm. What is open already is
        no suspicion.
        """
        limit = warning_threshold(settings, self.block_s or settings.block_s)
        sums = [
            track.evidence
            for _, track in self._watched(settings)
            if track.effect is None and track.curve is not None
        ]
        return max(0.0, min(1.0, max(sums, default=0.0) / limit))

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """What works yet. Engine steps are named only where there are any."""
        names = ("decode rate", "time to first token", "engine steps a second")
        tracks = self.references[-1].tracks() if self.references else (Track(), Track(), Track())
        named = [
            (name, track)
            for name, track in zip(names, tracks, strict=True)
            if track is not tracks[2] or track.learnt_blocks
        ]
        return [
            track.armed(name, self.block_s or settings.block_s, settings) for name, track in named
        ]

    def start_offsets(self) -> list[StartOffset]:
        """Each start of the process under the present configuration: how its decode rate differs
        from what is normal.
        """
        if not self.references:
            return []
        track = self.references[-1].decode
        found = []
        for start in track.starts:
            if start.offset is not None:
                scatter, others = scatter_of(track.starts, start.process_start_us)
                half = 1.96 * math.sqrt(
                    track.model.variance * 16 / (start.blocks + 16) + 1 / start.weight
                )
                first_us = self.canaries.start_us(start.first_index)
                found.append(
                    StartOffset(
                        start.process_start_us,
                        first_us,
                        start.offset,
                        half,
                        start.blocks,
                        scatter,
                        others,
                    )
                )
        return found

    def relearn(self, now_us: int) -> None:
        """A person accepted what is now: it is what is normal. Canaries known before this moment
        that wait for their block are left out.
        """
        self.canaries.forget_until(now_us)
        for track in self.references[-1].tracks() if self.references else ():
            track.relearn()


def _rate(p: CanaryPoint) -> float | None:
    """Decode rate, where there were enough tokens and it is a number."""
    rate = p.decode_tok_s
    if (
        rate is None
        or not 0.0 < rate < math.inf
        or (p.completion_tokens is not None and p.completion_tokens < LEAST_TOKENS)
    ):
        return None
    return rate


def _wait_ms(p: CanaryPoint) -> float | None:
    """Time to first token without the time in the queue."""
    if p.ttft_ms is None:
        return None
    wait = p.ttft_ms - (p.queue_ms or 0.0)
    return wait if 0.0 < wait < math.inf else None


def steps_between(before: ServerPoint | None, now: ServerPoint) -> Rate | None:
    """ln(engine steps a second) between two readings, with the sequences and prompt tokens a step;
    None where it says nothing.
    """
    if before is None or None in (
        before.engine_steps,
        now.engine_steps,
        before.generation_tokens,
        now.generation_tokens,
    ):
        return None
    if (
        min(before.running or 0.0, now.running or 0.0) < STEPS_SEQUENCES
        or before.prompt_tokens is None
        or now.prompt_tokens is None
    ):
        return None
    seconds = (now.at_us - before.at_us) / SECOND_US
    steps = (now.engine_steps or 0.0) - (before.engine_steps or 0.0)
    generated = (now.generation_tokens or 0.0) - (before.generation_tokens or 0.0)
    prompts = now.prompt_tokens - before.prompt_tokens
    if (
        not 0 < seconds <= STEPS_GAP_S
        or steps <= 0
        or generated <= 0
        or not 0 <= prompts <= STEPS_PROMPT_TOK_S * seconds
    ):
        return None
    return Rate(
        now.at_us,
        Load(math.log1p(generated / steps), prompt_scale(prompts / steps)),
        math.log(steps / seconds),
    )


def decode_metric(settings: DriftSettings) -> Metric:
    """Decode rate: the sensitive channel."""
    drops = (-math.log1p(-settings.small_drop), -math.log1p(-settings.large_drop))
    return Metric(
        "decode",
        "decode_tok_s",
        drops,
        -math.log1p(-settings.practical_pct / 100.0),
        DECODE_PAGE,
        1,
        0.0015,
        0,
    )


def steps_metric(settings: DriftSettings) -> Metric:
    """Engine steps a second: the same sizes as decode."""
    return decode_metric(settings)._replace(
        channel="steps", name="engine_steps_s", least_wander=0.003, turn=1
    )


TTFT = Metric("ttft", "ttft_ms", TTFT_DROPS, TTFT_PRACTICAL, TTFT_PAGE, -1, 0.02, 2)
