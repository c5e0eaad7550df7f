"""One watched server: its metrics page, the starts of its process, its identity and the name of its
model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx
from sqlalchemy import Connection

from monitor.config.problems import FileProblem
from monitor.config.target import TargetSettings
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.identity import IdentityWatch, Keeps
from monitor.daemon.server_state import ServerState
from monitor.measure.canary import Canary
from monitor.measure.server.api import (
    ServerRefusedError,
    ServerUnreachableError,
    SeveralModelsError,
    models,
    the_one_model,
)
from monitor.measure.server.identity import Sources
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.server.preflight import Preflight
from monitor.measure.stream.client import ConnectionSetupError, client, client_of
from monitor.model import Probe, ServerPage
from monitor.store import queries, record
from monitor.store.writer import Writer

T = TypeVar("T")
log = logging.getLogger(__name__)


class WatchedServer:
    """One server and what is known about it between two readings. `keeps`: what it stores of the
    identity; CHANGES makes it the daemon's.
    """

    def __init__(
        self,
        settings: TargetSettings,
        writer: Writer,
        gpus: TargetGpus,
        channels: Sequence[str],
        keeps: Keeps,
    ) -> None:
        self.settings = settings
        self.writer = writer
        self.gpus = gpus
        self._keeps = keeps
        self._is_daemon = keeps is Keeps.CHANGES
        self._channels = channels
        self._http = _client(settings) if self._is_daemon else client_of(settings)
        self._page = MetricsPage(self._http, settings.metrics_page)
        self.canary = Canary(
            settings.name, self._http, self._page, settings.model, gpus if gpus.watching else None
        )
        self._noting = asyncio.Lock()
        self.state = ServerState(settings.when_idle)
        self._system_fingerprint: str | None = None
        self._identity_due = True
        self.on_page: Callable[[str, ServerPage], None] | None = None

    async def take_up(self) -> None:
        """Loads what the history has of this server."""
        now = datetime.now(UTC)

        def work(connection: Connection) -> int:
            target_id = record.ensure_target(connection, self.settings.name, self.settings.url, now)
            row = queries.target(connection, self.settings.name)
            if row is not None and row.process_start_id is not None:
                self.state.load(connection, target_id, row.process_start_id)
            return target_id

        self.target_id = await self._db(work)
        self.identity = IdentityWatch(
            self.target_id, self.writer, self._channels, self._sources, self._keeps
        )
        await self.identity.load()

    def fingerprint_digest(self) -> str | None:
        """Returns the digest of what is served, if the history knows it."""
        return None if self.identity.current is None else self.identity.current.digest

    async def find_model(self) -> None:
        """Finds the served model's name if the configuration does not give it. Raises what
        monitor.measure.server.api raises, and SeveralModelsError.
        """
        if self.settings.model is not None:
            return
        self.canary.model = the_one_model(self.settings.url, await models(self._http))

    async def misfits(self, probes: Sequence[Probe], directory: Path) -> list[FileProblem]:
        """Returns the probes that exceed this server's context, and finds the model's name. Raises
        as find_model does.
        """
        served = await models(self._http)
        self.canary.model = self.settings.model or the_one_model(self.settings.url, served)
        flight = Preflight(self.settings.name, self._http, self._page, self.canary.model)
        flight.max_model_len = next(
            (model.max_model_len for model in served if model.id == self.canary.model), None
        )
        await flight.probe_lengths(probes, directory)
        return flight.misfits

    async def read_page(self) -> ServerPage:
        """Reads the metrics page and notes what it says: a new start of the process, and whether
        the engine made progress.
        """
        page = await self._page.read()
        if self.on_page is not None:
            self.on_page(self.settings.name, page)
        async with self._noting:
            await self._note(page)
        return page

    async def _note(self, page: ServerPage) -> None:
        new = self.state.new_start(page)
        if new is not None:
            now = datetime.now(UTC)
            start_id = await self._db(
                lambda c: record.start_process(c, self.target_id, new.started_at, now, new.source)
            )
            self.state.begin(new, start_id, now)
            self._system_fingerprint, self._identity_due = None, True
            self._restarted()
            log.info(
                "target=%s process_start=%s noticed_by=%s",
                self.settings.name,
                new.started_at or "unknown",
                new.source,
            )
        self.state.note(page)

    def _restarted(self) -> None:
        """Drops what a new start of the process invalidates."""

    async def refresh_identity(self, page: ServerPage | None = None) -> None:
        """Reads the identity; it stays due if the server does not answer."""
        page = page or await self.read_page()
        try:
            served = await models(self._http)
            if self.settings.model is None:
                self.canary.model = the_one_model(self.settings.url, served)
        except ServerUnreachableError:
            return
        except (ServerRefusedError, SeveralModelsError) as error:
            log.warning("target=%s /v1/models: %s", self.settings.name, error)
        self._identity_due = not await self.identity.refresh(page)

    async def store_reading(self) -> ServerPage:
        """Reads and stores the metrics page between canaries, so that a batch job between two of
        them is visible.
        """
        page = await self.read_page()
        start_id = self.state.start_id
        self.writer.submit(
            lambda c: record.insert_server_reading(c, self.target_id, page, start_id)
        )
        if self._identity_due:
            await self.refresh_identity(page)
        return page

    async def close(self) -> None:
        """Closes the connection."""
        await self._http.aclose()

    def _sources(self) -> Sources:
        gpu, reason = self.gpus.identity()
        return Sources(
            self.settings, self._http, self.canary.model, gpu, reason, self._system_fingerprint
        )

    async def _db(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.wrap_future(self.writer.submit(work))


def _client(settings: TargetSettings) -> httpx.AsyncClient:
    """Returns the client. A missing key or certificate is logged, and each sample shows how the
    server responds to it.
    """
    try:
        return client_of(settings)
    except ConnectionSetupError as error:
        log.error("%s", error)
        return client(settings.url, None, settings.headers)
