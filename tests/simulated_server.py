"""One simulated server for tests of the whole detector: canaries, GPU readings and readings of the
metrics page, minute by minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.model import CanaryPoint, Finding, GpuPoint, Point, ServerPoint

#: Learns in two hours, so that a test of a whole history is short.
QUICK = DriftSettings(learn_h=2.0, learn_blocks=20, support_samples=20)
START_US = 1_700_000_000_000_000
#: Class, tokens, tokens a second, ms to the first token.
PROBES = {
    "rate": ("batch", 128.0, 100.0, 30.0),
    "chat": ("chat", 32.0, 105.0, 12.0),
}


@dataclass(slots=True)
class State:
    """The present state of the server; a change modifies it."""

    slow: float = 1.0  # factor on the time of decode and prefill
    prefill: float = 1.0
    temp_c: float = 55.0
    clock_mhz: float = 1980.0
    power_w: float = 400.0
    thermal: float = 0.0  # duty cycle of thermal throttling
    bits: int = 0
    waiting: float = 0.0
    stuck: bool = False  # canaries wait until their max_wait
    digest: str = "a"
    process_us: int = START_US
    limit_w: float = 700.0


Change = Callable[[State, float], None]  # the state, and the hours since the change began


@dataclass
class ServerHistory:
    """A server with steady traffic. `play` adds hours; changes of the state persist."""

    seed: int = 0
    state: State = field(default_factory=State)
    minute: int = 0
    steps: float = 0.0
    thermal_s: float = 0.0

    def __post_init__(self) -> None:
        """Creates the random numbers of the whole history."""
        self.chance = Random(self.seed)

    def play(self, hours: float, change: Change = lambda _state, _hour: None) -> Iterator[Point]:
        """Adds hours; yields their points in the order in which they become known."""
        begun = self.minute
        for _ in range(round(hours * 60)):
            change(self.state, (self.minute - begun) / 60)
            points = sorted(self._one_minute(), key=itemgetter(0))
            self.minute += 1
            yield from (point for _, point in points)

    def _one_minute(self) -> Iterator[tuple[int, Point]]:
        state, at_us = self.state, START_US + self.minute * MINUTE_US
        for number, (name, (kind, tokens, rate, ttft_ms)) in enumerate(PROBES.items()):
            sent_us = at_us + (1 + 5 * number) * SECOND_US
            yield self._canary(name, kind, tokens, rate, ttft_ms, sent_us)
        for second in (10, 40):
            self.thermal_s += 30 * state.thermal
            yield at_us + second * SECOND_US, self._gpu_reading(at_us + second * SECOND_US)
        for second in (20, 50):
            self.steps += 30 * 120 / state.slow
            yield at_us + second * SECOND_US, self._reading(at_us + second * SECOND_US)

    def _canary(
        self, name: str, kind: str, tokens: float, rate: float, ttft_ms: float, at_us: int
    ) -> tuple[int, CanaryPoint]:
        state = self.state
        base = CanaryPoint(
            at_us,
            at_us,
            name,
            kind,
            fingerprint=state.digest,
            process_start_us=state.process_us,
            gpu_uuid="GPU-1",
            running=4.0,
            waiting=state.waiting,
            gpu_temp_c=state.temp_c,
            sm_clock_mhz=state.clock_mhz,
        )
        if state.stuck:
            return at_us + 2 * SECOND_US, base._replace(
                known_us=at_us + 2 * SECOND_US, outcome="queue_cap", e2e_ms=2000.0
            )
        rate = rate / state.slow * (1.0 + self.chance.gauss(0.0, 0.004))
        ttft_ms = ttft_ms * state.slow * state.prefill * (1.0 + abs(self.chance.gauss(0.0, 0.05)))
        e2e_ms = ttft_ms + 1000.0 * tokens / rate
        known_us = at_us + round(1000 * e2e_ms)
        return known_us, base._replace(
            known_us=known_us,
            ttft_ms=ttft_ms,
            e2e_ms=e2e_ms,
            decode_tok_s=rate,
            completion_tokens=tokens,
            prompt_tokens=20.0,
        )

    def _gpu_reading(self, at_us: int) -> GpuPoint:
        state = self.state
        return GpuPoint(
            at_us=at_us,
            uuid="GPU-1",
            temp_c=round(state.temp_c + self.chance.gauss(0.0, 0.5)),
            margin_c=round(87.0 - state.temp_c),
            sm_clock_mhz=state.clock_mhz,
            mem_clock_mhz=2619.0,
            util=0.95,
            power_w=state.power_w + self.chance.gauss(0.0, 5.0),
            power_limit_w=state.limit_w,
            vram_used_mib=70_000.0,
            event_reasons=state.bits,
            throttle_thermal_ns=int(1e9 * self.thermal_s),
            throttle_power_ns=0,
            throttle_brake_ns=0,
        )

    def _reading(self, at_us: int) -> ServerPoint:
        return ServerPoint(
            at_us,
            running=4.0,
            waiting=self.state.waiting,
            kv_usage=0.1,
            engine_steps=self.steps,
            generation_tokens=4 * self.steps,
            prompt_tokens=self.steps,
            requests_finished=self.steps / 100,
            preemptions=0.0,
        )


def known_us(point: Point) -> int:
    """The time at which a point became known."""
    return point.known_us if isinstance(point, CanaryPoint) else point.at_us


def feed(
    detector: Detector,
    points: Iterator[Point],
    settings: DriftSettings = QUICK,
    target: str = "box",
) -> list[Finding]:
    """Feeds the points to a detector, as the daemon does; returns its findings at the end."""
    now_us = START_US
    for point in points:
        now_us = max(now_us, known_us(point))
        detector.observe(point, settings)
        detector.advance(now_us, settings)
    return detector.findings(target, now_us, settings)
