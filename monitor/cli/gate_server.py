"""The two servers of `gate`: what the history knows of production, and the candidate under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import httpx

from monitor.cli.common import CommandError, no_such, now_utc
from monitor.config.target import TargetSettings
from monitor.daemon.scoring import scored_shift
from monitor.judge.identity import compare
from monitor.judge.quality.candidate import Round
from monitor.judge.quality.gate import judge_gate, pin_for
from monitor.judge.quality.pinned import PinJudgement
from monitor.measure.canary import Canary, Measurement
from monitor.measure.server.identity import Sources, read_identity
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.server.preflight import Preflight
from monitor.measure.stream.answer import observed
from monitor.model import Change, FingerprintField, Phase, Pin, Probe, Sample, Verdict
from monitor.show.terminal import progress_console
from monitor.store import fingerprints, pins, queries
from monitor.store.database import reading

LOOK_BACK = timedelta(hours=24)
UNPINNED = PinJudgement(
    Verdict.UNPINNED, "the probe's text is not the one that was pinned; record a new pin"
)

JudgedRun = tuple[Round, Pin | None]
MeasuredRun = tuple[Measurement, Probe]


@dataclass(frozen=True, slots=True)
class Production:
    """What the history knows of the target whose pins are used: its pins, the identity of what is
    served, and the good samples of the last day.
    """

    target: str
    pins: Sequence[Pin]
    digest: str | None
    fields: Mapping[str, FingerprintField]
    samples: Sequence[Sample]

    def has_pin(self, probe: str) -> bool:
        """Whether the probe has a pin, of any revision."""
        return any(pin.probe == probe for pin in self.pins)


def read_production(database: str, target: str) -> Production:
    """Reads the history. Raises CommandError if it does not know the target."""
    with reading(database) as connection:
        row = queries.target(connection, target)
        if row is None:
            known = [r.name for r in queries.targets(connection)]
            raise CommandError(no_such("target", target, "in the history", known))
        stored = fingerprints.current(connection, row.id)
        wanted = queries.SampleFilter(since=now_utc() - LOOK_BACK, target=target, outcome="ok")
        return Production(
            target=target,
            pins=pins.find(connection, target),
            digest=None if stored is None else stored.digest,
            fields={} if stored is None else stored.fields,
            samples=queries.samples(connection, wanted),
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """The server under test, measured with the daemon's own canaries."""

    target: TargetSettings
    http: httpx.AsyncClient
    page: MetricsPage
    model: str | None
    production: Production

    async def measured(
        self, probes: Sequence[Probe], rounds: int
    ) -> Mapping[str, Sequence[MeasuredRun]]:
        """Runs every probe once to warm up, then `rounds` times; returns the warm runs by probe."""
        flight = Preflight(self.target.name, self.http, self.page, self.model)
        await flight.learn_context()
        canary = Canary(self.target.name, self.http, self.page, self.model)
        shown = progress_console()
        results: dict[str, list[MeasuredRun]] = {probe.name: [] for probe in probes}
        for number in range(rounds + 1):
            phase = Phase.COLD if number == 0 else Phase.WARM
            for probe in probes:
                if shown is not None:
                    shown.print(f"round {number}/{rounds}: {probe.name} …", style="dim")
                sent = await flight.fitted(probe)
                measured = await canary.measure(sent, phase, await self.page.read(), None)
                if phase is Phase.WARM:
                    results[probe.name].append((measured, sent))
        return results

    async def judged(
        self, probes: Sequence[Probe], measured: Mapping[str, Sequence[MeasuredRun]]
    ) -> Mapping[str, Sequence[JudgedRun]]:
        """Every run with its verdict and the pin it was judged by."""
        return {p.name: [await self._judged(*run) for run in measured[p.name]] for p in probes}

    async def _judged(self, measured: Measurement, sent: Probe) -> JudgedRun:
        """Judges one run. If the answer differs, the candidate scores the pinned one."""
        pin, stale = pin_for(self.production.pins, sent, self.production.digest)
        if pin is None:
            return Round(measured.sample, UNPINNED, measured.detail, stale), None
        judgement = judge_gate(sent, measured.sample.outcome, observed(measured.answer), pin)
        if judgement.first_divergence is not None:
            shift, _ = await scored_shift(self.http, sent, self.model, pin.outputs[0])
            judgement = replace(judgement, logprob_shift=shift)
        return Round(measured.sample, judgement, measured.detail, stale), pin

    async def differences(self) -> Sequence[Change]:
        """Identity fields that are known on both sides and differ; the address is not one."""
        seen = await read_identity(
            Sources(
                settings=self.target,
                http=self.http,
                model=self.model,
                gpu=None,
                gpu_reason="not read by gate",
                system_fingerprint=None,
            ),
            await self.page.read(),
        )
        return compare(self.production.fields, seen.fields).roots
