"""Keeps a target's identity in the history: reads it, compares it, and reports a change in the same
transaction.
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

from monitor.alert.incidents import IncidentLog
from monitor.judge import identity as changes
from monitor.measure.server.identity import Sources, read_identity
from monitor.model import Change, Fingerprint, FingerprintField, Kind, ServerPage
from monitor.store import fingerprints, queries
from monitor.store.fingerprints import StoredFingerprint
from monitor.store.writer import Writer

T = TypeVar("T")
log = logging.getLogger(__name__)
Fields = Mapping[str, FingerprintField]
# a change must be read twice: during a restart, parts of the old and the new server mix
SECOND_READING_S = 2.0


class IdentitySchedule:
    """The times at which identities are read: each at the start, again every `every_s`, and at once
    when a target's GPUs change.

    The second round is spread over the interval; otherwise a fleet would be read in one burst every
    time.
    """

    def __init__(self, targets: Sequence[str], every_s: float) -> None:
        self._every_s = every_s
        self._first_wait_s = {
            name: every_s * place / len(targets) for place, name in enumerate(targets, 1)
        }
        self._due_s: dict[str, float] = {}
        self._gpus: dict[str, object] = {}

    def due(self, target: str, now_s: float, gpus: object) -> bool:
        """Returns whether to read a target now, and if so schedules its next reading. `gpus`: what
        should not change about its GPUs.
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
    """Which of the identities that it reads a process stores."""

    CHANGES = auto()  # the daemon: all, and a change opens an incident
    UNWATCHED = auto()  # a command: if no daemon has ever watched the target, without an incident
    NOTHING = auto()  # a command that only reads


class IdentityWatch:
    """One target's identity. `sources` returns the sources as they are now."""

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
        """Loads the identity that the history has."""
        self.current = await self._db(lambda c: fingerprints.current(c, self._target_id))

    async def is_ours(self) -> bool:
        """Returns whether this process stores changes. Once a daemon has watched a target, only the
        daemon does, because it also notifies people.
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
        """Reads the identity and stores it. A change counts if a second reading shows the same one;
        returns False while it still moves.
        """
        if not await self.is_ours():
            return True
        async with self._lock:
            seen = await read_identity(self._sources(), page)
            if self.current is not None and (
                first := changes.compare(self.current.fields, seen.fields).trigger
            ):
                await asyncio.sleep(SECOND_READING_S)
                again = await read_identity(self._sources(), page)
                if changes.compare(self.current.fields, again.fields).trigger != first:
                    log.info(
                        "target=%s the configuration is still changing; reading it again later",
                        seen.target,
                    )
                    return False
                seen = again
            await self._keep(seen)
        return True

    async def unseen(self, page: ServerPage) -> tuple[Change, ...]:
        """Returns the root fields of the server that differ from the history, except those of the
        GPUs, which also change for a moment.
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
        """Stores the `system_fingerprint` of an answer, if it is new or has changed, as any other
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
                self.current = None  # what is served now is not in the history, and is not added
            return

        def work(connection: Connection) -> StoredFingerprint | None:
            if self._is_ours(connection):  # asked again: a daemon may have started since
                log = IncidentLog(connection, seen.at, self._channels, seen.target)
                keep(log, self._target_id, seen, announce=self._keeps is Keeps.CHANGES)
            return fingerprints.current(connection, self._target_id)

        self.current = await self._db(work)

    async def _db(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.wrap_future(self._writer.submit(work))


def keep(log: IncidentLog, target_id: int, seen: Fingerprint, announce: bool) -> None:
    """Stores a reading of the identity, dated as the log.

    A newly known field goes into the same identity; a changed one leads to another identity with
    its incident, or back to an earlier one. `announce` False: no daemon is watching, and no
    incident is opened.
    """
    c = log.connection
    known = fingerprints.current(c, target_id)
    if known is None:
        fingerprints.save(c, target_id, changes.digest(seen.fields), seen.fields, seen.at)
        return
    trigger = changes.compare(known.fields, seen.fields).trigger
    row_id, fields = _filed(c, target_id, known, seen)
    digest = changes.digest(fields)
    row_id = fingerprints.save(c, target_id, digest, fields, seen.at, row_id=row_id)
    if not trigger:
        _follow(log, row_id, digest)
    elif announce and (now := fingerprints.current(c, target_id)) is not None:
        _announce(log, seen, known, now)


def _filed(
    connection: Connection, target_id: int, known: StoredFingerprint, seen: Fingerprint
) -> tuple[int | None, Fields]:
    """Returns the identity that a reading belongs to, None for a new one, with all known fields."""
    fields: Fields = changes.merged(known.fields, seen.fields)
    trigger = changes.compare(known.fields, seen.fields).trigger
    if not trigger or changes.digest(fields) == known.digest:
        return known.id, fields  # at most a soft field moved: announced, but the same identity
    return _earlier(connection, target_id, known.id, fields)


def _announce(
    log: IncidentLog, seen: Fingerprint, known: StoredFingerprint, now: StoredFingerprint
) -> None:
    """Reports the incident of a change. If the change undoes an earlier one, the incident of that
    one is closed instead.
    """
    undone = _close_undone(log, now.fields)
    triggers = changes.compare(known.fields, seen.fields).trigger
    left = tuple(change for change in triggers if change.field not in undone)
    if left:
        evidence = {
            "digest_before": known.digest,
            "digest_after": now.digest,
            "fingerprint_before": known.id,
            "fingerprint_after": now.id,
        }
        log.report(changes.config_change(seen.target, left, seen.at, evidence))


def _earlier(
    connection: Connection, target_id: int, known_id: int, fields: Fields
) -> tuple[int | None, Fields]:
    """Returns an earlier identity that had these fields, with all that was known of it; or None."""
    for stored in fingerprints.all_of(connection, target_id):
        if stored.id != known_id and changes.is_same(stored.fields, fields):
            return stored.id, changes.merged(stored.fields, fields)
    return None, fields


def _follow(log: IncidentLog, row_id: int, digest: str) -> None:
    """Keeps the digest in the incident that led to an identity up to date: it changes as more of
    the identity becomes known.
    """
    for incident in log.open([Kind.CONFIG_CHANGE]):
        if (
            incident.evidence.get("fingerprint_after") == row_id
            and incident.evidence.get("digest_after") != digest
        ):
            log.note(incident, {"digest_after": digest})


def _close_undone(log: IncidentLog, fields: Fields) -> set[str]:
    """Closes the incidents of which every change is undone; returns the fields of these changes."""
    undone = [
        incident
        for incident in log.open([Kind.CONFIG_CHANGE])
        if incident.changes and changes.is_undone(incident.changes, fields)
    ]
    for incident in undone:
        log.close(incident, changes.ROLLED_BACK)
    return {change.field for incident in undone for change in incident.changes}
