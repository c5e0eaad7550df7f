"""The history as points: what is new, and a long stretch in pages."""

from __future__ import annotations

from datetime import timedelta
from heapq import merge

import pytest
from histories import NOON, History, a_sample
from sqlalchemy import update

from monitor.model import FingerprintField, Outcome, Phase, ServerPage, Verdict, known_us
from monitor.store import detectors, fingerprints, points, record, tables
from monitor.store.detectors import StoredDetector
from monitor.store.points import Cursor, HistoryRange
from monitor.store.times import to_us

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def look(history: History, uuid: str, second: int, temp_c: float) -> None:
    """One stored window of a GPU."""
    values = {
        "count": 5,
        "temp_c_min": temp_c - 9,
        "temp_c_median": temp_c,
        "temp_c_max": temp_c + 9,
        "throttle_thermal_ns": 7,
    }
    history.do(lambda c: record.insert_gpu_reading(c, uuid, NOON + second * SECOND, values))


def page(history: History, target_id: int, second: int) -> None:
    """One stored reading of the metrics page."""
    reading = ServerPage(
        at=NOON + second * SECOND, state="ok", running=2.0, engine_steps=100.0 + second
    )
    history.do(lambda c: record.insert_server_reading(c, target_id, reading, None))


def test_a_sample_becomes_a_point_with_every_field_and_unknown_stays_unknown(
    history: History,
) -> None:
    row_id = history.sample(
        started_at=NOON,
        e2e_ms=90.5,
        decode_tok_s=81.5,
        phase=Phase.IDLE,
        verdict=Verdict.FAIL,
        stale=True,
        pin=3,
        gpu_temp_c=61.0,
        first_divergence=4,
        running=1.0,
        traffic_class="batch",
    )
    [(found_id, point)] = history.do(lambda c: points.canaries_after(c, 1, 0))
    assert (found_id, point.at_us, point.known_us) == (row_id, to_us(NOON), to_us(NOON) + 90_500)
    assert (point.probe, point.traffic_class, point.phase, point.outcome, point.verdict) == (
        "sky",
        "batch",
        "idle",
        "ok",
        "fail",
    )
    assert (
        point.decode_tok_s,
        point.stale,
        point.pin,
        point.gpu_temp_c,
        point.first_divergence,
    ) == (81.5, True, 3, 61.0, 4)
    assert point.running == 1.0
    assert (point.sm_clock_mhz, point.fingerprint, point.process_start_us, point.waiting) == (
        None,
        None,
        None,
        None,
    )


def test_a_canary_that_failed_at_once_was_known_at_once(history: History) -> None:
    history.sample(started_at=NOON, outcome=Outcome.REFUSED, ttft_ms=None, e2e_ms=None)
    [(_, point)] = history.do(lambda c: points.canaries_after(c, 1, 0))
    assert (point.known_us, point.stale) == (point.at_us, None)


def test_the_configuration_of_a_point_stays_the_same_when_more_of_it_becomes_known(
    history: History,
) -> None:
    fields = {"vllm_version": FingerprintField("vllm_version", "root", "0.32")}
    sample_id = history.sample()
    row_id = history.do(lambda c: fingerprints.save(c, 1, "013fabc", fields, NOON))
    history.do(
        lambda c: c.execute(
            update(tables.sample)
            .where(tables.sample.c.id == sample_id)
            .values(fingerprint_id=row_id)
        )
    )
    [(_, before)] = history.do(lambda c: points.canaries_after(c, 1, 0))
    more = fields | {"driver_version": FingerprintField("driver_version", "root", "580.82")}
    history.do(lambda c: fingerprints.save(c, 1, "b6ef123", more, NOON + MINUTE, row_id=row_id))
    [(_, after)] = history.do(lambda c: points.canaries_after(c, 1, 0))
    assert before.fingerprint is not None
    assert before == after


def test_what_is_dated_later_than_it_can_be_is_left_out(history: History) -> None:
    history.samples([a_sample(started_at=NOON + n * MINUTE) for n in (0, 600, 2)])
    found = history.do(lambda c: points.canaries_after(c, 1, 0, until_us=to_us(NOON + 10 * MINUTE)))
    assert [point.at_us for _, point in found] == [to_us(NOON), to_us(NOON + 2 * MINUTE)]


def test_only_what_is_newer_and_of_this_target_or_gpu_is_given(history: History) -> None:
    ids = history.samples([a_sample(started_at=NOON + n * MINUTE) for n in range(4)])
    history.sample(target="other")
    assert [row for row, _ in history.do(lambda c: points.canaries_after(c, 1, ids[1]))] == ids[2:]
    assert len(history.do(lambda c: points.canaries_after(c, 1, 0, 3))) == 3
    page(history, 1, 5)
    look(history, "GPU-1", 5, 60.0)
    look(history, "GPU-2", 5, 70.0)
    [(_, server)] = history.do(lambda c: points.servers_after(c, 1, 0))
    assert (server.at_us, server.state, server.running, server.engine_steps) == (
        to_us(NOON + 5 * SECOND),
        "ok",
        2.0,
        105.0,
    )
    [(_, gpu)] = history.do(lambda c: points.gpus_after(c, ["GPU-2"], 0))
    assert (gpu.uuid, gpu.temp_c, gpu.throttle_thermal_ns, gpu.margin_c) == (
        "GPU-2",
        70.0,
        7,
        None,
    )


def test_a_long_stretch_comes_in_pages_and_whole(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.samples([a_sample(started_at=NOON + n * MINUTE) for n in range(10)])
    for n in range(10):
        page(history, 1, 60 * n + 10)
        look(history, "GPU-1", 60 * n + 20, 60.0)
    real = points.canaries_after
    monkeypatch.setattr(
        points,
        "canaries_after",
        lambda c, target_id, after, **more: real(c, target_id, after, 3, **more),
    )
    with history.engine.connect() as connection:
        begin = points.cursor_at(connection, 1, ["GPU-1"], NOON + 2 * MINUTE)
        end = points.cursor_at(connection, 1, ["GPU-1"], None)
        stretch = HistoryRange(connection, 1, ["GPU-1"], begin, end)
        found = list(merge(stretch.canaries(), stretch.servers(), stretch.gpus(), key=known_us))
    assert len(found) == 3 * 8
    assert begin == Cursor(2, 2, 2)
    assert end == Cursor(10, 10, 10)
    assert [known_us(point) for point in found] == sorted(known_us(point) for point in found)


def test_the_gpus_of_a_target_are_those_the_daemon_noted_and_those_its_samples_name(
    history: History,
) -> None:
    history.target()
    assert history.do(lambda c: points.gpus_of(c, 1)) == []
    history.do(lambda c: detectors.note_gpus(c, 1, ["GPU-2"]))
    history.do(lambda c: detectors.note_gpus(c, 1, ["GPU-3"]))
    history.sample(gpu_uuid="GPU-1")
    assert history.do(lambda c: points.gpus_of(c, 1)) == ["GPU-1", "GPU-2", "GPU-3"]


def test_what_was_learnt_is_kept_in_the_place_of_what_was_there(history: History) -> None:
    history.target()
    assert history.do(lambda c: detectors.load(c, 1)) is None
    assert history.do(lambda c: detectors.stamp(c, 1)) is None
    for at_us in (5, 6):
        armed = ({"what": "decode", "armed": False, "detail": f"{at_us} h"},)
        kept = StoredDetector(
            at_us, "abc", '{"x": NaN, "y": 0.30000000000000004}', armed, Cursor(1, 2, 3), 4, None
        )
        history.do(lambda c, kept=kept: detectors.save(c, 1, kept))  # type: ignore[misc]
    assert history.do(lambda c: detectors.load(c, 1)) == kept
    assert history.do(lambda c: detectors.stamp(c, 1)) == 6
    assert history.do(detectors.summaries) == {
        1: detectors.DetectorSummary(({"what": "decode", "armed": False, "detail": "6 h"},), None)
    }
