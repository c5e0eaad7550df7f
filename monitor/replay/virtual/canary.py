"""Canaries in virtual time: measured, judged and stored by the daemon's own code.

Left out: the token budget, extra canaries while drift is suspected, the pause after a cancelled
canary, and the few milliseconds in which a pinned answer is scored.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from math import hypot
from typing import Any

from monitor.judge.phase import Stillness, judge_phase
from monitor.judge.quality.gate import again, pin_for, was_alone
from monitor.judge.starts import KnownStart, judge_start
from monitor.measure.canary import figures_of, limits_of
from monitor.measure.gpu.figures import SampleGpu, sample_fields
from monitor.measure.stream.patience import Patience
from monitor.model import GpuReading, Outcome, Phase, Pin, Probe, Sample, ServerPage, Verdict
from monitor.replay.virtual.answers import ProbeAnswers
from monitor.replay.virtual.flight import Flight
from monitor.replay.virtual.identity import Digests
from monitor.replay.virtual.noise import Noise, SampleNoise
from monitor.replay.virtual.readings import read_gpus, read_page, utc
from monitor.simulate.api.validation import ApiError
from monitor.simulate.engine.blocks import prefix_keys
from monitor.simulate.engine.requests import EngineRequest, Handle
from monitor.simulate.fastforward.world import FastForwardWorld

#: Yields the time until which it waits; it continues earlier when its request is over.
Waiting = Generator[float, None, None]
Measuring = Generator[float, None, Sample]
#: The outcome of a refused request (World.refusal).
REFUSED = {"down": Outcome.REFUSED, "dead": Outcome.HTTP_ERROR, "busy": Outcome.REJECTED}


@dataclass(slots=True)
class KnownServer:
    """What the daemon knows of the server between two canaries, from its metrics page."""

    start: KnownStart | None = None
    warmed: set[str] = field(default_factory=set)  # parameter sets that this process has answered
    stillness: Stillness = field(default_factory=Stillness)
    fitted: dict[str, Probe] = field(
        default_factory=dict
    )  # probes fitted to the context of this process
    _last_good: ServerPage | None = None
    _away: bool = False
    _last_canary_s: float | None = None

    def note(self, page: ServerPage, now_s: float) -> None:
        """Processes one page."""
        new = judge_start(self.start, self._last_good, page, self._away)
        if new is not None:
            self.start = KnownStart(new.started_at, page.at)
            self.warmed, self.fitted = set(), {}
        self._away = page.state == "refused" or (self._away and page.state == "timeout")
        if page.state == "ok":
            self.stillness.note(page.engine_steps, now_s)
            self._last_good = page

    def shown_start(self) -> datetime | None:
        """When the process started, or was first seen where the server does not report it."""
        return None if self.start is None else self.start.shown

    def measured(self, probe: Probe, outcome: Outcome, now_s: float) -> None:
        """Processes one canary."""
        self._last_canary_s = now_s
        if outcome is Outcome.OK:
            self.warmed.add(probe.parameter_set)

    def phase_of(self, probe: Probe, before: ServerPage, now_s: float) -> Phase:
        """How warm the server is for this probe."""
        since_ours_s = None if self._last_canary_s is None else now_s - self._last_canary_s
        is_new = probe.parameter_set not in self.warmed
        return judge_phase(is_new, self.stillness, now_s, before.running, since_ours_s)


@dataclass
class VirtualWatch:
    """The canaries of one simulated server. `samples`: the stored samples."""

    world: FastForwardWorld
    target: str
    noise: Noise
    pins: Sequence[Pin]
    answers: ProbeAnswers
    digests: Digests
    samples: list[Sample] = field(default_factory=list)
    _server: KnownServer = field(default_factory=KnownServer)
    _in_flight: list[Phase] = field(default_factory=list)
    _gpus: tuple[float, dict[str, GpuReading]] = (-1.0, {})  # the last readings, and their time
    _salts: count[int] = field(default_factory=lambda: count(1))

    def read_page(self) -> ServerPage:
        """Reads the metrics page and takes it up."""
        page = read_page(self.world)
        self._server.note(page, self.world.now_s)
        return page

    def run_all(self, probe: Probe) -> Waiting:
        """Runs a probe once, twice with the same salt, or again to decide a near tie."""
        salt = f"{next(self._salts):x}"
        first = yield from self._run(probe, salt)
        if probe.same_salt_twice and first.outcome is Outcome.OK:
            yield from self._run(again(probe), salt)
        elif first.verdict is Verdict.NEAR_TIE and was_alone(first):
            yield from self._run(probe, f"{next(self._salts):x}")

    def _run(self, probe: Probe, salt: str) -> Measuring:
        """Measures, judges and stores one canary."""
        before, server, now_s = self.read_page(), self._server, self.world.now_s
        if probe.context_share is not None:
            probe = self._fitted(probe)
        digest, started_at = self.digests.now(), utc(self.world.unix_s)
        pin, stale = pin_for(self.pins, probe, digest)
        phase, idle_s = server.phase_of(probe, before, now_s), server.stillness.for_s(now_s)
        figures: dict[str, Any] = {"outcome": Outcome.ASLEEP}
        if not before.asleep:
            self._in_flight.append(phase)
            flight, noise, figures = yield from self._measured(probe, phase, before, salt)
            self._in_flight.remove(phase)
            if figures["outcome"] is Outcome.OK:
                figures |= _judged(flight, pin, noise)
        sample = Sample(
            target=self.target,
            probe=probe.name,
            traffic_class=probe.traffic_class,
            started_at=started_at,
            phase=phase,
            fingerprint=digest,
            pin=None if pin is None else pin.id,
            stale=None if pin is None else stale,
            priority=probe.priority,
            process_start=server.shown_start(),
            idle_before_s=idle_s,
            **figures,
        )
        if sample.first_divergence is not None and not was_alone(sample):
            # the daemon has the pinned answer scored only if no other request is served
            sample = replace(sample, logprob_shift=None)
        self.samples.append(sample)
        return sample

    def _fitted(self, probe: Probe) -> Probe:
        """The probe lengthened to the context, once for each start of the server."""
        if probe.name not in self._server.fitted:
            self._server.fitted[probe.name] = self.answers.fitted(probe)
        return self._server.fitted[probe.name]

    def _measured(
        self, probe: Probe, phase: Phase, before: ServerPage, salt: str
    ) -> Generator[float, None, tuple[Flight, SampleNoise, dict[str, Any]]]:
        """Sends the probe and follows its answer; returns the figures of its sample."""
        world, server = self.world, self._server
        noise, begin_s, gpus_before = self.noise.next(world.now_s), world.now_s, self._read_gpus()
        limits = limits_of(probe, phase, Phase.COLD in self._in_flight)
        flight = Flight(Patience(limits, begin_s, before.engine_steps))
        outcome = self._sent(flight, probe, salt) or (yield from self._waited(flight))
        stream = flight.stream(outcome, world.now_s, world.identity, noise)
        after, gpus = None, SampleGpu()
        if outcome is not Outcome.REFUSED:
            after = read_page(world)
            times_ns = round(begin_s * 1e9), round(world.now_s * 1e9)
            gpus = sample_fields(gpus_before, self._read_gpus(), *times_ns)
        server.measured(probe, outcome, world.now_s)
        if after is not None:
            server.note(after, world.now_s)
        return flight, noise, {**figures_of(stream, before, after), **gpus}

    def _read_gpus(self) -> dict[str, GpuReading]:
        """Reads the GPUs; the next canary of a round begins where the last one ended."""
        at_s, now_s = self._gpus[0], self.world.now_s
        if at_s != now_s:
            self._gpus = now_s, read_gpus(self.world)
        return self._gpus[1]

    def _sent(self, flight: Flight, probe: Probe, salt: str) -> Outcome | None:
        """Hands the request to the server; returns the outcome where it refuses."""
        world, refusal = self.world, self.world.refusal()
        if refusal is not None:
            return REFUSED[refusal]

        def on_tokens(handle: Handle, tokens: int, now_s: float) -> None:
            flight.received(tokens, now_s, world.chunks if world.in_bulk else ())
            world.halted = world.halted or handle.finished

        def on_lost(_handle: Handle, _why: str) -> None:
            flight.lost = world.halted = True

        try:
            flight.asked = asked = self.answers.asked(probe)
            ids = asked.request.prompt.ids
            flight.handle = world.submit(
                EngineRequest(
                    id=f"canary-{salt}",
                    prompt_tokens=len(ids),
                    max_tokens=probe.max_tokens,
                    ending=flight.ending,
                    # no other request shares the salt of a probe that is sent once
                    prefix=prefix_keys(ids, world.config.block_size, salt)
                    if probe.same_salt_twice
                    else (),
                    parameter_set=probe.parameter_set,
                    on_tokens=on_tokens,
                    on_lost=on_lost,
                )
            )
        except (ApiError, ValueError):  # HTTP 400: more than the context or the cache holds
            return Outcome.HTTP_ERROR
        return None

    def _waited(self, flight: Flight) -> Generator[float, None, Outcome]:
        """Waits until the answer is complete or patience ends."""
        world, patience = self.world, flight.patience
        world.watched += 1
        try:
            while True:
                yield patience.next_reading_s(world.now_s)
                if flight.over:
                    return Outcome.STREAM_ERROR if flight.lost else Outcome.OK
                if not patience.needs_reading(world.now_s):
                    continue
                outcome = patience.conclude(world.now_s, read_page(world).engine_steps)
                if outcome is not None:
                    if flight.handle is not None:
                        world.cancel(flight.handle)
                    return outcome
        finally:
            world.watched -= 1


def _judged(flight: Flight, pin: Pin | None, noise: SampleNoise) -> dict[str, Any]:
    """The verdict on a finished answer, with the noise of its log-probabilities."""
    judged = flight.judged(pin)
    shift = judged.logprob_shift
    return {
        "verdict": judged.verdict,
        "first_divergence": judged.first_divergence,
        "logprob_shift": None if shift is None else hypot(shift, noise.shift_nat),
    }
