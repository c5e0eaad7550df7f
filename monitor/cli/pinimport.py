"""`pins import`: whether a pin from a file belongs to this history, and whose place it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from monitor.cli.common import now_utc
from monitor.judge.quality.pinning import objection
from monitor.model import Pin
from monitor.store import fingerprints, pins, queries
from monitor.store.database import open_writer
from monitor.store.pinfile import PinFileError
from monitor.store.writer import Writer


@dataclass(frozen=True, slots=True)
class Taken:
    """A pin that was imported: its number here, and those whose place it took."""

    pin: Pin
    number: int
    ended: list[int]


def take_all(database: str, found: Sequence[Pin], force: bool) -> list[Taken]:
    """All of them or none: one transaction, the oldest first. Raises PinFileError."""
    writer = Writer(open_writer(database), patient=False)
    try:
        in_order = sorted(found, key=lambda pin: pin.created_at)
        return writer.do(lambda connection: [_take(connection, pin, force) for pin in in_order])
    finally:
        writer.close()


def _take(connection: Connection, pin: Pin, force: bool) -> Taken:
    """One pin into the history. Raises PinFileError where it does not belong to this history, or
    would undo what was done here.
    """
    row = queries.target(connection, pin.target)
    if row is None:
        raise PinFileError(f"the history knows no target {pin.target}; nothing was imported")
    revision_id = queries.revision_id(connection, pin.probe, pin.revision)
    if revision_id is None:
        raise PinFileError(
            f"the history knows no probe {pin.probe} of revision {pin.revision}: its text has "
            "changed; nothing was imported"
        )
    known = (
        None if pin.fingerprint is None else fingerprints.named(connection, row.id, pin.fingerprint)
    )
    if known is None and pin.fingerprint is not None:
        raise PinFileError(
            f"the pin of {pin.probe} was taken under {pin.fingerprint}, which {pin.target} "
            "never was: another model? nothing was imported"
        )
    pin = replace(
        pin, fingerprint=None if known is None else known.digest
    )  # what it is called now: the file may be older
    here = [
        other
        for other in pins.find(connection, pin.target, retired=True)
        if other.probe == pin.probe
    ]
    undoes = objection(
        pin, here, now_utc(), is_known=fingerprints.current(connection, row.id) is not None
    )
    if undoes is not None and not force:
        raise PinFileError(
            f"{undoes}; nothing was imported (`--force` takes the file all the same)"
        )
    fingerprint_id = None if known is None else known.id
    number = pins.add(
        connection,
        pin,
        target_id=row.id,
        revision_id=revision_id,
        fingerprint_id=fingerprint_id,
        now=now_utc(),
    )
    still = {other.id for other in pins.find(connection, pin.target)}
    return Taken(
        pin,
        number,
        [other.id for other in here if other.retired_at is None and other.id not in still],
    )
