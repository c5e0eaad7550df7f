"""`calibrate`: what is normal, learnt anew from the history, and from how much."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from histories import History, a_sample
from sqlalchemy import insert

from monitor.daemon.driftstate import codec
from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.model import Sample
from monitor.store import detectors, tables
from monitor.store.times import to_us

from .conftest import Command

HOURS = 20


@pytest.fixture(scope="module")
def measured() -> list[Sample]:
    """A day of canaries on a server that others use, slower beside more of them."""
    chance, begin, found = random.Random(5), datetime.now(UTC) - timedelta(hours=HOURS), []
    for minute in range(HOURS * 60 // 2):
        others = float(chance.choice([0, 0, 0, 4]))
        rate = 90.0 / (1 + 0.05 * others) * chance.gauss(1, 0.004)
        found.append(
            a_sample(
                probe="decode",
                started_at=begin + timedelta(minutes=2 * minute),
                decode_tok_s=rate,
                ttft_ms=40 * chance.gauss(1, 0.05),
                e2e_ms=40 + 127_000 / rate,
                completion_tokens=128,
                prompt_tokens=31,
                running=others,
                waiting=0.0,
                gpu_uuid="GPU-1",
                sm_clock_mhz=1980.0,
            )
        )
    return found


@pytest.fixture
def day(measured: list[Sample], history: History) -> Iterator[History]:
    """That day as a history, with the looks at the GPU."""
    history.target("local", measured[0].started_at, {"decode": 120.0})
    history.samples(measured)
    values = {
        "count": 12,
        "temp_c_median": 61.0,
        "sm_clock_mhz_median": 1980.0,
        "util_median": 0.9,
        "power_w_median": 400.0,
    }

    begin_us = to_us(measured[0].started_at)
    looks = [
        {"gpu_uuid": "GPU-1", "at_us": begin_us + minute * 60_000_000, **values}
        for minute in range(HOURS * 60)
    ]
    history.do(lambda c: c.execute(insert(tables.gpu_reading), looks))
    yield history


def test_what_was_learnt_is_told_with_from_how_much_and_kept(day: History, cli: Command) -> None:
    ran = cli("calibrate", "--db", day.database, "--json")
    assert ran.code == 0
    [target] = ran.json["targets"]
    decode = target["load"]["decode"]
    assert decode["usual"]["decode"] == pytest.approx(90.0, rel=0.02)
    busy = max(decode["loads"], key=lambda load: load["others"])
    assert busy["others"] == pytest.approx(4.0, abs=0.3)
    assert busy["change_pct"] == pytest.approx(-16.7, abs=2.5)
    assert busy["canaries"] > 50
    assert target["clock"]["decode"]["samples"] == 0  # its clock never moved: what others measured
    [gpu] = target["gpus"]
    assert (gpu["uuid"], gpu["clock_minutes"] > 60) == ("GPU-1", True)
    kept = day.do(lambda c: detectors.load(c, 1))
    assert kept is not None
    assert kept.version == codec(Detector).version_under(DriftSettings())
    assert codec(Detector).load(kept.state).speed.baselines
    assert kept.cursor.sample == len(day.rows("SELECT id FROM sample"))
    assert kept.cursor.gpu_reading == HOURS * 60


def test_it_is_told_to_people_and_kept_by_nobody_in_a_dry_run(day: History, cli: Command) -> None:
    ran = cli("calibrate", "--db", day.database, "--dry-run")
    assert ran.code == 0
    for told in (
        "decode rate without other requests",
        "with 4.0 other requests",
        "1 % of SM clock",
        "GPU GPU-1",
        "(--dry-run)",
    ):
        assert told in ran.out
    assert day.rows("SELECT * FROM detector_state") == []


def test_a_short_history_says_what_is_missing(history: History, cli: Command) -> None:
    begin = datetime.now(UTC) - timedelta(minutes=30)
    history.target("local", begin)
    history.samples(
        [a_sample(started_at=begin + timedelta(minutes=n), decode_tok_s=90.0) for n in range(20)]
    )
    ran = cli("calibrate", "--db", history.database)
    assert ran.code == 0
    assert "dependence on load not known yet" in ran.out
    assert "not learned yet" in ran.out


def test_where_nothing_was_measured_there_is_nothing_to_learn_and_3(
    history: History, cli: Command, tmp_path: Path
) -> None:
    assert cli("calibrate", "--db", history.database).code == 3
    history.target("local")
    ran = cli("calibrate", "--db", history.database)
    assert (ran.code, ran.out) == (3, "local: no baseline; no sample since 14d\n")
    assert cli("calibrate", "--db", str(tmp_path / "none.db")).code == 3
    assert cli("calibrate", "--db", history.database, "--target", "typo").code == 2
