"""A watched server with its probes, pins and token budget, as the history has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from monitor.config.target import TargetSettings
from monitor.daemon.budget import HOUR, TokenLedger
from monitor.daemon.drift import DriftWatch
from monitor.daemon.extra_runs import ExtraRuns
from monitor.daemon.feed import Feed, same_address
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.identity import Keeps
from monitor.daemon.server import WatchedServer
from monitor.judge.quality.gate import with_second_runs
from monitor.measure.canary import Measurement
from monitor.measure.server.api import ServerRefusedError, models, the_one_model
from monitor.measure.stream.long_prompt import lengthened
from monitor.model import Outcome, Phase, Pin, Probe, Sample
from monitor.store import pins, queries, record
from monitor.store.writer import Writer


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that was not done, and why."""

    probe: Probe
    reason: str


#: A measurement, and the id of its row once it is written.
Stored = tuple[Measurement, Future[int]]


class Target(WatchedServer):
    """A server and what its canaries need: revisions, pins, budget, and a way into the history."""

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
        self.samples_stored = 0  # so that new samples are judged soon
        self.feed = Feed(settings.name, self.probes, same_address(settings))
        self.drift = drift  # None: only the daemon detects drift
        self.extra_runs = ExtraRuns()
        self._pins_stamp: tuple[int, int, str | None] | None = None
        self._revisions: dict[str, int] = {}
        self._in_flight: list[tuple[bool, Phase]] = []  # lane and phase of each canary
        self._ready: dict[str, Probe] = {}  # probes fitted to this server's context
        self._class_budgets = dict(class_budgets or {})
        self.ledger = TokenLedger(settings.token_budget_per_hour, (), self._class_budgets)
        # no sample is expected from before, because the server was left idle
        self.expected_since: datetime | None = None
        self.on_skip: Callable[[str, str, int], None] | None = None

    async def load(self) -> None:
        """Loads what the history has of this target."""
        now = datetime.now(UTC)
        await self.take_up()

        def work(connection: Connection) -> None:
            self._revisions = {
                probe.name: record.ensure_revision(connection, probe, now)
                for probe in with_second_runs(self.probes)
            }
            spent = queries.tokens_between(connection, self.target_id, now - HOUR, now)
            self.ledger = TokenLedger(
                self.settings.token_budget_per_hour, spent, self._class_budgets
            )

        await self._db(work)
        await self.reload_pins()

    def revision_digest(self, probe: Probe) -> str:
        """Returns the revision under which this probe's samples are stored; a probe that is fitted
        to the context has one of its own.
        """
        return self._ready.get(probe.name, probe).revision

    async def store_pin(self, pin: Pin) -> int:
        """Records a pin of this target under its present identity."""
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
        """Loads pins that any process recorded or retired since the last time, and the digests that
        they were recorded under, which change as more of an identity becomes known.
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

    def skip(self, probe: str, reason: str, count: int = 1) -> None:
        """Counts runs that were not done."""
        now = datetime.now(UTC)
        if self.on_skip is not None:
            self.on_skip(self.settings.name, reason, count)
        self.writer.submit(
            lambda c: record.insert_skipped(
                c, self.target_id, probe, now, reason=reason, count=count
            )
        )

    async def _lengthened(self, probe: Probe) -> Probe:
        """Returns a probe that fills its share of the context, made once for each start of the
        server.
        """
        ready = self._ready.get(probe.name)
        if ready is None:
            served = await models(self._http)
            if self.canary.model is None:
                self.canary.model = the_one_model(self.settings.url, served)
            lengths = (each.max_model_len for each in served if each.id == self.canary.model)
            context = next(lengths, None)
            if context is None:
                raise ServerRefusedError(200, "/v1/models does not give the context length")
            ready = self._ready[probe.name] = await lengthened(
                self._http, probe, self.canary.model, context
            )
            now = datetime.now(UTC)
            self._revisions[probe.name] = await self._db(
                lambda c: record.ensure_revision(c, ready, now)
            )
        return ready

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
                # written before this one: one thread writes, in order
                retry_of=None if retry_of is None else retry_of[1].result(),
            )

        self.samples_stored += 1
        return self.writer.submit(work)

    def _restarted(self) -> None:
        self._ready.clear()
