"""One watched server: looks at its metrics page, knows its process start and how warm it is, and turns a probe into a stored sample."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import httpx
from sqlalchemy import Connection

from monitor.config.problems import Problem
from monitor.config.settings import TargetSettings
from monitor.daemon.budget import HOUR, TokenLedger
from monitor.daemon.cards import TargetCards
from monitor.daemon.identity import IdentityWatch
from monitor.daemon.idle import IdleLeave
from monitor.judge.expect import judge_answer
from monitor.judge.phase import Stillness, judge_phase
from monitor.judge.starts import Start, judge_start
from monitor.measure.api import ServerRefusedError, ServerUnreachableError, SeveralModelsError, models, the_one_model
from monitor.measure.canary import Canary, Measurement
from monitor.measure.identity import Sources
from monitor.measure.lengthen import lengthened
from monitor.measure.preflight import Preflight
from monitor.measure.scrape import MetricsPage
from monitor.measure.stream import ConnectionSetupError, client, client_of
from monitor.model import Outcome, Phase, Probe, Sample, ServerPage
from monitor.store import queries, record
from monitor.store.times import from_us, maybe_from_us
from monitor.store.writer import Writer

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that was not done, and why."""

    probe: Probe
    reason: str


#: A measurement, and the id of its row once it is written.
Stored = tuple[Measurement, Future[int]]


def again(probe: Probe) -> Probe:
    """The second run of a probe that is sent twice with the same salt: a probe of its own, never in one cohort with the first."""
    return replace(probe, name=f"{probe.name}-again")


class TargetWatch:
    """Everything about one target that lives between two canaries. One canary at a time in each lane; both lanes share this."""

    def __init__(
        self,
        settings: TargetSettings,
        probes: Sequence[Probe],
        writer: Writer,
        cards: TargetCards,
        channels: Sequence[str] = (),
        keeps_identity: bool = True,
        class_budgets: Mapping[str, int] | None = None,
    ) -> None:
        self.settings = settings
        self._keeps_identity = keeps_identity
        self.probes = list(probes)
        self.writer = writer
        self.cards = cards
        self._channels = channels
        self._http = _client(settings) if keeps_identity else client_of(settings)
        self._page = MetricsPage(self._http, settings.metrics_page)
        self.canary = Canary(settings.name, self._http, self._page, settings.model, cards if cards.watching else None)
        self._noting = asyncio.Lock()
        self._start: Start | None = None
        self._start_id: int | None = None
        self._last_good: ServerPage | None = None
        self._away = False
        self._warmed: set[str] = set()
        self._stillness = Stillness()
        self._last_canary_s: float | None = None
        self._system_fingerprint: str | None = None
        self._identity_due = True
        self._revisions: dict[str, int] = {}
        self._ready: dict[str, Probe] = {}  # probes fitted to this server's context
        self._class_budgets = dict(class_budgets or {})
        self.ledger = TokenLedger(settings.token_budget_per_hour, (), self._class_budgets)
        self.leave = IdleLeave(settings.when_idle)
        self.expected_since: datetime | None = None  # while the server was left alone, no sample was expected
        self.on_skip: Callable[[str, str, int], None] | None = None

    async def load(self) -> None:
        """Take up what the history knows of this target."""
        now = datetime.now(UTC)

        def work(connection: Connection) -> int:
            target_id = record.ensure_target(connection, self.settings.name, self.settings.url, now)
            known = [*self.probes, *(again(probe) for probe in self.probes if probe.same_salt_twice)]
            self._revisions = {probe.name: record.ensure_revision(connection, probe, now) for probe in known}
            spent = queries.tokens_since(connection, target_id, now - HOUR)
            self.ledger = TokenLedger(self.settings.token_budget_per_hour, spent, self._class_budgets)
            row = queries.target(connection, self.settings.name)
            if row is not None and row.process_start_id is not None:
                self._take_up_start(connection, target_id, row.process_start_id)
            return target_id

        self.target_id = await self._db(work)
        self.identity = IdentityWatch(self.target_id, self.writer, self._channels, self._sources, not self._keeps_identity)
        await self.identity.load()

    def _take_up_start(self, connection: Connection, target_id: int, start_id: int) -> None:
        start = queries.process_start(connection, start_id)
        last = queries.last_counters(connection, target_id)
        if start is None:
            return
        seen_at = maybe_from_us(start.seen_at_us) or datetime.now(UTC)
        self._start, self._start_id = Start(maybe_from_us(start.started_at_us), seen_at), start_id
        self._warmed = queries.warmed_parameter_sets(connection, target_id, start_id)
        if last is not None:
            age_s = (datetime.now(UTC) - from_us(last.at_us)).total_seconds()
            self._stillness.note(last.engine_steps, time.monotonic() - age_s)
            self._last_good = ServerPage(at=seen_at, state="ok", engine_steps=last.engine_steps, generation_tokens=last.generation_tokens)

    async def find_model(self) -> None:
        """Learn the served model's name where the configuration does not give it. Raises what monitor.measure.api raises,
        and SeveralModelsError."""
        if self.settings.model is not None:
            return
        self.canary.model = the_one_model(self.settings.url, await models(self._http))

    async def misfits(self, probes: Sequence[Probe], directory: Path) -> list[Problem]:
        """Probes that this server's context cannot hold, and the model's name on the way. Raises as find_model does."""
        cards = await models(self._http)
        self.canary.model = self.settings.model or the_one_model(self.settings.url, cards)
        flight = Preflight(self.settings.name, self._http, self._page, self.canary.model)
        flight.max_model_len = next((card.max_model_len for card in cards if card.id == self.canary.model), None)
        await flight.probe_lengths(probes, directory)
        return flight.misfits

    async def look(self) -> ServerPage:
        """Read the metrics page and note what it tells: a new start of the process, and whether the engine moved."""
        page = await self._page.read()
        async with self._noting:
            await self._note(page)
        return page

    async def _note(self, page: ServerPage) -> None:
        new = judge_start(self._start, self._last_good, page, self._away)
        if new is not None:
            now = datetime.now(UTC)
            self._start_id = await self._db(lambda c: record.start_process(c, self.target_id, new.started_at, now, new.source))
            self._start = Start(new.started_at, now)
            self._warmed, self._system_fingerprint, self._identity_due = set(), None, True
            self._ready.clear()
            log.info("target=%s process_start=%s noticed_by=%s", self.settings.name, new.started_at or "unknown", new.source)
        self._away = page.state == "refused" or (self._away and page.state == "timeout")
        if page.state == "ok":
            self._stillness.note(page.engine_steps, time.monotonic())
            self.leave.note(page.engine_steps, time.monotonic())
            self._last_good = page

    def phase_of(self, probe: Probe, before: ServerPage) -> Phase:
        """How warm the server is for this probe (judge/phase.py)."""
        since_ours_s = None if self._last_canary_s is None else time.monotonic() - self._last_canary_s
        is_new = probe.parameter_set not in self._warmed
        return judge_phase(is_new, self._stillness, time.monotonic(), before.running, since_ours_s)

    async def refresh_identity(self, page: ServerPage | None = None) -> None:
        """Read the identity now; a server that does not answer leaves it due."""
        page = page or await self.look()
        if page.state in {"refused", "timeout"}:
            return
        if self.canary.model is None:
            try:
                await self.find_model()
            except (ServerUnreachableError, ServerRefusedError, SeveralModelsError) as error:
                log.warning("target=%s the model's name is not known: %s", self.settings.name, error)
        self._identity_due = False
        await self.identity.refresh(page)

    async def run_all(self, probe: Probe) -> list[Stored] | Skipped:
        """A probe as it is meant: once, or twice with the same cache salt. Skipped when nothing was sent."""
        salt = uuid.uuid4().hex
        first = await self.run(probe, salt)
        if isinstance(first, Skipped):
            return first
        if not probe.same_salt_twice or first[0].sample.outcome is not Outcome.OK:
            return [first]
        second = await self.run(again(probe), salt)
        return [first] if isinstance(second, Skipped) else [first, second]

    async def run(self, probe: Probe, cache_salt: str | None = None) -> Stored | Skipped:
        """One canary now: measured, judged, handed to the writer. The future gives the id of the stored sample."""
        if not self.ledger.allows(probe, datetime.now(UTC), from_reserve=not self._keeps_identity):
            self.skip(probe.name, "token_budget")
            return Skipped(probe, f"the budget of {self.ledger.limit} tokens an hour is spent")
        before = await self.look()
        if self._keeps_identity and not self.leave.wants(probe.name, time.monotonic()):
            self.skip(probe.name, "idle")
            return Skipped(probe, "nobody uses the server, and it is to be left alone then (when_idle)")
        if self._identity_due:
            await self.refresh_identity(before)
        if probe.context_share is not None:
            try:
                probe = await self._lengthened(probe)
            except (ServerUnreachableError, ServerRefusedError) as error:
                self.skip(probe.name, "length")
                return Skipped(probe, f"its length cannot be fitted to the server's context: {error}")
        phase, idle_before_s = self.phase_of(probe, before), self._stillness.for_s(time.monotonic())
        started_at = datetime.now(UTC)
        try:
            measured = await self.canary.measure(probe, phase, before, idle_before_s, cache_salt)
        except asyncio.CancelledError:
            cut = Sample(self.settings.name, probe.name, probe.traffic_class, started_at, phase, Outcome.CANCELLED, priority=probe.priority)
            self._store(cut, "cancelled because vllm-canary was stopped")
            raise
        return await self._finish(probe, measured)

    async def _lengthened(self, probe: Probe) -> Probe:
        """A probe that fills a share of the context, made once for each start of the server."""
        ready = self._ready.get(probe.name)
        if ready is None:
            cards = await models(self._http)
            context = next((card.max_model_len for card in cards if card.id == self.canary.model), None)
            if context is None:
                raise ServerRefusedError(200, "/v1/models does not tell the context's length")
            ready = self._ready[probe.name] = await lengthened(self._http, probe, self.canary.model, context)
            now = datetime.now(UTC)
            self._revisions[probe.name] = await self._db(lambda c: record.ensure_revision(c, ready, now))
        return ready

    async def _finish(self, probe: Probe, measured: Measurement) -> Stored:
        self._last_canary_s = time.monotonic()
        if measured.after is not None:
            async with self._noting:
                self.leave.ours(measured.after.engine_steps)
                await self._note(measured.after)
        sample, answer = measured.sample, measured.answer
        if answer.system_fingerprint is not None:
            self._system_fingerprint = answer.system_fingerprint
            await self.identity.note_system_fingerprint(self.settings.name, answer.system_fingerprint)
        judgement = judge_answer(probe, sample.outcome, sample.output)
        current = self.identity.current
        sample = replace(
            sample,
            verdict=judgement.verdict,
            fingerprint=None if current is None else current.digest,
            process_start=None if self._start is None else self._start.started_at or self._start.seen_at,
        )
        self.ledger.note(probe, sample.started_at, sample.prompt_tokens, sample.completion_tokens)
        if sample.outcome is Outcome.OK:
            self._warmed.add(probe.parameter_set)
        told = measured.detail or (judgement.reason if judgement.verdict.value == "fail" else None)
        return replace(measured, sample=sample, detail=told), self._store(sample, told)

    def _store(self, sample: Sample, detail: str | None) -> Future[int]:
        start_id, current = self._start_id, self.identity.current

        def work(connection: Connection) -> int:
            if start_id is not None and sample.outcome is Outcome.OK and sample.ttft_ms is not None:
                record.note_first_answer(connection, start_id, sample.started_at + timedelta(milliseconds=sample.ttft_ms))
            return record.insert_sample(
                connection,
                sample,
                target_id=self.target_id,
                revision_id=self._revisions[sample.probe],
                process_start_id=start_id,
                fingerprint_id=None if current is None else current.id,
                detail=detail,
            )

        return self.writer.submit(work)

    def skip(self, probe: str, reason: str, count: int = 1) -> None:
        """Count runs that were not done."""
        now = datetime.now(UTC)
        if self.on_skip is not None:
            self.on_skip(self.settings.name, reason, count)
        self.writer.submit(lambda c: record.insert_skipped(c, self.target_id, probe, now, reason=reason, count=count))

    async def store_reading(self) -> ServerPage:
        """One reading of the metrics page between canaries, stored: a batch job between two canaries must not be invisible."""
        page = await self.look()
        start_id = self._start_id
        self.writer.submit(lambda c: record.insert_server_reading(c, self.target_id, page, start_id))
        if self._identity_due:
            await self.refresh_identity(page)
        return page

    async def close(self) -> None:
        """Let go of the connection."""
        await self._http.aclose()

    def _sources(self) -> Sources:
        gpu, reason = self.cards.identity()
        return Sources(self.settings, self._http, self.canary.model, gpu, reason, self._system_fingerprint)

    async def _db(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.wrap_future(self.writer.submit(work))


def _client(settings: TargetSettings) -> httpx.AsyncClient:
    """The client; a key or a certificate that is missing is said, and shows in each sample as what the server makes of it."""
    try:
        return client_of(settings)
    except ConnectionSetupError as error:
        log.error("%s", error)
        return client(settings.url, None, settings.headers)
