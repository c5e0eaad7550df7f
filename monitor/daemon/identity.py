"""Keeps a target's identity in the history: reads it, compares it, and turns a change into a
trigger in the same transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TypeVar

from sqlalchemy import Connection

from monitor.alert import incidents
from monitor.judge import identity as changes
from monitor.measure.server.identity import Sources, read_identity
from monitor.model import Change, Fingerprint, FingerprintField, Kind, ServerPage
from monitor.store import fingerprints, queries
from monitor.store.fingerprints import StoredFingerprint
from monitor.store.writer import Writer

T = TypeVar("T")
log = logging.getLogger(__name__)
Fields = Mapping[str, FingerprintField]
SECOND_LOOK_S = (
    2.0  # a change must be seen twice: during a restart, parts of the old and the new server mix
)


class Rounds:
    """When which target's identity is read: each at the start, again every `every_s`, and at once
    when its GPUs are other ones.

    The second round is spread over the interval, or a fleet would be read in one burst for ever.
    Pure but for its own memory.
    """

    def __init__(self, targets: Sequence[str], every_s: float) -> None:
        self._every_s = every_s
        self._first_wait_s = {
            name: every_s * place / len(targets) for place, name in enumerate(targets, 1)
        }
        self._due_s: dict[str, float] = {}
        self._gpus: dict[str, object] = {}

    def due(self, target: str, now_s: float, gpus: object) -> bool:
        """Whether to read it now; `GPUs`: what of its GPUs should stay as it is. Saying yes books
        the reading.
        """
        due_s = self._due_s.get(target)
        if due_s is not None and now_s < due_s and gpus == self._gpus[target]:
            return False
        self._due_s[target] = now_s + (
            self._first_wait_s[target] if due_s is None else self._every_s
        )
        self._gpus[target] = gpus
        return True


class Keeps(Enum):
    """What a watch keeps of the identities that it reads."""

    CHANGES = auto()  # the daemon: all of them, and a change opens an incident
    # a command: where no daemon has ever watched the target, and without an incident, since nobody
    # is on watch
    UNWATCHED = auto()
    NOTHING = auto()  # a command that only looks


class IdentityWatch:
    """One target's identity. `sources` gives the sources as they are now."""

    def __init__(
        self,
        target_id: int,
        writer: Writer,
        channels: Sequence[str],
        sources: Callable[[], Sources],
        keeps: Keeps,
    ) -> None:
        self._target_id = target_id
        self._writer = writer
        self._channels = channels
        self._sources = sources
        self._keeps = keeps
        self._lock = asyncio.Lock()
        self.current: StoredFingerprint | None = None

    async def load(self) -> None:
        """Take up what the history knows."""
        self.current = await self._db(lambda c: fingerprints.current(c, self._target_id))

    async def is_ours(self) -> bool:
        """Whether it is on us to notice a change. Once a daemon has watched a target it is the
        daemon's: it tells people of it too.
        """
        return await self._db(self._is_ours)

    def _is_ours(self, connection: Connection) -> bool:
        if (
            self._keeps is Keeps.CHANGES
            or fingerprints.current(connection, self._target_id) is None
        ):
            return True
        return not queries.is_watched(connection, self._target_id)

    async def refresh(self, page: ServerPage) -> bool:
        """Read the identity now and keep it. A change is believed when a second look shows the
        same; False while it still moves.
        """
        if not await self.is_ours():
            return True
        async with self._lock:
            seen = await read_identity(self._sources(), page)
            if self.current is not None and (
                first := changes.compare(self.current.fields, seen.fields).trigger
            ):
                await asyncio.sleep(SECOND_LOOK_S)
                again = await read_identity(self._sources(), page)
                if changes.compare(self.current.fields, again.fields).trigger != first:
                    log.info(
                        "target=%s the configuration is still moving; looking again later",
                        seen.target,
                    )
                    return False
                seen = again
            await self._keep(seen)
        return True

    async def unseen(self, page: ServerPage) -> tuple[Change, ...]:
        """Root fields of the server that are not what the history knows of it; those of the GPUs
        left out, which move for a moment too.
        """
        if self.current is None:
            return ()
        seen = await read_identity(self._sources(), page)
        return tuple(
            c
            for c in changes.compare(self.current.fields, seen.fields).roots
            if not c.field.startswith("gpu")
        )

    async def note_system_fingerprint(self, target: str, value: str) -> None:
        """What an answer says of its server; new to us or changed, it is kept like any other
        field.
        """
        async with self._lock:
            known = self.current
            if known is None or known.fields["system_fingerprint"].value == value:
                return
            field = FingerprintField("system_fingerprint", "derived", value, "answer of a canary")
            seen = {name: replace(f, value=None) for name, f in known.fields.items()} | {
                "system_fingerprint": field
            }
            await self._keep(Fingerprint(target, datetime.now(UTC), seen))

    async def _keep(self, seen: Fingerprint) -> None:
        if self._keeps is Keeps.NOTHING:
            if (
                self.current is not None
                and changes.compare(self.current.fields, seen.fields).trigger
            ):
                self.current = None  # what is served now has no name in the history, and gets none
            return

        def work(connection: Connection) -> StoredFingerprint | None:
            if self._is_ours(connection):  # asked again: a daemon may have come since
                keep(
                    connection,
                    self._target_id,
                    seen,
                    self._channels if self._keeps is Keeps.CHANGES else None,
                )
            return fingerprints.current(connection, self._target_id)

        self.current = await self._db(work)

    async def _db(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.wrap_future(self._writer.submit(work))


def keep(
    connection: Connection, target_id: int, seen: Fingerprint, channels: Sequence[str] | None
) -> None:
    """Store a reading. Learnt fields go into the same identity; a changed one leads to another with
    its incident, or back to an earlier. `channels` None: nobody is on watch, and there is no
    incident.
    """
    known = fingerprints.current(connection, target_id)
    if known is None:
        fingerprints.save(connection, target_id, changes.digest(seen.fields), seen.fields, seen.at)
        return
    trigger = changes.compare(known.fields, seen.fields).trigger
    fields: Fields = changes.merged(known.fields, seen.fields)
    row_id: int | None = known.id
    if (
        trigger and changes.digest(fields) != known.digest
    ):  # otherwise only a soft field moved: reported, but no other identity
        row_id, fields = _earlier(connection, target_id, known.id, fields)
    row_id = fingerprints.save(
        connection, target_id, changes.digest(fields), fields, seen.at, row_id=row_id
    )
    if not trigger:
        _follow(connection, seen.target, row_id, changes.digest(fields))
    elif channels is not None and (now := fingerprints.current(connection, target_id)) is not None:
        _tell(connection, seen, known, now, channels)


def _tell(
    connection: Connection,
    seen: Fingerprint,
    known: StoredFingerprint,
    now: StoredFingerprint,
    channels: Sequence[str],
) -> None:
    """The incident of a change; where the change undoes an earlier one, the incident of that is
    closed instead.
    """
    undone = _rolled_back(connection, seen, now.fields, channels)
    trigger = tuple(
        change
        for change in changes.compare(known.fields, seen.fields).trigger
        if change.field not in undone
    )
    if trigger:
        evidence = {
            "digest_before": known.digest,
            "digest_after": now.digest,
            "fingerprint_before": known.id,
            "fingerprint_after": now.id,
        }
        incidents.report(
            connection,
            changes.config_change(seen.target, trigger, seen.at, evidence),
            seen.at,
            channels,
        )


def _earlier(
    connection: Connection, target_id: int, known_id: int, fields: Fields
) -> tuple[int | None, Fields]:
    """The identity that these fields were once before, with what it knew then; or a new one."""
    for stored in fingerprints.all_of(connection, target_id):
        if stored.id != known_id and changes.is_same(stored.fields, fields):
            return stored.id, changes.merged(stored.fields, fields)
    return None, fields


def _follow(connection: Connection, target: str, row_id: int, digest: str) -> None:
    """What is learnt of an identity changes its digest; the incident that led to it keeps naming
    the right one.
    """
    for incident in incidents.open_incidents(connection, target, [Kind.CONFIG_CHANGE]):
        if (
            incident.evidence.get("fingerprint_after") == row_id
            and incident.evidence.get("digest_after") != digest
        ):
            incidents.set_evidence(connection, incident, {"digest_after": digest})


def _rolled_back(
    connection: Connection, seen: Fingerprint, fields: Fields, channels: Sequence[str]
) -> set[str]:
    """Close the incidents of which every change is undone by now; the fields that they were
    about.
    """
    undone = [
        incident
        for incident in incidents.open_incidents(connection, seen.target, [Kind.CONFIG_CHANGE])
        if incident.changes and changes.is_undone(incident.changes, fields)
    ]
    for incident in undone:
        incidents.close(connection, incident, seen.at, changes.ROLLED_BACK, channels)
    return {change.field for incident in undone for change in incident.changes}
