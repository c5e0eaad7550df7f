"""Samples as rows: the query with every column of a sample, and a row as a Sample."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Row, Select, func, select

from monitor.model import Outcome, Phase, Sample, Verdict
from monitor.store import tables as t
from monitor.store.times import from_us, maybe_from_us

#: Columns that need no conversion.
_PLAIN = [
    f.name
    for f in fields(Sample)
    if f.name in t.sample.c and f.name not in {"id", "phase", "outcome", "verdict", "stale"}
]


def sample_select() -> Select[Any]:
    """The query of all samples; callers add conditions and an order."""
    return (
        select(
            t.sample.c.id,
            t.target.c.name.label("target"),
            t.probe.c.name.label("probe"),
            t.probe_revision.c["class"].label("traffic_class"),
            t.sample.c.started_at_us,
            t.sample.c.phase,
            t.sample.c.outcome,
            t.sample.c.verdict,
            t.sample.c.stale,
            t.fingerprint.c.digest.label("fingerprint"),
            func.coalesce(t.process_start.c.started_at_us, t.process_start.c.seen_at_us).label(
                "process_start_us"
            ),
            t.output.c.text.label("output"),
            *(t.sample.c[name] for name in _PLAIN),
        )
        .join(t.target, t.target.c.id == t.sample.c.target_id)
        .join(t.probe_revision, t.probe_revision.c.id == t.sample.c.revision_id)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .outerjoin(t.process_start, t.process_start.c.id == t.sample.c.process_start_id)
        .outerjoin(t.fingerprint, t.fingerprint.c.id == t.sample.c.fingerprint_id)
        .outerjoin(t.output, t.output.c.id == t.sample.c.output_id)
    )


def sample_of(row: Row[Any]) -> Sample:
    """A row of `sample_select` as a sample."""
    values = row._mapping
    return Sample(
        id=values["id"],
        target=values["target"],
        probe=values["probe"],
        traffic_class=values["traffic_class"],
        started_at=from_us(values["started_at_us"]),
        phase=Phase(values["phase"]),
        outcome=Outcome(values["outcome"]),
        verdict=Verdict(values["verdict"]),
        stale=None if values["stale"] is None else bool(values["stale"]),
        fingerprint=values["fingerprint"],
        process_start=maybe_from_us(values["process_start_us"]),
        output=values["output"],
        **{name: values[name] for name in _PLAIN},
    )
