"""Incidents on a terminal: the list, and one with its evidence and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from monitor.model import Incident
from monitor.show.changes import differences, value_text
from monitor.show.evidence import LONGEST_VALUE, evidence_rows
from monitor.show.findings import GpuNames, Texts, render
from monitor.show.terminal import STYLES, console, local_time, table
from monitor.text import printable


def state(incident: Incident) -> str:
    """Returns open, acknowledged or closed."""
    if incident.closed_at is not None:
        return "closed"
    return "acknowledged" if incident.acknowledged_at is not None else "open"


def print_incidents(found: Sequence[Incident], names: GpuNames) -> None:
    """Prints a list of incidents, one line each."""
    rows = [
        [
            i.id,
            state(i),
            i.severity.value,
            i.kind.value,
            i.target,
            local_time(i.opened_at),
            _texts(i, names).headline,
        ]
        for i in found
    ]
    headings = ["id", "state", "severity", "kind", "target", "opened", "detail"]
    console().print(table(headings, rows) if found else "no incidents")


def print_incident(
    incident: Incident, events: Sequence[Mapping[str, Any]], names: GpuNames
) -> None:
    """Prints one incident: the alert, its fields, changes, evidence and history."""
    out, texts = console(), _texts(incident, names)
    out.print(printable(texts.headline), style=STYLES.get(incident.severity.value, ""))
    out.print(printable(incident.summary))
    for line in ["", *texts.details] if texts.details else []:
        out.print(printable(line))
    parts = (
        (["field", "value"], _fields(incident)),
        (
            ["change", "before", "now"],
            [
                [c.field, value_text(c.before, LONGEST_VALUE), value_text(c.after, LONGEST_VALUE)]
                for c in differences(incident.changes)
            ],
        ),
        (
            ["evidence", "before", "now"],
            [] if texts.details else evidence_rows(incident.evidence),
        ),
        (
            ["time", "event", "text"],
            [[local_time(e["at"]), e["event"], e["text"]] for e in events],
        ),
    )
    for headings, rows in parts:
        if rows:
            out.print()
            out.print(table(headings, rows))


def _fields(incident: Incident) -> list[Sequence[object]]:
    times: list[tuple[str, datetime | None]] = [
        ("opened", incident.opened_at),
        ("acknowledged", incident.acknowledged_at),
        ("closed", incident.closed_at),
    ]
    return [
        ("id", incident.id),
        ("state", state(incident)),
        ("severity", incident.severity.value),
        ("kind", incident.kind.value),
        ("target", incident.target),
        ("subject", incident.subject),
        ("cause", None if incident.cause is None else incident.cause.value),
        *((name, local_time(at)) for name, at in times if at is not None),
        *([] if incident.close_reason is None else [("close reason", incident.close_reason)]),
    ]


def _texts(incident: Incident, names: GpuNames) -> Texts:
    """Returns the texts of the finding that an incident holds now."""
    return render(incident.as_finding(incident.summary), names)
