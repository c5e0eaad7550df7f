"""The canaries of one watched server: turns a probe into a stored sample, judged by its pin and
within the token budget.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from monitor.config.target import TargetSettings
from monitor.daemon.boost import Boost
from monitor.daemon.budget import HOUR, TokenLedger
from monitor.daemon.drift import DriftWatch
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.guard import judged_in_time, only_logged, unreadable
from monitor.daemon.identity import Keeps
from monitor.daemon.scoring import scored_shift
from monitor.daemon.server import WatchedServer
from monitor.judge.quality.gate import again, pin_for, was_alone
from monitor.measure.canary import Measurement
from monitor.measure.server.api import ServerRefusedError, models, the_one_model
from monitor.measure.stream.long_prompt import lengthened
from monitor.model import Outcome, Phase, Pin, Probe, Sample, ServerPage, Verdict
from monitor.store import pins, queries, record
from monitor.store.database import DatabaseError
from monitor.store.writer import Writer
from monitor.text import one_line


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that was not done, and why."""

    probe: Probe
    reason: str


#: A measurement, and the id of its row once it is written.
Stored = tuple[Measurement, Future[int]]


class TargetWatch(WatchedServer):
    """A server and the canaries that are sent to it. One canary at a time in each lane; both lanes
    share this.
    """

    def __init__(
        self,
        settings: TargetSettings,
        probes: Sequence[Probe],
        writer: Writer,
        gpus: TargetGpus,
        channels: Sequence[str] = (),
        keeps: Keeps = Keeps.CHANGES,
        class_budgets: Mapping[str, int] | None = None,
        drift: DriftWatch | None = None,
    ) -> None:
        super().__init__(settings, writer, gpus, channels, keeps)
        self.probes = list(probes)
        self.pins: list[Pin] = []
        self.samples_stored = self.samples_judged = (
            0  # so that judges look again only when there is something new
        )
        self._pins_stamp: tuple[int, int, str | None] | None = None
        self._revisions: dict[str, int] = {}
        self._in_flight: list[tuple[bool, Phase]] = []
        self._ready: dict[str, Probe] = {}  # probes fitted to this server's context
        self._class_budgets = dict(class_budgets or {})
        self.ledger = TokenLedger(settings.token_budget_per_hour, (), self._class_budgets)
        self.drift = drift  # None: only the daemon detects drift
        self.boost = Boost()
        self.expected_since: datetime | None = (
            None  # while the server was left alone, no sample was expected
        )
        self.on_skip: Callable[[str, str, int], None] | None = None

    async def load(self) -> None:
        """Take up what the history knows of this target."""
        now = datetime.now(UTC)
        await self.take_up()

        def work(connection: Connection) -> None:
            known = [
                *self.probes,
                *(again(probe) for probe in self.probes if probe.same_salt_twice),
            ]
            self._revisions = {
                probe.name: record.ensure_revision(connection, probe, now) for probe in known
            }
            spent = queries.tokens_between(connection, self.target_id, now - HOUR, now)
            self.ledger = TokenLedger(
                self.settings.token_budget_per_hour, spent, self._class_budgets
            )

        await self._db(work)
        await self.reload_pins()

    def revision_digest(self, probe: Probe) -> str:
        """The revision under which this probe's samples are stored; one that is fitted to the
        context has one of its own.
        """
        return self._ready.get(probe.name, probe).revision

    async def store_pin(self, pin: Pin) -> int:
        """Record a pin of this target under its present identity."""
        current = self.identity.current

        def work(connection: Connection) -> int:
            fingerprint_id = None if current is None else current.id
            return pins.add(
                connection,
                pin,
                target_id=self.target_id,
                revision_id=self._revisions[pin.probe],
                fingerprint_id=fingerprint_id,
            )

        return await self._db(work)

    async def reload_pins(self) -> None:
        """Take up pins that were recorded or retired since the last time, by whatever process; and
        what they were taken under, since the digest of that changes as more of it becomes known.
        """
        digest = self.fingerprint_digest()

        def work(connection: Connection) -> tuple[tuple[int, int, str | None], list[Pin]] | None:
            stamp = (*pins.stamp(connection), digest)
            return (
                None
                if stamp == self._pins_stamp
                else (stamp, pins.find(connection, self.settings.name))
            )

        found = await self._db(work)
        if found is not None:
            self._pins_stamp, self.pins = found

    async def look(self) -> ServerPage:
        """Read the metrics page and note what it tells. A page that makes the noting itself fail is
        one that cannot be read.
        """
        page: ServerPage | None = None
        with only_logged("target=%s what the metrics page tells is lost", self.settings.name):
            page = await super().look()
        return page or ServerPage(at=datetime.now(UTC), state="unreadable")

    async def refresh_identity(self, page: ServerPage | None = None) -> None:
        """Read the identity now. Where that fails for what the server tells, the last known one
        stands, and it is read again later.
        """
        with only_logged("target=%s the identity could not be read", self.settings.name):
            await super().refresh_identity(page)

    async def run_all(self, probe: Probe) -> list[Stored] | Skipped:
        """A probe as it is meant: once, twice with the same cache salt, or again to decide a near
        tie. Skipped when nothing was sent.
        """
        salt = uuid.uuid4().hex
        first = await self.run(probe, salt, extra=self.boost.begin(probe, time.monotonic()))
        if isinstance(first, Skipped):
            return first
        second: Stored | Skipped | None = None
        if probe.same_salt_twice and first[0].sample.outcome is Outcome.OK:
            second = await self.run(again(probe), salt)
        elif first[0].sample.verdict is Verdict.NEAR_TIE and was_alone(first[0].sample):
            second = await self.run(
                probe, retry_of=first
            )  # a near tie on an idle server is decided by one more run, and marked
        return [first] if second is None or isinstance(second, Skipped) else [first, second]

    async def run(
        self,
        probe: Probe,
        cache_salt: str | None = None,
        retry_of: Stored | None = None,
        extra: bool = False,
    ) -> Stored | Skipped:
        """One canary now: measured, judged, handed to the writer. The future gives the id of the
        stored sample. An `extra` one was found to fit into the reserve when it was asked for.
        """
        if not extra and not self.ledger.allows(
            probe, datetime.now(UTC), from_reserve=not self._is_daemon
        ):
            self.skip(probe.name, "token_budget")
            return Skipped(probe, f"the budget of {self.ledger.limit} tokens an hour is spent")
        before = await self.look()
        if self._is_daemon and not self.state.leave.wants(probe.name, time.monotonic()):
            self.skip(probe.name, "idle")
            return Skipped(
                probe, "nobody uses the server, and it is to be left alone then (when_idle)"
            )
        if self._identity_due:
            await self.refresh_identity(before)
        if probe.context_share is not None:
            try:
                probe = await self._lengthened(probe)
            # refused, unreachable, several models, or an answer of a shape nobody has thought of
            except Exception as error:
                if isinstance(error, DatabaseError):
                    raise
                self.skip(probe.name, "length")
                return Skipped(
                    probe, f"its length cannot be fitted to the server's context: {error}"
                )
        phase, started_at = self.state.phase_of(probe, before), datetime.now(UTC)
        self._in_flight.append((probe.capped, phase))
        try:
            measured = await self.canary.measure(
                probe, phase, before, self.state.idle_s(), cache_salt, self._compiling()
            )
        except asyncio.CancelledError:
            cut = Sample(
                self.settings.name,
                probe.name,
                probe.traffic_class,
                started_at,
                phase,
                Outcome.CANCELLED,
                priority=probe.priority,
            )
            self._store(cut, "cancelled because vllm-canary was stopped")
            raise
        # stream() says that it never raises for what a server does: where that is not so, it is one
        # bad answer
        except Exception as error:
            bad = Sample(
                self.settings.name,
                probe.name,
                probe.traffic_class,
                started_at,
                phase,
                Outcome.MALFORMED,
                priority=probe.priority,
            )
            measured = unreadable(bad, error)
        finally:
            self._in_flight.remove((probe.capped, phase))
        return await self._finish(probe, measured, retry_of, extra)

    def extras(self) -> list[Probe]:
        """Probes to run now beside their schedule: drift detection suspects something, and the
        reserve of the budget has room.
        """
        if (
            self.drift is None
            or not self.drift.boosted
            or self.state.leave.unused(time.monotonic())
        ):
            return []
        now = datetime.now(UTC)
        chosen: list[Probe] = []
        for probe in self.boost.due(self.probes, time.monotonic()):
            if self.ledger.allows_extra(probe, now, chosen):
                self.boost.ask(probe)
                chosen.append(probe)
        return chosen

    def lanes_in_flight(self) -> set[bool]:
        """Which lanes (True: the capped one) have a canary out now."""
        return {capped for capped, _ in self._in_flight}

    def _compiling(self) -> bool:
        """Whether a cold canary is out: the engine may stand still for it, which is no hang for
        anybody.
        """
        return any(phase is Phase.COLD for _, phase in self._in_flight)

    async def _lengthened(self, probe: Probe) -> Probe:
        """A probe that fills a share of the context, made once for each start of the server."""
        ready = self._ready.get(probe.name)
        if ready is None:
            gpus = await models(self._http)
            if self.canary.model is None:
                self.canary.model = the_one_model(self.settings.url, gpus)
            context = next((gpu.max_model_len for gpu in gpus if gpu.id == self.canary.model), None)
            if context is None:
                raise ServerRefusedError(200, "/v1/models does not tell the context's length")
            ready = self._ready[probe.name] = await lengthened(
                self._http, probe, self.canary.model, context
            )
            now = datetime.now(UTC)
            self._revisions[probe.name] = await self._db(
                lambda c: record.ensure_revision(c, ready, now)
            )
        return ready

    async def _finish(
        self, probe: Probe, measured: Measurement, retry_of: Stored | None, extra: bool
    ) -> Stored:
        with only_logged(
            "target=%s probe=%s what the answer tells of its server is lost",
            self.settings.name,
            probe.name,
        ):
            await self._take_note(probe, measured)
        sample, reason = self._judged(probe, measured)
        paid_at = min(
            sample.started_at, datetime.now(UTC)
        )  # the clock may have been set back meanwhile
        self.ledger.note(probe, paid_at, sample.prompt_tokens, sample.completion_tokens, extra)
        sample = await self._scored(probe, sample)
        worth_telling = sample.outcome is Outcome.OK and sample.verdict in {
            Verdict.FAIL,
            Verdict.NEAR_TIE,
            Verdict.UNKNOWN,
        }
        told = measured.detail or (
            reason if worth_telling or sample.verdict is Verdict.FAIL else None
        )
        told = None if told is None else one_line(told)
        return replace(measured, sample=sample, detail=told), self._store(sample, told, retry_of)

    async def _take_note(self, probe: Probe, measured: Measurement) -> None:
        """What a canary tells of its server, beside its own figures."""
        self.state.measured(probe, measured.sample, measured.after)
        if measured.after is not None:
            async with self._noting:
                await self._note(measured.after)
        answer = measured.answer
        if answer.system_fingerprint is not None:
            self._system_fingerprint = answer.system_fingerprint
        if (
            answer.system_fingerprint is not None and not self._identity_due
        ):  # else it is read with everything else, and only together
            await self.identity.note_system_fingerprint(
                self.settings.name, answer.system_fingerprint
            )
        if self._pins_stamp is None or self._pins_stamp[-1] != self.fingerprint_digest():
            await self.reload_pins()  # before this answer is judged: its pin would look stale

    def _judged(self, probe: Probe, measured: Measurement) -> tuple[Sample, str | None]:
        """The sample with its verdict, filed under what is served now."""
        current = self.identity.current
        digest = None if current is None else current.digest
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
        """With the move of the pinned answer where another one came: asked for when nobody else is
        served and the budget has room.
        """
        pin = next((pin for pin in self.pins if pin.id == sample.pin), None)
        now = datetime.now(UTC)
        if (
            pin is None
            or sample.first_divergence is None
            or not was_alone(sample)
            or not self.ledger.allows(probe, now)
        ):
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

    def _store(
        self, sample: Sample, detail: str | None, retry_of: Stored | None = None
    ) -> Future[int]:
        start_id, current = self.state.start_id, self.identity.current

        def work(connection: Connection) -> int:
            if start_id is not None and sample.outcome is Outcome.OK and sample.ttft_ms is not None:
                record.note_first_answer(
                    connection, start_id, sample.started_at + timedelta(milliseconds=sample.ttft_ms)
                )
            return record.insert_sample(
                connection,
                sample,
                target_id=self.target_id,
                revision_id=self._revisions[sample.probe],
                process_start_id=start_id,
                fingerprint_id=None if current is None else current.id,
                detail=detail,
                retry_of=None
                if retry_of is None
                else retry_of[1].result(),  # done before this: one thread, in order
            )

        self.samples_stored += 1
        return self.writer.submit(work)

    def _restarted(self) -> None:
        self._ready.clear()

    def skip(self, probe: str, reason: str, count: int = 1) -> None:
        """Count runs that were not done."""
        now = datetime.now(UTC)
        if self.on_skip is not None:
            self.on_skip(self.settings.name, reason, count)
        self.writer.submit(
            lambda c: record.insert_skipped(
                c, self.target_id, probe, now, reason=reason, count=count
            )
        )
