"""The view `samples`: the documented face of the history for people who bring their own SQL."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

from histories import NOON, History, a_probe, a_sample

from monitor.model import SAMPLE_FIELDS
from monitor.show.records import sample_record
from monitor.store import fingerprints, queries, record
from monitor.store.queries import SampleFilter


def test_it_has_exactly_the_documented_fields_in_their_order(history: History) -> None:
    with sqlite3.connect(history.path) as plain:
        columns = [column[0] for column in plain.execute("SELECT * FROM samples").description]
    assert columns == list(SAMPLE_FIELDS)


def test_times_are_iso_in_utc_with_all_six_digits(history: History) -> None:
    history.sample(started_at=NOON)
    history.sample(started_at=NOON + timedelta(microseconds=7))
    assert history.rows("SELECT started_at FROM samples") == [
        {"started_at": "2026-03-01T12:00:00.000000Z"},
        {"started_at": "2026-03-01T12:00:00.000007Z"},
    ]


def test_it_says_the_same_as_json_does(history: History) -> None:
    target_id = history.target()

    def work(c: object) -> None:
        revision_id = record.ensure_revision(c, a_probe(), NOON)  # type: ignore[arg-type]
        start_id = record.start_process(c, target_id, NOON - timedelta(hours=1), NOON, "metrics")  # type: ignore[arg-type]
        row_id = fingerprints.save(c, target_id, "abc", {}, NOON)  # type: ignore[arg-type]
        one = a_sample(waiting=0.0, stale=None, cached_tokens=3, output='Yes,\n"no"')
        ids = {
            "target_id": target_id,
            "revision_id": revision_id,
            "process_start_id": start_id,
            "fingerprint_id": row_id,
        }
        record.insert_sample(c, one, detail="never shown here", **ids)  # type: ignore[arg-type]

    history.do(work)
    [sample] = history.do(lambda c: queries.samples(c, SampleFilter()))
    assert history.rows("SELECT * FROM samples") == [sample_record(sample)]


def test_a_sample_without_a_known_process_start_or_output_is_there_with_nulls(
    history: History,
) -> None:
    history.sample(output=None)
    assert history.rows("SELECT process_start, output, fingerprint FROM samples") == [
        {"process_start": None, "output": None, "fingerprint": None}
    ]


def test_a_start_that_the_server_does_not_tell_shows_when_it_was_noticed(history: History) -> None:
    target_id = history.target()

    def work(c: object) -> None:
        revision_id = record.ensure_revision(c, a_probe(), NOON)  # type: ignore[arg-type]
        start_id = record.start_process(c, target_id, None, NOON, "after_outage")  # type: ignore[arg-type]
        ids = {
            "target_id": target_id,
            "revision_id": revision_id,
            "process_start_id": start_id,
            "fingerprint_id": None,
        }
        record.insert_sample(c, a_sample(), detail=None, **ids)  # type: ignore[arg-type]

    history.do(work)
    assert history.rows("SELECT process_start FROM samples") == [
        {"process_start": "2026-03-01T12:00:00.000000Z"}
    ]
