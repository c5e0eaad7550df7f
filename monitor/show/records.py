"""Values as JSON objects and CSV rows: public names, times in ISO 8601 UTC, unknown as null."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from monitor.model import SAMPLE_FIELDS, Incident, Pin, Sample


def iso(at: datetime | None) -> str | None:
    """Returns ISO 8601 in UTC with microseconds and a Z; unknown stays null."""
    if at is None:
        return None
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def plain(value: Any) -> Any:
    """Returns a value as a JSON value."""
    if isinstance(value, datetime):
        return iso(value)
    return value.value if isinstance(value, Enum) else value


def sample_record(sample: Sample) -> dict[str, Any]:
    """Returns all fields of a sample, in the documented order."""
    return {
        name: plain(getattr(sample, "traffic_class" if name == "class" else name))
        for name in SAMPLE_FIELDS
    }


def incident_record(incident: Incident) -> dict[str, Any]:
    """Returns all fields of an incident."""
    values = {k: plain(v) for k, v in asdict(incident).items()}
    return values | {
        "changes": [asdict(change) for change in incident.changes],
        "evidence": dict(incident.evidence),
    }


def pin_record(pin: Pin) -> dict[str, Any]:
    """Returns all fields of a pin."""
    values = {k: plain(v) for k, v in asdict(pin).items()}
    return values | {"outputs": [asdict(output) for output in pin.outputs]}


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    """Returns CSV with the fields of a sample as columns; null is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=SAMPLE_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()
