"""`pins import` and `pins expire`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection

from monitor.cli.common import CommandError, database_of, now_utc, print_json
from monitor.cli.pins import Revisions, fits_text, pin_of, revisions_of
from monitor.cli.writing import write_once
from monitor.judge.quality.pinning import objection
from monitor.model import Pin
from monitor.store import fingerprints, pins, queries
from monitor.store.database import reading
from monitor.store.pinfile import PinFileError, from_yaml


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported pin: its number in this history, and the pins that it replaced."""

    pin: Pin
    number: int
    retired: Sequence[int]


def import_file(args: Namespace) -> int:
    """Imports all pins of a file, or none."""
    found = from_yaml(_text(args.file), args.file)
    _check_texts(found, revisions_of(args))
    with reading(database_of(args)):  # a writer would create a missing database
        pass
    imported = _import_all(database_of(args), found, args.force)
    if args.json:
        retired = [number for one in imported for number in one.retired]
        print_json({"imported": [one.number for one in imported], "ended": retired})
        return 0
    for one in imported:
        replaced = f"; replaces {_numbers(one.retired)}" if one.retired else ""
        print(f"pin {one.number} of {one.pin.probe} on {one.pin.target}{replaced}")
    print(f"{len(imported)} pins imported")
    return 0


def _numbers(retired: Sequence[int]) -> str:
    return f"pin {', '.join(map(str, retired))}, now retired"


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{file} cannot be read: it is not UTF-8 text") from None


def _check_texts(found: Sequence[Pin], revisions: Revisions | None) -> None:
    """Raises PinFileError if a pin belongs to another text of its probe."""
    for pin in found:
        if revisions is not None and not fits_text(pin, revisions):
            why = "its text has changed" if pin.probe in revisions else "it is not configured"
            raise PinFileError(
                f"there is no probe {pin.probe} of revision {pin.revision}: {why}; "
                "nothing was imported"
            )


def _import_all(database: str, found: Sequence[Pin], force: bool) -> list[Imported]:
    """Imports in one transaction, oldest first. Raises PinFileError."""
    in_order = sorted(found, key=lambda pin: pin.created_at)
    return write_once(database, lambda c: [_import(c, pin, force) for pin in in_order])


def _import(connection: Connection, pin: Pin, force: bool) -> Imported:
    """Imports one pin. Raises PinFileError if it does not belong to this history, or would undo a
    later change.
    """
    row = queries.target(connection, pin.target)
    if row is None:
        raise PinFileError(f"the history has no target {pin.target}; nothing was imported")
    revision_id = queries.revision_id(connection, pin.probe, pin.revision)
    if revision_id is None:
        raise PinFileError(
            f"the history has no probe {pin.probe} of revision {pin.revision}: its text has "
            "changed; nothing was imported"
        )
    identity = _identity(connection, row, pin)
    # The identity's digest may have changed since the file was written.
    pin = replace(pin, fingerprint=None if identity is None else identity.digest)
    here = [p for p in pins.find(connection, pin.target, retired=True) if p.probe == pin.probe]
    if not force:
        _refuse_undoing(connection, row, pin, here)
    number = pins.add(
        connection,
        pin,
        target_id=row.id,
        revision_id=revision_id,
        fingerprint_id=None if identity is None else identity.id,
        now=now_utc(),
    )
    active = {other.id for other in pins.find(connection, pin.target)}
    retired = [p.id for p in here if p.retired_at is None and p.id not in active]
    return Imported(pin, number, retired)


def _identity(
    connection: Connection, row: queries.TargetRow, pin: Pin
) -> fingerprints.StoredFingerprint | None:
    """What was served when the pin was recorded; None if the pin does not say."""
    if pin.fingerprint is None:
        return None
    identity = fingerprints.named(connection, row.id, pin.fingerprint)
    if identity is None:
        raise PinFileError(
            f"the pin of {pin.probe} was recorded under identity {pin.fingerprint}, which "
            f"{pin.target} never had; is it another model? Nothing was imported"
        )
    return identity


def _refuse_undoing(
    connection: Connection, row: queries.TargetRow, pin: Pin, here: Sequence[Pin]
) -> None:
    is_known = fingerprints.current(connection, row.id) is not None
    why = objection(pin, here, now_utc(), is_known=is_known)
    if why is not None:
        raise PinFileError(f"{why}; nothing was imported (`--force` imports it anyway)")


def retire(args: Namespace) -> int:
    """Retires a pin."""
    if pin_of(args, args.pin).retired_at is not None:
        raise CommandError(f"pin {args.pin} is already retired")
    now = now_utc()
    if not write_once(database_of(args), lambda c: pins.retire(c, args.pin, now)):
        raise CommandError(f"pin {args.pin} has just been retired by another process")
    if args.json:
        print_json({"ended": [args.pin]})
    else:
        print(f"pin {args.pin} is retired; it is kept, but no longer used to judge answers")
    return 0
