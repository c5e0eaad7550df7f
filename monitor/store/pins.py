"""Pins in the history: recorded, found, retired; never deleted. And what people said of samples."""

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
    """Record a pin; one of the same probe under the same identity, or under none, is retired (at
    `now`, else when the pin was made) and kept. Returns its id.
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
    unfiled = t.pin.c.fingerprint_id.is_(
        None
    )  # taken before any identity was known: the new one is of the same server or a later one
    same_identity = (
        unfiled if fingerprint_id is None else unfiled | (t.pin.c.fingerprint_id == fingerprint_id)
    )
    this_probe = _probe_id(revision_id)
    earlier = (
        select(t.pin.c.id)
        .join(t.probe_revision, t.probe_revision.c.id == t.pin.c.revision_id)
        .where(
            t.pin.c.target_id == target_id,
            t.pin.c.retired_at_us.is_(None),
            same_identity,
            t.probe_revision.c.probe_id == this_probe,
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
    """File pins that were taken before any identity of the target was known under the first one
    that was read after them; where a newer pin of the probe holds there, the old one is retired.
    Whether any was filed.
    """
    holding = (t.pin.c.target_id == target_id, t.pin.c.retired_at_us.is_(None))
    known = t.fingerprint.c.target_id == target_id
    filed = False
    for row in connection.execute(
        select(t.pin)
        .where(*holding, t.pin.c.fingerprint_id.is_(None))
        .order_by(t.pin.c.created_at_us)
    ).all():
        later = select(t.fingerprint.c.id).where(
            known, t.fingerprint.c.first_seen_us >= row.created_at_us
        )
        first = connection.execute(
            later.order_by(t.fingerprint.c.first_seen_us, t.fingerprint.c.id).limit(1)
        ).scalar()
        if first is None:
            continue
        of_probe = select(t.probe_revision.c.id).where(
            t.probe_revision.c.probe_id == _probe_id(row.revision_id)
        )
        newer = (
            t.pin.c.fingerprint_id == first,
            t.pin.c.revision_id.in_(of_probe),
            t.pin.c.created_at_us >= row.created_at_us,
        )
        replaced = (
            connection.execute(select(t.pin.c.id).where(*holding, *newer)).first() is not None
        )
        values = {"fingerprint_id": first, "retired_at_us": to_us(now) if replaced else None}
        connection.execute(update(t.pin).where(t.pin.c.id == row.id).values(**values))
        filed = True
    return filed


def _probe_id(revision_id: int) -> ScalarSelect[Any]:
    return (
        select(t.probe_revision.c.probe_id)
        .where(t.probe_revision.c.id == revision_id)
        .scalar_subquery()
    )


def retire(connection: Connection, pin_id: int, now: datetime) -> bool:
    """End a pin; False when there is none of that number that still holds."""
    done = connection.execute(
        update(t.pin)
        .where(t.pin.c.id == pin_id, t.pin.c.retired_at_us.is_(None))
        .values(retired_at_us=to_us(now))
    )
    return done.rowcount == 1


def find(connection: Connection, target: str | None = None, retired: bool = False) -> list[Pin]:
    """Pins, the newest first; without `retired` only those that hold."""
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
    """One pin, retired or not."""
    return next((pin for pin in find(connection, retired=True) if pin.id == pin_id), None)


def stamp(connection: Connection) -> tuple[int, int]:
    """Moves whenever a pin is added or retired: newest id and number of those that hold."""
    newest = connection.execute(select(func.max(t.pin.c.id))).scalar()
    holding = connection.execute(
        select(func.count()).select_from(t.pin).where(t.pin.c.retired_at_us.is_(None))
    ).scalar()
    return int(newest or 0), int(holding or 0)


def _outputs(connection: Connection, pin_id: int) -> tuple[PinnedOutput, ...]:
    query = (
        select(t.pin_output, t.output.c.text)
        .join(t.output, t.output.c.id == t.pin_output.c.output_id)
        .where(t.pin_output.c.pin_id == pin_id)
        .order_by(t.pin_output.c.count.desc(), t.pin_output.c.id)
    )
    return tuple(
        PinnedOutput(
            r.text,
            tuple(r.tokens),
            tuple(r.token_ids),
            tuple(r.logprobs),
            r.finish_reason,
            r._mapping["count"],
            tuple(r.tops),
        )
        for r in connection.execute(query)
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
    """What a person said of a sample."""

    sample_id: int
    at: datetime
    author: str
    verdict: str
    minutes: float | None
    note: str | None


def add_review(connection: Connection, review: Review) -> None:
    """Keep it beside the sample: corrections and review time stand with generation time."""
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
    """What people said of a sample, in order."""
    rows = connection.execute(
        select(t.review).where(t.review.c.sample_id == sample_id).order_by(t.review.c.id)
    )
    return [_review(row) for row in rows]


def _review(row: Row[Any]) -> Review:
    return Review(row.sample_id, from_us(row.at_us), row.author, row.verdict, row.minutes, row.note)


def expectations(connection: Connection) -> dict[str, list[Expectation]]:
    """The conditions of each probe in its newest text."""
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
    """What people said of samples that were taken since a moment, in order."""
    query = (
        select(t.review)
        .join(t.sample, t.sample.c.id == t.review.c.sample_id)
        .order_by(t.review.c.id)
    )
    if since is not None:
        query = query.where(t.sample.c.started_at_us >= to_us(since))
    return [_review(row) for row in connection.execute(query)]


def retry_of(connection: Connection, sample_id: int) -> int | None:
    """The sample whose near tie this one decides; None for a run of its own."""
    return connection.execute(
        select(t.sample.c.retry_of).where(t.sample.c.id == sample_id)
    ).scalar()
