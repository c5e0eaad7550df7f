"""Samples and readings as CSV: any subset of the columns will do, and what is wrong is told with
its line and column.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from histories import NOON, a_sample

from monitor.model import CanaryPoint, Phase, Verdict
from monitor.replay.csv import table as csvtable
from monitor.replay.csv.points import ReadingCsv, SampleCsv
from monitor.replay.csv.table import CsvError
from monitor.show.records import csv_text, sample_record
from monitor.store.times import to_us

FIRST = "2026-03-01T12:00:00Z"


def written(folder: Path, *lines: str, name: str = "past.csv") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def points(path: Path) -> list[CanaryPoint]:
    """All samples of a file with one target."""
    return [
        point for chunk in SampleCsv(path).chunks() for found in chunk.values() for point in found
    ]


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
        id=1,
        phase=Phase.IDLE,
        verdict=Verdict.FAIL,
        stale=True,
        process_start=NOON - timedelta(hours=1),
        decode_tok_s=81.25,
        pin=3,
        fingerprint="abc",
        running=2.0,
        gpu_uuid="GPU-1",
        gpu_temp_c=61.0,
        sm_clock_mhz=1980.0,
        output='two\nlines, and a "quote"',
    )
    path = tmp_path / "past.csv"
    path.write_text(csv_text([sample_record(sample)]), encoding="utf-8")
    [point] = points(path)
    assert (point.at_us, point.known_us, point.process_start_us) == (
        to_us(NOON),
        to_us(NOON) + 90_000,
        to_us(NOON) - 3_600_000_000,
    )
    assert (point.probe, point.traffic_class, point.phase, point.outcome, point.verdict) == (
        "sky",
        "chat",
        "idle",
        "ok",
        "fail",
    )
    assert (point.decode_tok_s, point.pin, point.stale, point.fingerprint, point.running) == (
        81.25,
        3,
        True,
        "abc",
        2.0,
    )
    assert (point.gpu_uuid, point.gpu_temp_c, point.sm_clock_mhz) == ("GPU-1", 61.0, 1980.0)
    assert (point.waiting, point.power_w, point.logprob_shift) == (None, None, None)


def test_the_time_alone_is_enough_and_all_else_is_unknown(tmp_path: Path) -> None:
    [point] = points(written(tmp_path, "started_at", FIRST))
    assert point == CanaryPoint(to_us(NOON), to_us(NOON))


@pytest.mark.parametrize(
    "cell",
    [
        "2026-03-01T12:00:00Z",
        "2026-03-01 12:00:00",
        "2026-03-01T13:00:00+01:00",
        "2026-03-01T12:00:00.000000Z",
    ],
)
def test_times_are_iso_with_or_without_a_zone_and_then_utc(cell: str, tmp_path: Path) -> None:
    [point] = points(written(tmp_path, "started_at,ttft_ms", f"{cell},40"))
    assert point.at_us == to_us(NOON)


def test_several_targets_are_kept_apart(tmp_path: Path) -> None:
    path = written(
        tmp_path, "target,started_at", f"a,{FIRST}", f"b,{FIRST}", "a,2026-03-01T12:01:00Z"
    )
    [chunk] = SampleCsv(path).chunks()
    assert {name: len(found) for name, found in chunk.items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        pytest.param([], ": is empty; its first line names the columns", id="empty"),
        pytest.param(["ttft_ms,probe", "40,sky"], ":1: has no column started_at", id="no time"),
        pytest.param(["started_at;ttft_ms"], ":1: is not separated by commas", id="semicolons"),
        pytest.param(
            ["started_at,probe,probe"],
            ":1: the column probe is a duplicate",
            id="a column twice",
        ),
        pytest.param(
            ["started_at,probe", FIRST],
            ":2: has 1 cells where the first line names 2 columns",
            id="ragged",
        ),
        pytest.param(
            ["started_at,probe", ",sky"], ":2: column started_at: is empty", id="an empty time"
        ),
        pytest.param(
            ["started_at", "1772366400"],
            ":2: column started_at: is '1772366400', which is not an ISO 8601 time",
            id="unix time",
        ),
        pytest.param(
            ["started_at", FIRST, "2026-03-01T11:59:00Z"],
            ":3: column started_at: is earlier than",
            id="unsorted",
        ),
        pytest.param(
            ["started_at,probe", f"{FIRST},a", f"{FIRST},b", f"{FIRST},a"],
            ":4: column started_at: repeats",
            id="duplicate",
        ),
        pytest.param(
            ["started_at,ttft_ms", f"{FIRST},fast"],
            ":2: column ttft_ms: is 'fast', which is not a number",
            id="no number",
        ),
        pytest.param(
            ["started_at,outcome", f"{FIRST},fine"],
            ":2: column outcome: is 'fine'; it must be one of ok, ",
            id="no outcome",
        ),
        pytest.param(
            ["started_at,ttft_ms", f"{FIRST},-4"],
            ":2: column ttft_ms: is -4; it cannot be below 0",
            id="negative",
        ),
        pytest.param(
            ["started_at,sm_clock_mhz", f"{FIRST},1980000000"],
            ":2: column sm_clock_mhz: is 1.98e+09, which looks",
            id="Hz",
        ),
        pytest.param(
            ["started_at,power_w", f"{FIRST},420000"],
            "milliwatts; the column is in watts",
            id="milliwatts",
        ),
        pytest.param(
            ["started_at,kv_usage", f"{FIRST},63"], "per cent; the column is a share", id="per cent"
        ),
        pytest.param(
            ["started_at,vram_used_mib", f"{FIRST},85899345920"],
            "bytes; the column is in MiB",
            id="bytes",
        ),
        pytest.param(
            ["started_at,decode_tok_s,itl_p50_ms", f"{FIRST},12.5,12.4"],
            ":2: column decode_tok_s: is 12.5 where",
            id="a rate in ms",
        ),
        pytest.param(
            [
                "started_at,decode_tok_s,completion_tokens,ttft_ms,e2e_ms",
                f"{FIRST},12.5,129,40,1640",
            ],
            "make 80 tokens per second",
            id="a rate in ms beside the times",
        ),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_with_line_and_column(
    lines: list[str], told: str, tmp_path: Path
) -> None:
    [problem] = refused(written(tmp_path, *lines))
    assert told in problem


def test_lines_are_those_of_the_file_although_cells_hold_line_breaks_and_lines_are_empty(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        "started_at,output,ttft_ms",
        f'{FIRST},"one',
        'two",40',
        "",
        "2026-03-01T12:01:00Z,x,slow",
    )
    assert refused(path) == [":5: column ttft_ms: is 'slow', which is not a number"]


def test_every_problem_is_told_up_to_ten(tmp_path: Path) -> None:
    path = written(
        tmp_path, "started_at,ttft_ms", *(f"2026-03-01T12:{n:02}:00Z,x" for n in range(15))
    )
    with pytest.raises(CsvError) as told:
        points(path)
    assert str(told.value).count("not a number") == 10
    assert str(told.value).endswith("… and 5 more")


def test_what_is_wrong_far_down_is_told_with_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csvtable, "CHUNK", 4)
    rows = [
        f"{(NOON + timedelta(minutes=n)).isoformat()},{'x' if n == 10 else 40}" for n in range(12)
    ]
    assert refused(written(tmp_path, "started_at,ttft_ms", *rows)) == [
        ":12: column ttft_ms: is 'x', which is not a number"
    ]


@pytest.mark.parametrize(
    "content", [b"started_at,output\n2026-03-01T12:00:00Z,\xff\xfe\n", b"started_at\n\x00\n"]
)
def test_bytes_that_are_no_text_are_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_bytes(content)
    assert len(refused(path)) == 1


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "nothing.csv")[0]


def test_unknown_columns_and_cells_that_are_no_numbers_are_listed_and_ignored(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        "started_at,colour,ttft_ms",
        f"{FIRST},red,nan",
        "2026-03-01T12:01:00Z,blue,inf",
        "2026-03-01T12:02:00Z,,40",
    )
    assert [p.ttft_ms for p in points(path)] == [None, None, 40.0]
    told = notes(path)
    assert "the columns colour are not known and were ignored" in told[0]
    assert "2 cells of ttft_ms are not finite numbers" in told[1]


def test_gaps_of_hours_a_single_row_and_a_figure_that_never_varies_are_said(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "started_at,ttft_ms",
        f"{FIRST},40",
        "2026-03-01T17:00:00Z,40",
        "2026-03-01T17:01:00Z,40",
    )
    told = notes(path)
    assert any("1 gaps of over an hour, 5.0 h" in note for note in told)
    assert any("ttft_ms is 40 in every row" in note for note in told)
    assert any("has one row" in note for note in notes(written(tmp_path, "started_at", FIRST)))


def readings(path: Path) -> list[tuple[str, object]]:
    """All readings of a file."""
    return [row for chunk in ReadingCsv(path).chunks() for row in chunk]


def test_readings_of_servers_and_gpus_stand_in_one_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "kind,target,at,state,running,engine_steps,gpu_uuid,temp_c_median,temp_c_max,sm_clock_mhz_median,event_reasons,throttle_thermal_ns",
        f"server,local,{FIRST},ok,3,1200,,,,,,",
        f"gpu,,{FIRST},,,,GPU-1,61.5,64,1980,4,7000000000000000",
    )
    (server_target, server), (gpu_target, gpu) = readings(path)
    assert (server_target, gpu_target) == ("local", "")
    assert (server.state, server.running, server.engine_steps) == ("ok", 3.0, 1200.0)  # type: ignore[attr-defined]
    assert (gpu.uuid, gpu.temp_c, gpu.sm_clock_mhz) == ("GPU-1", 61.5, 1980.0)  # type: ignore[attr-defined]
    assert (gpu.event_reasons, gpu.throttle_thermal_ns) == (4, 7_000_000_000_000_000)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["kind,state", "server,ok"], "has no column at"),
        (["kind,at", f"fan,{FIRST}"], ":2: column kind: is 'fan'; it must be server or gpu"),
        (
            ["kind,at", f"server,{FIRST}", "server,2026-03-01T11:00:00Z"],
            ":3: column at: is earlier than in the server row before",
        ),
        (
            ["kind,at,gpu_uuid,power_w_median", f"gpu,{FIRST},GPU-1,420000"],
            ":2: column power_w_median",
        ),
    ],
)
def test_readings_that_cannot_be_right_are_refused_too(
    lines: list[str], told: str, tmp_path: Path
) -> None:
    with pytest.raises(CsvError, match=r"past\.csv") as error:
        readings(written(tmp_path, *lines))
    assert told in str(error.value)


def minutes(header: str, *rows: str, every_s: float = 60.0) -> list[str]:
    """Lines of a file with a sample every minute."""
    return [
        f"started_at,{header}",
        *(
            f"{(NOON + timedelta(seconds=n * every_s)).isoformat()},{row}"
            for n, row in enumerate(rows)
        ),
    ]


MS_A_TOKEN = [
    f"{gap * (1 + n % 3 / 500):g},128,100,{100 + 127 * gap:g},{gap}"
    for n, gap in enumerate([25] * 60 + [35] * 40)
]
NEAR_THE_CROSSING = [
    f"{gap:g},128,100,{100 + 127 * gap:g}" for gap in (30.4 + n % 25 / 10 for n in range(200))
]


@pytest.mark.parametrize(
    ("header", "rows", "told"),
    [
        pytest.param(
            "ttft_ms,e2e_ms",
            ["200000,1500000"] * 50,
            "column e2e_ms: is 1.5e+06, so 1,500 s, where",
            id="times in microseconds",
        ),
        pytest.param(
            "ttft_ms",
            ["200000"] * 50,
            "the samples of its probe are 60 s apart; it looks like microseconds",
            id="ttft in us",
        ),
        pytest.param(
            "ttft_ms",
            ["200000000"] * 50,
            "column ttft_ms: is 2e+08, as in most of the file",
            id="ttft in nanoseconds",
        ),
        pytest.param(
            "ttft_ms,e2e_ms",
            ["200000,1500"] * 50,
            "no answer ends before its first token",
            id="ttft in us, e2e in ms",
        ),
        pytest.param(
            "ttft_ms",
            ["0.2"] * 60 + ["3"] * 20,
            "is 0.2, as in much of the file; it looks like seconds",
            id="ttft in seconds",
        ),
        pytest.param(
            "ttft_ms",
            ["0.2"] * 40 + ["3"] * 60,
            "looks like seconds",
            id="mostly a regression, in seconds",
        ),
        pytest.param(
            "ttft_ms,e2e_ms",
            ["200,1.5"] * 50,
            "no answer ends before its first token",
            id="e2e in seconds",
        ),
        pytest.param(
            "completion_tokens,ttft_ms,e2e_ms",
            ["128,2,4"] * 50,
            "column e2e_ms: is 4 for 128 tokens",
            id="seconds",
        ),
        pytest.param(
            "decode_tok_s,completion_tokens,ttft_ms,e2e_ms",
            ["50,201,5,9000"] * 50,
            "column ttft_ms: is 5 where 5,000 ms",
            id="5 s",
        ),
        pytest.param(
            "ttft_ms,prefill_ms",
            ["40,25000"] * 50,
            "column prefill_ms: is 25000 and a part of ttft_ms",
            id="prefill in us",
        ),
        pytest.param(
            "prefill_ms", ["0.03"] * 50, "column prefill_ms: is 0.03", id="prefill in seconds"
        ),
        pytest.param(
            "decode_tok_s,itl_p50_ms",
            ["80,12500"] * 50,
            "column itl_p50_ms: is 12500 and contradicts",
            id="gaps in microseconds",
        ),
        pytest.param(
            "decode_tok_s,itl_p50_ms",
            ["80,0.0125"] * 50,
            "column itl_p50_ms: is 0.0125 and contradicts",
            id="gaps in seconds",
        ),
        pytest.param(
            "decode_tok_s,completion_tokens,ttft_ms,e2e_ms,itl_p50_ms",
            MS_A_TOKEN,
            "milliseconds per token: convert with 1000 / value",
            id="25 ms",
        ),
        pytest.param(
            "decode_tok_s,completion_tokens,ttft_ms,e2e_ms",
            NEAR_THE_CROSSING,
            "milliseconds per token: convert with 1000 / value",
            id="31.6 ms",
        ),
        pytest.param(
            "decode_tok_s",
            ["0.025"] * 50,
            "column decode_tok_s: is 0.025, as in much",
            id="seconds a token",
        ),
        pytest.param(
            "sm_clock_mhz", ["1.98"] * 50, "column sm_clock_mhz: is 1.98, as in", id="GHz"
        ),
        pytest.param(
            "mem_clock_mhz",
            ["10.5"] * 50,
            "looks like GHz; the column is in MHz: multiply by 1,000",
            id="memory in GHz",
        ),
        pytest.param("gpu_temp_c", ["140"] * 50, "looks like degrees Fahrenheit", id="Fahrenheit"),
        pytest.param("power_w", ["0.42"] * 50, "looks like kilowatts", id="kilowatts"),
        pytest.param("vram_used_mib", ["70.5"] * 50, "looks like GiB", id="GiB"),
        pytest.param(
            "e2e_ms,throttle_thermal_ms",
            ["1500,40000000"] * 50,
            "a counter since the driver was loaded",
            id="a counter",
        ),
    ],
)
def test_a_column_in_another_unit_is_refused_for_what_most_of_the_file_shows(
    header: str, rows: Sequence[str], told: str, tmp_path: Path
) -> None:
    assert any(told in problem for problem in refused(written(tmp_path, *minutes(header, *rows))))


ANSWER = "ttft_ms,e2e_ms,decode_tok_s,completion_tokens"


@pytest.mark.parametrize(
    ("header", "rows", "every_s"),
    [
        pytest.param(ANSWER, ["60000,102333,3,128"] * 50, 120, id="a large model on a CPU"),
        pytest.param(ANSWER, ["900000,1743333,0.15,128"] * 50, 30, id="a huge one, overlapping"),
        pytest.param(ANSWER, ["2,319.5,400,128"] * 50, 60, id="a tiny model"),
        pytest.param(ANSWER, ["2,65.5,2000,128"] * 50, 60, id="the fastest"),
        pytest.param(
            ANSWER,
            [f"100,{100 + 127000 / r:g},{r * 1.02:g},128" for r in (31, 31.6, 32.3)] * 20,
            60,
            id="31.6 tokens a second",
        ),
        pytest.param(
            "decode_tok_s,itl_p50_ms,spec_acceptance",
            ["60,60,0.7"] * 50,
            60,
            id="chunks of several tokens",
        ),
        pytest.param(
            "decode_tok_s,itl_p50_ms",
            ["90,0.02", "90,33", "90,0.01"] * 20,
            60,
            id="chunks that come together",
        ),
        pytest.param("ttft_ms", ["60000"] * 50, 60, id="a first token after a minute"),
        pytest.param(
            "ttft_ms,e2e_ms", ["60000,90000"] * 50, 0.5, id="a load test with many clients"
        ),
        pytest.param(
            "ttft_ms,e2e_ms", ["1990,1991"] * 50, 60, id="an answer that a proxy held back"
        ),
        pytest.param(
            "ttft_ms,e2e_ms,completion_tokens",
            ["1990,1991,128"] * 50,
            60,
            id="the same with tokens",
        ),
        pytest.param(
            "sm_clock_mhz,power_w,vram_used_mib",
            ["100,1.2,4"] * 45 + ["1400,35,6000"] * 6,
            60,
            id="a laptop at rest",
        ),
        pytest.param(
            "sm_clock_mhz,gpu_temp_c,gpu_mem_temp_c,power_w",
            ["3500,92,108,1200"] * 50,
            60,
            id="a hot and fast GPU",
        ),
        pytest.param(
            "power_w,sm_clock_mhz,queue_ms,ttft_ms", ["0,0,0,0"] * 50, 60, id="nothing but noughts"
        ),
        pytest.param(
            "e2e_ms,throttle_thermal_ms",
            ["1500,0"] * 49 + ["1500,40000000"],
            60,
            id="a counter that was reset once",
        ),
        pytest.param(
            "e2e_ms,throttle_thermal_ms",
            ["1500,58000"] * 50,
            60,
            id="throttled between two polls of an exporter",
        ),
        pytest.param(
            "ttft_ms,prefill_ms,queue_ms", ["2.5,1.1,0.01"] * 50, 60, id="a short prefill"
        ),
    ],
)
def test_what_is_very_slow_very_fast_or_odd_but_real_is_read(
    header: str, rows: Sequence[str], every_s: float, tmp_path: Path
) -> None:
    assert len(points(written(tmp_path, *minutes(header, *rows, every_s=every_s)))) == len(rows)


def test_one_odd_rate_is_an_odd_rate_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csvtable, "CHUNK", 50)
    rows = ["100,128,100,1370,ok"] * 50 + ["400,128,100,1370,ok"] + [",,,2000,queue_cap"] * 20
    header = "decode_tok_s,completion_tokens,ttft_ms,e2e_ms,outcome"
    assert len(points(written(tmp_path, *minutes(header, *rows)))) == 71


def test_the_bulk_of_a_long_file_decides_whatever_its_beginning_is_like(tmp_path: Path) -> None:
    rows = ["1.9"] * 300 + ["1980"] * 1500
    assert len(points(written(tmp_path, *minutes("sm_clock_mhz", *rows)))) == 1800
    assert (
        "looks like GHz"
        in refused(written(tmp_path, *minutes("sm_clock_mhz", *reversed(rows), *["1.9"] * 1500)))[0]
    )


def test_times_that_may_be_microseconds_are_said_where_nothing_tells(tmp_path: Path) -> None:
    told = notes(written(tmp_path, *minutes("ttft_ms", *["40000"] * 9)))
    assert any("ttft_ms has a median of 40,000, which is 40 s" in note for note in told)
    known = written(tmp_path, *minutes(ANSWER, *["40000,82333,3,128"] * 9))
    assert not any("microseconds" in note for note in notes(known))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ["started_at", "1969-12-31T23:59:59Z"],
            ":2: column started_at: is '1969-12-31T23:59:59Z'; a time must lie between 1970 and",
        ),
        (["started_at", "9999-12-31T23:59:59-14:00"], "a time must lie between 1970 and 2200"),
        (
            ["started_at,process_start", f"{FIRST},2200-01-01T00:00:00Z"],
            "column process_start: is '2200-01-01T00:00:00Z'; a time must lie",
        ),
        (
            ["started_at,stale", f"{FIRST},banana"],
            ":2: column stale: is 'banana'; use true or false",
        ),
        (
            ["started_at,other_generation_tokens", f"{FIRST},1e300"],
            "column other_generation_tokens: is 1e+300",
        ),
        (["started_at,priority", f"{FIRST},-1e300"], "column priority: is -1e+300"),
    ],
)
def test_cells_that_no_server_has_are_one_problem_each(
    lines: list[str], told: str, tmp_path: Path
) -> None:
    [problem] = refused(written(tmp_path, *lines))
    assert told in problem


@pytest.mark.parametrize(
    "column", ["priority", "ttft_ms", "other_generation_tokens", "pin", "logprob_shift"]
)
def test_a_number_too_large_for_any_is_no_number(column: str, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"started_at,{column}",
        f"{FIRST},1e400",
        "2026-03-01T12:01:00Z,-1e400",
        "2026-03-01T12:02:00Z,3",
    )
    assert [getattr(point, column) for point in points(path)] == [None, None, 3]
    assert any(f"2 cells of {column} are not finite numbers" in note for note in notes(path))


def test_a_file_without_rows_says_so(tmp_path: Path) -> None:
    assert any("has no row" in note for note in notes(written(tmp_path, "started_at,ttft_ms")))


def piped(folder: Path, lines: Sequence[str], name: str) -> Path:
    """A pipe through which these lines come."""
    pipe = folder / name
    os.mkfifo(pipe)
    Thread(target=written, args=(folder, *lines), kwargs={"name": name}, daemon=True).start()
    return pipe


@pytest.mark.parametrize("rows", [3, 1200])
def test_a_pipe_is_read_whole_and_its_lines_are_told(rows: int, tmp_path: Path) -> None:
    lines = minutes("ttft_ms", *(str(40 + n % 7) for n in range(rows)))
    assert len(points(piped(tmp_path, lines, "good"))) == rows
    [problem] = refused(piped(tmp_path, [*lines, "2026-03-10T12:00:00Z,slow"], "bad"))
    assert problem == f":{rows + 2}: column ttft_ms: is 'slow', which is not a number"


def test_a_gpu_that_no_column_names_is_a_gpu_of_the_target(tmp_path: Path) -> None:
    path = written(
        tmp_path, "started_at,gpu_temp_c,ttft_ms", f"{FIRST},61,40", "2026-03-01T12:01:00Z,,40"
    )
    assert [point.gpu_uuid for point in points(path)] == ["unnamed", None]
    [(_, gpu)] = readings(written(tmp_path, "kind,at,temp_c_median", f"gpu,{FIRST},61"))
    assert gpu.uuid == "unnamed"  # type: ignore[attr-defined]
    assert [
        point.gpu_uuid for point in points(written(tmp_path, "started_at,ttft_ms", f"{FIRST},40"))
    ] == [None]


def test_several_gpus_that_are_not_named_cannot_be_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path, "kind,at,temp_c_median", f"gpu,{FIRST},61", f"gpu,{FIRST},84")
    with pytest.raises(CsvError, match="give the GPUs' UUIDs"):
        readings(path)
    apart = written(
        tmp_path, "kind,target,at,temp_c_median", f"gpu,a,{FIRST},61", f"gpu,b,{FIRST},84"
    )
    assert len(readings(apart)) == 2


def test_readings_in_another_unit_are_refused_too(tmp_path: Path) -> None:
    rows = [f"gpu,{(NOON + timedelta(seconds=5 * n)).isoformat()},1.98" for n in range(60)]
    with pytest.raises(
        CsvError,
        match=r"column sm_clock_mhz_median: is 1\.98, as in much of the file; it looks like GHz",
    ):
        readings(written(tmp_path, "kind,at,sm_clock_mhz_median", *rows))


def test_a_year_of_samples_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csvtable, "CHUNK", 10)
    rows = [f"{datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=n)},{n}" for n in range(25)]
    chunks = list(SampleCsv(written(tmp_path, "started_at,ttft_ms", *rows)).chunks())
    assert [len(chunk["csv"]) for chunk in chunks] == [10, 10, 5]
