"""The canaries of one watched server: turns a probe into a stored sample, judged by its pin and
within the token budget.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime

from monitor.daemon.isolation import judged_in_time, only_logged, unreadable
from monitor.daemon.scoring import scored_shift
from monitor.daemon.target import Skipped, Stored, Target
from monitor.judge.quality.gate import again, pin_for, was_alone
from monitor.measure.canary import Measurement
from monitor.model import Outcome, Phase, Probe, Sample, ServerPage, Verdict
from monitor.store.database import DatabaseError
from monitor.text import one_line

#: Verdicts whose reason is stored with the sample although the answer came.
EXPLAINED = frozenset({Verdict.FAIL, Verdict.NEAR_TIE, Verdict.UNKNOWN})


class TargetWatch(Target):
    """A target and the canaries that are sent to it: one at a time in each of its two lanes."""

    async def read_page(self) -> ServerPage:
        """Reads the metrics page and notes what it says. If noting it fails, the page counts as
        unreadable.
        """
        page: ServerPage | None = None
        with only_logged("target=%s the metrics page could not be used", self.settings.name):
            page = await super().read_page()
        return page or ServerPage(at=datetime.now(UTC), state="unreadable")

    async def refresh_identity(self, page: ServerPage | None = None) -> None:
        """Reads the identity. If that fails, the last known one is kept, and it is read again
        later.
        """
        with only_logged("target=%s the identity could not be read", self.settings.name):
            await super().refresh_identity(page)

    async def run_all(self, probe: Probe) -> list[Stored] | Skipped:
        """Runs a probe as it is configured: once, twice with the same cache salt, or again to
        decide a near tie. Returns Skipped if nothing was sent.
        """
        salt = uuid.uuid4().hex
        extra = self.extra_runs.begin(probe, time.monotonic())
        first = await self.run(probe, salt, extra=extra)
        if isinstance(first, Skipped):
            return first
        sample, second = first[0].sample, None
        if probe.same_salt_twice and sample.outcome is Outcome.OK:
            second = await self.run(again(probe), salt)
        elif sample.verdict is Verdict.NEAR_TIE and was_alone(sample):
            # on an idle server one more run, marked as such, decides a near tie
            second = await self.run(probe, retry_of=first)
        return [first] if second is None or isinstance(second, Skipped) else [first, second]

    async def run(
        self,
        probe: Probe,
        cache_salt: str | None = None,
        retry_of: Stored | None = None,
        extra: bool = False,
    ) -> Stored | Skipped:
        """Runs one canary: measures it, judges it, hands it to the writer. The future returns the
        id of the stored sample. An `extra` run was charged to the reserve when it was requested.
        """
        now, reserve = datetime.now(UTC), not self._is_daemon
        if not extra and not self.ledger.allows(probe, now, from_reserve=reserve):
            self.skip(probe.name, "token_budget")
            return Skipped(probe, f"the budget of {self.ledger.limit} tokens an hour is spent")
        before = await self.read_page()
        if self._is_daemon and not self.state.idle.wants(probe.name, time.monotonic()):
            self.skip(probe.name, "idle")
            return Skipped(probe, "the server is idle and is to be left idle (when_idle)")
        if self._identity_due:
            await self.refresh_identity(before)
        fitted = await self._fitted(probe)
        if isinstance(fitted, Skipped):
            return fitted
        measured = await self._measured(fitted, before, cache_salt)
        return await self._finish(fitted, measured, retry_of, extra)

    def extras(self) -> list[Probe]:
        """Returns the probes to run now in addition to their schedule: drift detection suspects
        something, and the reserve of the budget suffices.
        """
        if self.drift is None or not self.drift.suspects:
            return []
        now, now_s = datetime.now(UTC), time.monotonic()
        if self.state.idle.unused(now_s):
            return []
        chosen: list[Probe] = []
        for probe in self.extra_runs.due(self.probes, now_s):
            if self.ledger.allows_extra(probe, now, chosen):
                self.extra_runs.request(probe)
                chosen.append(probe)
        return chosen

    def lanes_in_flight(self) -> set[bool]:
        """Returns the lanes that have a canary in flight; True is the capped one."""
        return {capped for capped, _ in self._in_flight}

    def _compiling(self) -> bool:
        """Whether a cold canary is in flight: the engine may pause for it, which is not a hang."""
        return any(phase is Phase.COLD for _, phase in self._in_flight)

    async def _fitted(self, probe: Probe) -> Probe | Skipped:
        """Returns the probe as it is sent to this server."""
        if probe.context_share is None:
            return probe
        try:
            return await self._lengthened(probe)
        except DatabaseError:
            raise
        # refused, unreachable, several models, or an answer of an unforeseen shape
        except Exception as error:
            self.skip(probe.name, "length")
            return Skipped(probe, f"its length cannot be fitted to the server's context: {error}")

    async def _measured(
        self, probe: Probe, before: ServerPage, cache_salt: str | None
    ) -> Measurement:
        """Sends one canary. If we are stopped meanwhile, it is stored as cancelled."""
        started = Sample(
            target=self.settings.name,
            probe=probe.name,
            traffic_class=probe.traffic_class,
            started_at=datetime.now(UTC),
            phase=self.state.phase_of(probe, before),
            outcome=Outcome.CANCELLED,
            priority=probe.priority,
        )
        flight = (probe.capped, started.phase)
        self._in_flight.append(flight)
        try:
            return await self.canary.measure(
                probe, started.phase, before, self.state.idle_s(), cache_salt, self._compiling()
            )
        except asyncio.CancelledError:
            self._store(started, "cancelled because vllm-canary was stopped")
            raise
        # stream() promises never to raise for what a server does: if it does, it is one bad answer
        except Exception as error:
            return unreadable(replace(started, outcome=Outcome.MALFORMED), error)
        finally:
            self._in_flight.remove(flight)

    async def _finish(
        self, probe: Probe, measured: Measurement, retry_of: Stored | None, extra: bool
    ) -> Stored:
        with only_logged(
            "target=%s probe=%s the server information in the answer could not be stored",
            self.settings.name,
            probe.name,
        ):
            await self._take_note(probe, measured)
        sample, reason = self._judged(probe, measured)
        # the clock may have been set back meanwhile
        paid_at = min(sample.started_at, datetime.now(UTC))
        self.ledger.note(probe, paid_at, sample.prompt_tokens, sample.completion_tokens, extra)
        sample = await self._scored(probe, sample)
        explained = sample.verdict is Verdict.FAIL or (
            sample.outcome is Outcome.OK and sample.verdict in EXPLAINED
        )
        detail = measured.detail or (reason if explained else None)
        detail = None if detail is None else one_line(detail)
        return replace(measured, sample=sample, detail=detail), self._store(
            sample, detail, retry_of
        )

    async def _take_note(self, probe: Probe, measured: Measurement) -> None:
        """Records what a canary says about its server."""
        self.state.measured(probe, measured.sample, measured.after)
        if measured.after is not None:
            async with self._noting:
                await self._note(measured.after)
        fingerprint = measured.answer.system_fingerprint
        if fingerprint is not None:
            self._system_fingerprint = fingerprint
            if not self._identity_due:  # otherwise it is read with the rest of the identity
                await self.identity.note_system_fingerprint(self.settings.name, fingerprint)
        if self._pins_stamp is None or self._pins_stamp[-1] != self.fingerprint_digest():
            await self.reload_pins()  # before this answer is judged: its pin would look stale

    def _judged(self, probe: Probe, measured: Measurement) -> tuple[Sample, str | None]:
        """Returns the sample with its verdict and the present identity, and the reason of the
        verdict.
        """
        digest = self.fingerprint_digest()
        pin, stale = pin_for(self.pins, probe, digest)
        judgement = judged_in_time(probe, measured.sample.outcome, measured.answer, pin)
        judged = replace(
            measured.sample,
            verdict=judgement.verdict,
            stale=stale if pin is not None else None,
            pin=None if pin is None else pin.id,
            first_divergence=judgement.first_divergence,
            logprob_shift=judgement.logprob_shift,
            fingerprint=digest,
            process_start=self.state.shown_start(),
        )
        return judged, judgement.reason

    async def _scored(self, probe: Probe, sample: Sample) -> Sample:
        """Returns the sample with the shift of the pinned answer, if another answer came, nobody
        else is served and the budget suffices for scoring it.
        """
        pin = next((pin for pin in self.pins if pin.id == sample.pin), None)
        now = datetime.now(UTC)
        if pin is None or sample.first_divergence is None:
            return sample
        if not was_alone(sample) or not self.ledger.allows(probe, now):
            return sample
        shift, tokens = None, 0
        try:
            with only_logged(
                "target=%s probe=%s the pinned answer could not be scored",
                self.settings.name,
                probe.name,
            ):
                shift, tokens = await scored_shift(
                    self._http, probe, self.canary.model, pin.outputs[0]
                )
        except asyncio.CancelledError:
            self._store(sample, "vllm-canary was stopped before the pinned answer was scored")
            raise
        self.ledger.note(probe, now, None, tokens)
        return replace(sample, logprob_shift=shift)
