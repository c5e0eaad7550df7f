"""Values as JSON and CSV: the documented names, UTC, null for what is unknown."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta, timezone

import pytest
from histories import NOON, a_sample

from monitor.model import SAMPLE_FIELDS, Cause, Change, Incident, Kind, Severity
from monitor.show.records import csv_text, incident_record, iso, plain, sample_record


def test_a_sample_has_the_documented_fields_in_their_order() -> None:
    assert list(sample_record(a_sample())) == list(SAMPLE_FIELDS)


def test_unknown_is_null_and_words_are_their_values() -> None:
    record = sample_record(a_sample(ttft_ms=None))
    assert (record["ttft_ms"], record["class"], record["phase"], record["outcome"]) == (
        None,
        "chat",
        "warm",
        "ok",
    )
    json.dumps(record)


def test_a_time_is_utc_with_microseconds_whatever_zone_it_came_in() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert iso(elsewhere) == "2026-03-01T12:00:00.000000Z"
    assert plain(elsewhere) == iso(elsewhere)
    assert iso(None) is None


@pytest.mark.parametrize("text", ["a,b", 'say "x"', "two\nlines", "ü", " "])
def test_csv_gives_back_what_was_put_in(text: str) -> None:
    [row] = csv.DictReader(
        io.StringIO(csv_text([sample_record(a_sample(output=text, ttft_ms=None))]))
    )
    assert (row["output"], row["ttft_ms"], row["class"]) == (text, "", "chat")
    assert list(row) == list(SAMPLE_FIELDS)


def test_csv_of_nothing_still_names_its_columns() -> None:
    assert csv_text([]) == ",".join(SAMPLE_FIELDS) + "\n"


def test_an_incident_is_one_object_of_plain_values() -> None:
    incident = Incident(
        id=7,
        kind=Kind.CONFIG_CHANGE,
        target="local",
        subject="max_model_len",
        severity=Severity.WARNING,
        summary="changed",
        opened_at=NOON,
        cause=Cause.CONFIG_CHANGE,
        changes=(Change("max_model_len", 4096, 2048),),
        evidence={"n": 1},
    )
    record = json.loads(json.dumps(incident_record(incident)))
    assert record == {
        "id": 7,
        "kind": "config_change",
        "target": "local",
        "subject": "max_model_len",
        "severity": "warning",
        "summary": "changed",
        "opened_at": "2026-03-01T12:00:00.000000Z",
        "cause": "config_change",
        "acknowledged_at": None,
        "closed_at": None,
        "close_reason": None,
        "changes": [{"field": "max_model_len", "before": 4096, "after": 2048}],
        "evidence": {"n": 1},
    }
