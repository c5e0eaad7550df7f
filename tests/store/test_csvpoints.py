"""Samples and readings as CSV: any subset of the columns will do, and what is wrong is told with its line and column."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from histories import NOON, a_sample

from monitor.model import CanaryPoint, Phase, Verdict
from monitor.show.records import csv_text, sample_record
from monitor.store import csvtable
from monitor.store.csvpoints import ReadingCsv, SampleCsv
from monitor.store.csvtable import CsvError
from monitor.store.times import to_us

FIRST = "2026-03-01T12:00:00Z"


def written(folder: Path, *lines: str, name: str = "past.csv") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def points(path: Path) -> list[CanaryPoint]:
    """All samples of a file with one target."""
    return [point for chunk in SampleCsv(path).chunks() for found in chunk.values() for point in found]


def refused(path: Path) -> Sequence[str]:
    """The problems that a file is refused with."""
    with pytest.raises(CsvError) as told:
        points(path)
    assert told.value.exit_code == 2
    return [problem.removeprefix(str(path)) for problem in told.value.problems]


def notes(path: Path) -> list[str]:
    """What is said of a file that can be used."""
    samples = SampleCsv(path)
    for _ in samples.chunks():
        pass
    return samples.notes.sentences("past.csv")


def test_what_history_writes_is_read_back_field_by_field(tmp_path: Path) -> None:
    sample = a_sample(
        id=1, phase=Phase.IDLE, verdict=Verdict.FAIL, stale=True, process_start=NOON - timedelta(hours=1), decode_tok_s=81.25, pin=3,
        fingerprint="abc", running=2.0, gpu_uuid="GPU-1", gpu_temp_c=61.0, sm_clock_mhz=1980.0, output='two\nlines, and a "quote"',
    )  # fmt: skip
    path = tmp_path / "past.csv"
    path.write_text(csv_text([sample_record(sample)]), encoding="utf-8")
    [point] = points(path)
    assert (point.at_us, point.known_us, point.process_start_us) == (to_us(NOON), to_us(NOON) + 90_000, to_us(NOON) - 3_600_000_000)
    assert (point.probe, point.traffic_class, point.phase, point.outcome, point.verdict) == ("sky", "chat", "idle", "ok", "fail")
    assert (point.decode_tok_s, point.pin, point.stale, point.fingerprint, point.running) == (81.25, 3, True, "abc", 2.0)
    assert (point.gpu_uuid, point.gpu_temp_c, point.sm_clock_mhz) == ("GPU-1", 61.0, 1980.0)
    assert (point.waiting, point.power_w, point.logprob_shift) == (None, None, None)


def test_the_time_alone_is_enough_and_all_else_is_unknown(tmp_path: Path) -> None:
    [point] = points(written(tmp_path, "started_at", FIRST))
    assert point == CanaryPoint(to_us(NOON), to_us(NOON))


@pytest.mark.parametrize(
    "cell", ["2026-03-01T12:00:00Z", "2026-03-01 12:00:00", "2026-03-01T13:00:00+01:00", "2026-03-01T12:00:00.000000Z"]
)
def test_times_are_iso_with_or_without_a_zone_and_then_utc(cell: str, tmp_path: Path) -> None:
    [point] = points(written(tmp_path, "started_at,ttft_ms", f"{cell},40"))
    assert point.at_us == to_us(NOON)


def test_several_targets_are_kept_apart(tmp_path: Path) -> None:
    path = written(tmp_path, "target,started_at", f"a,{FIRST}", f"b,{FIRST}", "a,2026-03-01T12:01:00Z")
    [chunk] = SampleCsv(path).chunks()
    assert {name: len(found) for name, found in chunk.items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        pytest.param([], ": is empty; its first line names the columns", id="empty"),
        pytest.param(["ttft_ms,probe", "40,sky"], ":1: has no column started_at", id="no time"),
        pytest.param(["started_at;ttft_ms"], ":1: is not separated by commas", id="semicolons"),
        pytest.param(["started_at,probe,probe"], ":1: the column probe stands there twice", id="a column twice"),
        pytest.param(["started_at,probe", FIRST], ":2: has 1 cells where the first line names 2 columns", id="ragged"),
        pytest.param(["started_at,probe", ",sky"], ":2: column started_at: is empty", id="an empty time"),
        pytest.param(["started_at", "1772366400"], ":2: column started_at: is '1772366400', which is no ISO 8601 time", id="unix time"),
        pytest.param(["started_at", FIRST, "2026-03-01T11:59:00Z"], ":3: column started_at: is earlier than", id="unsorted"),
        pytest.param(["started_at,probe", f"{FIRST},a", f"{FIRST},b", f"{FIRST},a"], ":4: column started_at: repeats", id="duplicate"),
        pytest.param(["started_at,ttft_ms", f"{FIRST},fast"], ":2: column ttft_ms: is 'fast', which is no number", id="no number"),
        pytest.param(["started_at,outcome", f"{FIRST},fine"], ":2: column outcome: is 'fine'; it is one of ok, ", id="no outcome"),
        pytest.param(["started_at,ttft_ms", f"{FIRST},-4"], ":2: column ttft_ms: is -4; it cannot be below 0", id="negative"),
        pytest.param(["started_at,sm_clock_mhz", f"{FIRST},1980000000"], ":2: column sm_clock_mhz: is 1.98e+09, which looks", id="Hz"),
        pytest.param(["started_at,power_w", f"{FIRST},420000"], "milliwatts; the column is in watts", id="milliwatts"),
        pytest.param(["started_at,kv_usage", f"{FIRST},63"], "per cent; the column is a share", id="per cent"),
        pytest.param(["started_at,vram_used_mib", f"{FIRST},85899345920"], "bytes; the column is in MiB", id="bytes"),
        pytest.param(
            ["started_at,decode_tok_s,itl_p50_ms", f"{FIRST},12.5,12.4"], ":2: column decode_tok_s: is 12.5 where", id="a rate in ms"
        ),
        pytest.param(
            ["started_at,decode_tok_s,completion_tokens,ttft_ms,e2e_ms", f"{FIRST},12.5,129,40,1640"],
            "make 80 tokens a second",
            id="a rate in ms beside the times",
        ),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_with_line_and_column(lines: list[str], told: str, tmp_path: Path) -> None:
    [problem] = refused(written(tmp_path, *lines))
    assert told in problem


def test_lines_are_those_of_the_file_although_cells_hold_line_breaks_and_lines_are_empty(tmp_path: Path) -> None:
    path = written(tmp_path, "started_at,output,ttft_ms", f'{FIRST},"one', 'two",40', "", "2026-03-01T12:01:00Z,x,slow")
    assert refused(path) == [":5: column ttft_ms: is 'slow', which is no number"]


def test_every_problem_is_told_up_to_ten(tmp_path: Path) -> None:
    path = written(tmp_path, "started_at,ttft_ms", *(f"2026-03-01T12:{n:02}:00Z,x" for n in range(15)))
    with pytest.raises(CsvError) as told:
        points(path)
    assert str(told.value).count("no number") == 10
    assert str(told.value).endswith("… and 5 more")


def test_what_is_wrong_far_down_is_told_with_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvtable, "CHUNK", 4)
    rows = [f"{(NOON + timedelta(minutes=n)).isoformat()},{'x' if n == 10 else 40}" for n in range(12)]
    assert refused(written(tmp_path, "started_at,ttft_ms", *rows)) == [":12: column ttft_ms: is 'x', which is no number"]


@pytest.mark.parametrize("content", [b"started_at,output\n2026-03-01T12:00:00Z,\xff\xfe\n", b"started_at\n\x00\n"])
def test_bytes_that_are_no_text_are_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_bytes(content)
    assert len(refused(path)) == 1


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "nothing.csv")[0]


def test_unknown_columns_and_cells_that_are_no_numbers_are_listed_and_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, "started_at,colour,ttft_ms", f"{FIRST},red,nan", "2026-03-01T12:01:00Z,blue,inf", "2026-03-01T12:02:00Z,,40")
    assert [p.ttft_ms for p in points(path)] == [None, None, 40.0]
    told = notes(path)
    assert "the columns colour are not known and were ignored" in told[0]
    assert "2 cells of ttft_ms are no finite number" in told[1]


def test_gaps_of_hours_a_single_row_and_a_figure_that_never_varies_are_said(tmp_path: Path) -> None:
    path = written(tmp_path, "started_at,ttft_ms", f"{FIRST},40", "2026-03-01T17:00:00Z,40", "2026-03-01T17:01:00Z,40")
    told = notes(path)
    assert any("1 gaps of over an hour, 5.0 h" in note for note in told)
    assert any("ttft_ms is 40 in every row" in note for note in told)
    assert any("holds one row" in note for note in notes(written(tmp_path, "started_at", FIRST)))


def readings(path: Path) -> list[tuple[str, object]]:
    """All readings of a file."""
    return [row for chunk in ReadingCsv(path).chunks() for row in chunk]


def test_readings_of_servers_and_cards_stand_in_one_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "kind,target,at,state,running,engine_steps,gpu_uuid,temp_c_median,temp_c_max,sm_clock_mhz_median,event_reasons,throttle_thermal_ns",
        f"server,local,{FIRST},ok,3,1200,,,,,,",
        f"gpu,,{FIRST},,,,GPU-1,61.5,64,1980,4,7000000000000000",
    )
    (server_target, server), (card_target, card) = readings(path)
    assert (server_target, card_target) == ("local", "")
    assert (server.state, server.running, server.engine_steps) == ("ok", 3.0, 1200.0)  # type: ignore[attr-defined]
    assert (card.uuid, card.temp_c, card.sm_clock_mhz) == ("GPU-1", 61.5, 1980.0)  # type: ignore[attr-defined]
    assert (card.event_reasons, card.throttle_thermal_ns) == (4, 7_000_000_000_000_000)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["kind,state", "server,ok"], "has no column at"),
        (["kind,at", f"fan,{FIRST}"], ":2: column kind: is 'fan'; it is server or gpu"),
        (["kind,at", f"server,{FIRST}", "server,2026-03-01T11:00:00Z"], ":3: column at: is earlier than in the server row before"),
        (["kind,at,gpu_uuid,power_w_median", f"gpu,{FIRST},GPU-1,420000"], ":2: column power_w_median"),
    ],
)
def test_readings_that_cannot_be_right_are_refused_too(lines: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(CsvError, match=r"past\.csv") as error:
        readings(written(tmp_path, *lines))
    assert told in str(error.value)


def test_a_year_of_samples_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvtable, "CHUNK", 10)
    rows = [f"{datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=n)},{n}" for n in range(25)]
    chunks = list(SampleCsv(written(tmp_path, "started_at,ttft_ms", *rows)).chunks())
    assert [len(chunk["csv"]) for chunk in chunks] == [10, 10, 5]
