"""`history`: samples as a table, CSV, lines of JSON or one object."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from histories import NOON, History

from monitor.cli.common import CommandError, moment
from monitor.model import SAMPLE_FIELDS, Outcome

from .conftest import Command


def test_an_empty_history_is_good_and_says_so(cli: Command, history: History) -> None:
    ran = cli("history", "--db", history.database)
    assert (ran.code, ran.out) == (0, "no samples\n")
    assert cli("history", "--db", history.database, "--json").json == {"samples": []}


def test_the_table_has_a_row_a_sample_the_newest_last_and_a_dash_for_what_is_unknown(
    cli: Command, history: History
) -> None:
    history.sample(ttft_ms=27310.0)
    history.sample(started_at=NOON + timedelta(minutes=1), ttft_ms=None, outcome=Outcome.HUNG)
    head, first, second = cli("history", "--db", history.database).out.splitlines()
    assert head.split()[:3] == ["id", "time", "target"]
    assert "27,310" in first
    assert "hung" in second
    assert "–" in second


def test_json_is_one_object_with_the_documented_fields(cli: Command, history: History) -> None:
    history.sample()
    found = cli("history", "--db", history.database, "--json").json
    assert list(found) == ["samples"]
    assert list(found["samples"][0]) == list(SAMPLE_FIELDS)
    assert found["samples"][0]["started_at"] == "2026-03-01T12:00:00.000000Z"


def test_csv_has_the_documented_columns_and_gives_the_text_back(
    cli: Command, history: History
) -> None:
    history.sample(output='Yes,\n"no"', waiting=None)
    rows = list(
        csv.DictReader(io.StringIO(cli("history", "--db", history.database, "--format", "csv").out))
    )
    assert list(rows[0]) == list(SAMPLE_FIELDS)
    assert (rows[0]["output"], rows[0]["waiting"], rows[0]["started_at"]) == (
        'Yes,\n"no"',
        "",
        "2026-03-01T12:00:00.000000Z",
    )


def test_jsonl_is_one_object_a_line(cli: Command, history: History) -> None:
    history.sample(output="two\nlines")
    history.sample()
    lines = cli("history", "--db", history.database, "--format", "jsonl").out.splitlines()
    assert [list(json.loads(line)) for line in lines] == [list(SAMPLE_FIELDS)] * 2


def test_the_newest_twenty_are_shown_unless_told_otherwise(cli: Command, history: History) -> None:
    for minute in range(25):
        history.sample(started_at=NOON + timedelta(minutes=minute), ttft_ms=float(minute))

    def shown(*words: str) -> list[float]:
        return [
            s["ttft_ms"]
            for s in cli("history", "--db", history.database, "--json", *words).json["samples"]
        ]

    assert shown() == list(range(5, 25))
    assert shown("--limit", "2") == [23, 24]
    assert shown("--limit", "0") == list(range(25))
    assert cli("history", "--db", history.database, "--limit", "99999999999999999999999").code == 2


def test_filters_narrow_it_down(cli: Command, history: History) -> None:
    history.sample(
        target="a",
        probe="p",
        traffic_class="chat",
        started_at=datetime.now(UTC) - timedelta(minutes=90),
    )
    history.sample(
        target="b",
        probe="q",
        traffic_class="batch",
        started_at=datetime.now(UTC),
        outcome=Outcome.REFUSED,
    )

    def targets(*words: str) -> list[str]:
        return [
            s["target"]
            for s in cli("history", "--db", history.database, "--json", *words).json["samples"]
        ]

    assert targets() == ["a", "b"]
    assert targets("--since", "1h") == ["b"]
    assert targets("--until", "1h") == ["a"]
    assert targets("--target", "a") == ["a"]
    assert targets("--probe", "q") == ["b"]
    assert targets("--class", "batch") == ["b"]
    assert targets("--outcome", "refused") == ["b"]


@pytest.mark.parametrize(
    "text",
    ["yesterday", "2x", "-1h", "2026-13-01", "", "99999999d", "9999999999999999999d", "0001-01-01"],
)
def test_a_time_that_is_none_is_2_and_one_sentence(
    text: str, cli: Command, history: History
) -> None:
    ran = cli("history", "--db", history.database, f"--since={text}")
    assert ran.code in ({0, 2} if text == "0001-01-01" else {2})
    assert len(ran.err.splitlines()) <= 1


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("1.5h", timedelta(minutes=90)),
    ],
)
def test_a_time_may_be_so_long_ago(text: str, ago: timedelta) -> None:
    assert moment(text, NOON) == NOON - ago


def test_a_time_may_be_iso_with_or_without_a_zone() -> None:
    assert moment("2026-03-01T12:00:00Z", NOON) == NOON
    assert moment("2026-03-01T13:00:00+01:00", NOON) == NOON
    local = moment("2026-03-01T12:00", NOON)
    assert local is not None
    assert local == datetime(2026, 3, 1, 12, 0).astimezone()


def test_no_time_is_no_limit() -> None:
    assert moment(None, NOON) is None
    with pytest.raises(CommandError):
        moment("soon", NOON)


def test_without_a_database_it_is_3_and_none_is_made(cli: Command, tmp_path: Path) -> None:
    ran = cli("history")
    assert ran.code == 3
    assert "vllm-canary run" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_configured_database_is_read(cli: Command, config: Path, history: History) -> None:
    history.sample()
    assert len(cli("history", "-c", str(config), "--json").json["samples"]) == 1
    assert (
        len(cli("history", "--json").json["samples"]) == 1
    )  # the same file, found in the present folder


def test_a_broken_configuration_is_2(cli: Command, config: Path) -> None:
    config.write_text("colour: red\n")
    ran = cli("history")
    assert ran.code == 2
    assert "config.yaml:1: colour is not a known key" in ran.err


def test_the_environment_names_the_configuration(
    cli: Command, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CANARY_CONFIG", str(tmp_path / "missing.yaml"))
    ran = cli("history")
    assert ran.code == 2
    assert "missing.yaml: no such file" in ran.err


@pytest.mark.parametrize(
    "made",
    [lambda p: p.mkdir(), lambda p: p.write_text("no database" * 100)],
    ids=["folder", "text"],
)
def test_a_database_that_cannot_be_read_is_3_and_one_sentence(
    made: object, cli: Command, tmp_path: Path
) -> None:
    made(tmp_path / "history.db")  # type: ignore[operator]
    ran = cli("history", "--db", "history.db")
    assert (ran.code, ran.out) == (3, "")
    assert len(ran.err.splitlines()) == 1


def test_a_database_of_a_newer_version_is_2(cli: Command, history: History) -> None:
    history.do(lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    ran = cli("history", "--db", history.database)
    assert ran.code == 2
    assert "upgrade vllm-canary" in ran.err


@pytest.mark.parametrize("url", ["://", "postgresql://me:s3cret@host:port/x"])
def test_a_database_address_that_is_none_is_2_and_not_shown(url: str, cli: Command) -> None:
    ran = cli("history", "--db", url)
    assert ran.code == 2
    assert "s3cret" not in ran.err


@pytest.mark.parametrize("command", ["history", "summary"])
@pytest.mark.parametrize(
    ("option", "known"), [("--probe", "sky"), ("--target", "local"), ("--class", "chat")]
)
def test_a_name_that_is_not_there_is_told_with_those_that_are(
    command: str, option: str, known: str, cli: Command, history: History
) -> None:
    history.sample(started_at=datetime.now(UTC))
    assert cli(command, "--db", history.database, option, known).code == 0
    ran = cli(command, "--db", history.database, option, "typo")
    assert ran.code == 2
    assert "'typo'" in ran.err
    assert ran.err.rstrip().endswith(known)
