"""Pins in the history: recorded, found, retired, never deleted; and people's reviews of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, ScalarSelect, func, insert, select, update

from monitor.model import Expectation, Pin, PinnedOutput
from monitor.store import tables as t
from monitor.store.record import ensure_output
from monitor.store.times import from_us, maybe_from_us, to_us


def add(
    connection: Connection,
    pin: Pin,
    *,
    target_id: int,
    revision_id: int,
    fingerprint_id: int | None,
    now: datetime | None = None,
) -> int:
    """Stores a pin and returns its id. An earlier pin of the same probe under the same identity, or
    under none, is retired (at `now`, or else at the new pin's creation) and kept.
    """
    _retire_earlier(connection, target_id, revision_id, fingerprint_id, now or pin.created_at)
    values = {
        "target_id": target_id,
        "revision_id": revision_id,
        "fingerprint_id": fingerprint_id,
        "reason": pin.reason,
        "author": pin.author,
        "created_at_us": to_us(pin.created_at),
        "expires_at_us": to_us(pin.expires_at),
        "prompt_tokens": pin.prompt_tokens,
        "noise_nat": pin.noise_nat,
        "ttft_ms": list(pin.ttft_ms),
        "decode_tok_s": list(pin.decode_tok_s),
    }
    key = connection.execute(insert(t.pin).values(**values)).inserted_primary_key
    pin_id = int(key[0]) if key is not None else 0
    for output in pin.outputs:
        _add_output(connection, pin_id, output)
    return pin_id


def _retire_earlier(
    connection: Connection,
    target_id: int,
    revision_id: int,
    fingerprint_id: int | None,
    at: datetime,
) -> None:
    # Taken before any identity was known; the new pin is of the same server or a later one.
    unfiled = t.pin.c.fingerprint_id.is_(None)
    same_identity = (
        unfiled if fingerprint_id is None else unfiled | (t.pin.c.fingerprint_id == fingerprint_id)
    )
    earlier = (
        select(t.pin.c.id)
        .join(t.probe_revision, t.probe_revision.c.id == t.pin.c.revision_id)
        .where(
            t.pin.c.target_id == target_id,
            t.pin.c.retired_at_us.is_(None),
            same_identity,
            t.probe_revision.c.probe_id == _probe_id(revision_id),
        )
    )
    old = list(connection.execute(earlier).scalars())
    connection.execute(update(t.pin).where(t.pin.c.id.in_(old)).values(retired_at_us=to_us(at)))


def _add_output(connection: Connection, pin_id: int, output: PinnedOutput) -> None:
    connection.execute(
        insert(t.pin_output).values(
            pin_id=pin_id,
            output_id=ensure_output(connection, output.text),
            tokens=list(output.tokens),
            token_ids=list(output.token_ids),
            logprobs=list(output.logprobs),
            tops=[dict(top) for top in output.tops],
            finish_reason=output.finish_reason,
            count=output.count,
        )
    )


def adopt(connection: Connection, target_id: int, now: datetime) -> bool:
    """Files pins that were taken before any identity of the target was known under the first
    identity that was read after them. Where a newer pin of the probe is active there, the old one
    is retired. Returns whether any was filed.
    """
    active = (t.pin.c.target_id == target_id, t.pin.c.retired_at_us.is_(None))
    unfiled = select(t.pin).where(*active, t.pin.c.fingerprint_id.is_(None))
    filed = False
    for row in connection.execute(unfiled.order_by(t.pin.c.created_at_us)).all():
        first = _first_identity_after(connection, target_id, row.created_at_us)
        if first is None:
            continue
        of_probe = select(t.probe_revision.c.id).where(
            t.probe_revision.c.probe_id == _probe_id(row.revision_id)
        )
        newer = select(t.pin.c.id).where(
            *active,
            t.pin.c.fingerprint_id == first,
            t.pin.c.revision_id.in_(of_probe),
            t.pin.c.created_at_us >= row.created_at_us,
        )
        is_replaced = connection.execute(newer).first() is not None
        values = {"fingerprint_id": first, "retired_at_us": to_us(now) if is_replaced else None}
        connection.execute(update(t.pin).where(t.pin.c.id == row.id).values(**values))
        filed = True
    return filed


def _first_identity_after(connection: Connection, target_id: int, at_us: int) -> int | None:
    query = (
        select(t.fingerprint.c.id)
        .where(t.fingerprint.c.target_id == target_id, t.fingerprint.c.first_seen_us >= at_us)
        .order_by(t.fingerprint.c.first_seen_us, t.fingerprint.c.id)
    )
    return connection.execute(query.limit(1)).scalar()


def _probe_id(revision_id: int) -> ScalarSelect[Any]:
    return (
        select(t.probe_revision.c.probe_id)
        .where(t.probe_revision.c.id == revision_id)
        .scalar_subquery()
    )


def retire(connection: Connection, pin_id: int, now: datetime) -> bool:
    """Retires a pin; False when there is no active pin of that number."""
    done = connection.execute(
        update(t.pin)
        .where(t.pin.c.id == pin_id, t.pin.c.retired_at_us.is_(None))
        .values(retired_at_us=to_us(now))
    )
    return done.rowcount == 1


def find(connection: Connection, target: str | None = None, retired: bool = False) -> list[Pin]:
    """Pins, the newest first; without `retired` only active ones."""
    query = (
        select(
            t.pin,
            t.target.c.name.label("target"),
            t.probe.c.name.label("probe"),
            t.probe_revision.c.digest.label("revision"),
            t.fingerprint.c.digest.label("fingerprint"),
        )
        .join(t.target, t.target.c.id == t.pin.c.target_id)
        .join(t.probe_revision, t.probe_revision.c.id == t.pin.c.revision_id)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .outerjoin(t.fingerprint, t.fingerprint.c.id == t.pin.c.fingerprint_id)
        .order_by(t.pin.c.created_at_us.desc(), t.pin.c.id.desc())
    )
    if target is not None:
        query = query.where(t.target.c.name == target)
    if not retired:
        query = query.where(t.pin.c.retired_at_us.is_(None))
    rows = connection.execute(query).all()
    return [_pin(row, _outputs(connection, row.id)) for row in rows]


def get(connection: Connection, pin_id: int) -> Pin | None:
    """One pin, active or retired."""
    return next((pin for pin in find(connection, retired=True) if pin.id == pin_id), None)


def stamp(connection: Connection) -> tuple[int, int]:
    """A stamp that changes whenever a pin is added or retired: newest id and number of active
    pins.
    """
    newest = connection.execute(select(func.max(t.pin.c.id))).scalar()
    active = connection.execute(
        select(func.count()).select_from(t.pin).where(t.pin.c.retired_at_us.is_(None))
    ).scalar()
    return int(newest or 0), int(active or 0)


def _outputs(connection: Connection, pin_id: int) -> tuple[PinnedOutput, ...]:
    query = (
        select(t.pin_output, t.output.c.text)
        .join(t.output, t.output.c.id == t.pin_output.c.output_id)
        .where(t.pin_output.c.pin_id == pin_id)
        .order_by(t.pin_output.c.count.desc(), t.pin_output.c.id)
    )
    return tuple(
        PinnedOutput(
            text=row.text,
            tokens=tuple(row.tokens),
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            finish_reason=row.finish_reason,
            count=row._mapping["count"],
            tops=tuple(row.tops),
        )
        for row in connection.execute(query)
    )


def _pin(row: Row[Any], outputs: Sequence[PinnedOutput]) -> Pin:
    return Pin(
        id=row.id,
        target=row.target,
        probe=row.probe,
        revision=row.revision,
        fingerprint=row.fingerprint,
        reason=row.reason,
        author=row.author,
        created_at=from_us(row.created_at_us),
        expires_at=from_us(row.expires_at_us),
        outputs=tuple(outputs),
        prompt_tokens=row.prompt_tokens,
        noise_nat=row.noise_nat,
        ttft_ms=tuple(row.ttft_ms),
        decode_tok_s=tuple(row.decode_tok_s),
        retired_at=maybe_from_us(row.retired_at_us),
    )


@dataclass(frozen=True, slots=True)
class Review:
    """A person's review of a sample."""

    sample_id: int
    at: datetime
    author: str
    verdict: str
    minutes: float | None
    note: str | None


def add_review(connection: Connection, review: Review) -> None:
    """Stores a review of a sample."""
    connection.execute(
        insert(t.review).values(
            sample_id=review.sample_id,
            at_us=to_us(review.at),
            author=review.author,
            verdict=review.verdict,
            minutes=review.minutes,
            note=review.note,
        )
    )


def reviews_of(connection: Connection, sample_id: int) -> list[Review]:
    """The reviews of a sample, in order."""
    rows = connection.execute(
        select(t.review).where(t.review.c.sample_id == sample_id).order_by(t.review.c.id)
    )
    return [_review(row) for row in rows]


def _review(row: Row[Any]) -> Review:
    return Review(
        sample_id=row.sample_id,
        at=from_us(row.at_us),
        author=row.author,
        verdict=row.verdict,
        minutes=row.minutes,
        note=row.note,
    )


def expectations(connection: Connection) -> dict[str, list[Expectation]]:
    """The conditions of each probe in its newest revision."""
    newest = select(func.max(t.probe_revision.c.id)).group_by(t.probe_revision.c.probe_id)
    query = (
        select(t.probe.c.name, t.probe_revision.c.definition)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .where(t.probe_revision.c.id.in_(newest))
    )
    known = {field.name for field in fields(Expectation)}
    return {
        row.name: [
            Expectation(**{k: v for k, v in e.items() if k in known})
            for e in row.definition.get("expect", ())
        ]
        for row in connection.execute(query)
    }


def reviews_since(connection: Connection, since: datetime | None) -> list[Review]:
    """The reviews of samples that started since a moment, in order."""
    query = (
        select(t.review)
        .join(t.sample, t.sample.c.id == t.review.c.sample_id)
        .order_by(t.review.c.id)
    )
    if since is not None:
        query = query.where(t.sample.c.started_at_us >= to_us(since))
    return [_review(row) for row in connection.execute(query)]


def retry_of(connection: Connection, sample_id: int) -> int | None:
    """The sample whose near tie this one decides; None for a scheduled run."""
    return connection.execute(
        select(t.sample.c.retry_of).where(t.sample.c.id == sample_id)
    ).scalar()
