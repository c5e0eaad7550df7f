"""`backtest`: the daemon's judges over a file or the history, and the incidents that they would
have opened.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from histories import History, a_probe, a_sample

from monitor.model import Outcome, Sample
from monitor.show.records import csv_text, sample_record
from monitor.store import points, record

from .conftest import Command

START = datetime(2026, 3, 1, tzinfo=UTC)
QUICK = ("--set", "detector.learn=2h", "--set", "detector.learn_blocks=20")


def series(
    hours: float,
    drop_at_h: float | None = None,
    by: float = 0.10,
    start: datetime = START,
    seed: int = 1,
) -> list[Sample]:
    """Decode canaries once a minute, alone on the server, that get slower at an hour."""
    chance, found = random.Random(seed), []
    for minute in range(int(hours * 60)):
        slower = drop_at_h is not None and minute >= drop_at_h * 60
        rate = 90.0 * (1 - by if slower else 1.0) * chance.gauss(1, 0.004)
        ttft = 40.0 * chance.gauss(1, 0.05)
        known = {
            "completion_tokens": 128,
            "prompt_tokens": 31,
            "running": 0.0,
            "waiting": 0.0,
            "fingerprint": "abc",
        }
        found.append(
            a_sample(
                id=minute + 1,
                probe="decode",
                traffic_class="batch",
                started_at=start + timedelta(minutes=minute),
                ttft_ms=ttft,
                e2e_ms=ttft + 127_000 / rate,
                decode_tok_s=rate,
                process_start=start - timedelta(days=1),
                **known,
            )
        )
    return found


def written(folder: Path, samples: Sequence[Sample], name: str = "past.csv") -> str:
    """A file of these samples, as `history --format csv` writes it."""
    path = folder / name
    path.write_text(csv_text(map(sample_record, samples)), encoding="utf-8")
    return str(path)


def test_a_loss_of_speed_is_found_dated_and_ends_with_1(cli: Command, tmp_path: Path) -> None:
    ran = cli("backtest", written(tmp_path, series(8, drop_at_h=6)), *QUICK, "--json")
    assert ran.code == 1
    [incident] = ran.json["incidents"]
    assert (incident["kind"], incident["target"], incident["metric"]) == (
        "speed",
        "local",
        "decode_tok_s",
    )
    assert incident["low_pct"] < incident["change_pct"] < incident["high_pct"]
    assert -12 < incident["change_pct"] < -8
    since, opened = (datetime.fromisoformat(incident[key]) for key in ("since", "opened_at"))
    assert abs(since - (START + timedelta(hours=6))) < timedelta(minutes=15)
    assert timedelta(0) < opened - (START + timedelta(hours=6)) < timedelta(minutes=40)
    assert incident["closed_at"] is None
    [target] = ran.json["targets"]
    assert (target["name"], target["samples"]) == ("local", 480)
    assert any(part["armed"] for part in target["detection"])


def test_it_is_told_to_people_too(cli: Command, tmp_path: Path) -> None:
    ran = cli("backtest", written(tmp_path, series(8, drop_at_h=6)), *QUICK)
    assert ran.code == 1
    assert "480 samples" in ran.out
    assert "decode rate" in ran.out


def test_calm_is_0_and_what_was_not_armed_is_said(cli: Command, tmp_path: Path) -> None:
    ran = cli("backtest", written(tmp_path, series(4)), "--json")
    assert (ran.code, ran.json["incidents"]) == (0, [])
    told = cli("backtest", written(tmp_path, series(4)))
    assert "no incidents" in told.out
    assert "not armed at the end" in told.out


def test_a_threshold_can_be_tried(cli: Command, tmp_path: Path) -> None:
    path = written(tmp_path, series(8, drop_at_h=6, by=0.05))
    assert cli("backtest", path, *QUICK).code == 1
    assert cli("backtest", path, *QUICK, "--set", "detector.practical_pct=20").code == 0


def test_a_service_level_can_be_tried(cli: Command, tmp_path: Path) -> None:
    path = written(tmp_path, series(2))
    assert cli("backtest", path).code == 0
    ran = cli("backtest", path, "--set", "classes.batch.ttft=10ms", "--json")
    assert [i["kind"] for i in ran.json["incidents"]] == ["service_level"]


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ("detector.block=300", "give it a unit"),
        ("detector.colour=red", "known here: false_alarms_per_month"),
        ("detector.large_drop=0.01", "give large_drop a value above small_drop"),
        ("block=5m", "give detector.KEY=VALUE"),
        ("classes.chat.ttft=1", "give it a unit"),
        ("detector.card_step=0.0001ms", "it must be 1s or longer"),
        ("detector.block=10ms", "it must be 1s or longer"),
        ("detector.learn=99999d", "give remember at least the length of learn"),
        ("detector.remember=99999d", "give remember at most ten years"),
        (
            "classes.bach.ttft=1ms",
            (
                "there is no class bach, neither in the configuration nor in what was measured; "
                "did you mean batch?"
            ),
        ),
        ("classes.bach.ttft=none", "there is no class bach"),
    ],
)
def test_a_threshold_that_is_none_is_told_and_2(
    wish: str, told: str, cli: Command, tmp_path: Path
) -> None:
    ran = cli("backtest", written(tmp_path, series(0.1)), "--set", wish)
    assert (ran.code, told in ran.err) == (2, True), ran.err
    assert wish in ran.err


def test_thresholds_that_only_go_together_may_come_in_any_order(
    cli: Command, tmp_path: Path
) -> None:
    path = written(tmp_path, series(0.1))
    wishes = ("--set", "detector.small_drop=0.1", "--set", "detector.large_drop=0.2")
    assert cli("backtest", path, *wishes).code == 0
    assert cli("backtest", path, *wishes[2:], *wishes[:2]).code == 0


def test_a_level_of_a_class_that_the_history_does_not_know_is_refused(
    cli: Command, history: History
) -> None:
    stored(history, series(1, start=datetime.now(UTC) - timedelta(hours=1)))
    ran = cli("backtest", "--db", history.database, "--set", "classes.nobody.ttft=1s")
    assert (ran.code, "there is no class nobody" in ran.err) == (2, True)
    [known] = history.do(points.classes_of)
    assert cli("backtest", "--db", history.database, "--set", f"classes.{known}.ttft=1s").code == 0


def test_a_level_of_a_file_that_names_no_class_is_refused(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text(f"started_at,ttft_ms\n{START.isoformat()},40\n")
    assert (
        "no sample names its class"
        in cli("backtest", str(path), "--set", "classes.chat.ttft=1s").err
    )


def test_thresholds_and_levels_of_a_configuration_hold_here_too(
    cli: Command, tmp_path: Path
) -> None:
    path = written(tmp_path, series(2))
    config = tmp_path / "config.yaml"
    config.write_text(
        "targets: [{name: local, url: http://127.0.0.1:9}]\nclasses:\n  batch:\n    ttft: 10ms\n"
    )
    assert cli("backtest", path, "-c", str(config)).code == 1
    assert cli("backtest", path, "-c", str(config), "--set", "classes.batch.ttft=none").code == 0


def test_a_broken_file_is_2_with_line_and_column(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text("started_at,sm_clock_mhz\n2026-03-01T00:00:00Z,1980000000\n")
    ran = cli("backtest", str(path))
    assert ran.code == 2
    assert "past.csv:2: column sm_clock_mhz" in ran.err


def test_gaps_nan_one_row_and_a_constant_series_are_judged_and_said(
    cli: Command, tmp_path: Path
) -> None:
    gap = [*series(1), *series(1, start=START + timedelta(hours=9))]
    assert "1 gaps of over an hour" in cli("backtest", written(tmp_path, gap)).out
    assert "has one row" in cli("backtest", written(tmp_path, series(1)[:1])).out
    path = tmp_path / "constant.csv"
    rows = [f"{(START + timedelta(minutes=n)).isoformat()},90,40" for n in range(60 * 30)]
    path.write_text(
        "started_at,decode_tok_s,ttft_ms\n"
        + "\n".join(rows).replace("T00:07:00+00:00,90", "T00:07:00+00:00,nan")
    )
    ran = cli("backtest", str(path))
    assert ran.code == 0, ran.out
    assert "decode_tok_s is 90 in every row" in ran.out
    assert "2 cells of decode_tok_s are not finite numbers" in ran.out


def test_readings_beside_a_file_are_read_with_it(cli: Command, tmp_path: Path) -> None:
    path = written(tmp_path, series(1))
    moments = [(START + timedelta(seconds=5 * n)).isoformat() for n in range(720)]
    rows = [
        f"gpu,{at},GPU-1,60,1980,0.9,400,{max(n - 300, 0) * 10**9}" for n, at in enumerate(moments)
    ]
    header = (
        "kind,at,gpu_uuid,temp_c_median,sm_clock_mhz_median,util_median,power_w_median,"
        "throttle_brake_ns"
    )
    (tmp_path / "past.readings.csv").write_text("\n".join([header, *rows]))
    ran = cli("backtest", path, "--json")
    assert ran.json["targets"][0]["gpu_readings"] == 720
    assert [i["kind"] for i in ran.json["incidents"]] == ["power"]
    assert ran.json["incidents"][0]["subject"] == "GPU-1"


def looks(count: int, *gpus: tuple[str, str, float], target: str | None = "") -> str:
    """A file of readings of GPUs (target, UUID, share of time throttled for heat), every five
    seconds.
    """
    head = "kind,at,gpu_uuid,temp_c_median,util_median,throttle_thermal_ns" + (
        ",target" if target is not None else ""
    )
    rows = []
    for n in range(count):
        at = (START + timedelta(seconds=5 * n)).isoformat()
        for of, uuid, share in gpus:
            rows.append(
                f"gpu,{at},{uuid},88,0.99,{int(n * share * 5e9)}"
                + (f",{of}" if target is not None else "")
            )
    return "\n".join([head, *rows])


def bare(folder: Path, columns: str, *targets: str) -> str:
    """A file of an hour with a sample a minute of each target, and nothing in it but these
    columns.
    """
    path = folder / "past.csv"
    names = [f",{name}" for name in targets] or [""]
    rows = [
        f"{(START + timedelta(minutes=n, seconds=k)).isoformat()},{40 + n % 5}{t}"
        for n in range(60)
        for k, t in enumerate(names)
    ]
    path.write_text("\n".join([f"started_at,ttft_ms{columns}", *rows]))
    return str(path)


def test_readings_that_name_a_target_are_those_of_samples_that_name_none(
    cli: Command, tmp_path: Path
) -> None:
    (tmp_path / "past.readings.csv").write_text(looks(700, ("local", "GPU-1", 1.0)))
    ran = cli("backtest", bare(tmp_path, ""), "--json")
    assert [(i["kind"], i["subject"]) for i in ran.json["incidents"]] == [("thermal", "GPU-1")]
    assert ran.json["targets"][0]["gpu_readings"] == 700


def test_readings_of_a_second_target_are_left_out_and_counted(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "past.readings.csv").write_text(
        looks(60, ("local", "GPU-1", 0), ("other", "GPU-2", 1.0))
    )
    told = cli("backtest", bare(tmp_path, ""))
    assert "60 readings of target other were left out" in told.out.replace("\n", " ")
    assert told.code == 0
    named = cli("backtest", bare(tmp_path, ",target", "local"), "--json")
    assert "past.csv has samples only of target local" in named.json["notes"][-1]


def test_a_gpu_that_no_sample_names_is_counted_and_one_that_a_late_sample_names_is_not(
    cli: Command, tmp_path: Path
) -> None:
    (tmp_path / "past.readings.csv").write_text(
        looks(700, ("", "GPU-a", 0), ("", "GPU-b", 1.0), ("", "GPU-c", 1.0))
    )
    rows = [
        f"{at.isoformat()},{name},{40 + n % 5},{uuid if n == 59 else ''}"
        for n in range(60)
        for k, (name, uuid) in enumerate((("a", "GPU-a"), ("b", "GPU-b")))
        for at in [START + timedelta(minutes=n, seconds=k)]
    ]
    (tmp_path / "past.csv").write_text("\n".join(["started_at,target,ttft_ms,gpu_uuid", *rows]))
    ran = cli("backtest", str(tmp_path / "past.csv"), "--json")
    assert {target["name"]: target["gpu_readings"] for target in ran.json["targets"]} == {
        "a": 700,
        "b": 700,
    }
    assert [(i["target"], i["subject"]) for i in ran.json["incidents"]] == [("b", "GPU-b")]
    assert "700 readings of GPU GPU-c were left out" in ran.json["notes"][-1]


def test_a_gpu_that_nobody_named_is_watched_and_is_the_one_that_the_readings_name(
    cli: Command, tmp_path: Path
) -> None:
    path = tmp_path / "past.csv"
    head = "started_at,ttft_ms,e2e_ms,gpu_temp_c,throttle_thermal_ms"
    rows = [
        f"{(START + timedelta(minutes=n)).isoformat()},{40 + n % 5},1500,88,1400" for n in range(60)
    ]
    path.write_text("\n".join([head, *rows]))
    assert {
        (i["kind"], i["subject"]) for i in cli("backtest", str(path), "--json").json["incidents"]
    } == {("thermal", "unnamed")}
    (tmp_path / "past.readings.csv").write_text(looks(700, ("", "GPU-1", 1.0)))
    assert {
        (i["kind"], i["subject"]) for i in cli("backtest", str(path), "--json").json["incidents"]
    } == {("thermal", "GPU-1")}


def test_a_file_without_rows_is_3_and_says_so(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text("started_at,decode_tok_s\n")
    ran = cli("backtest", str(path))
    assert (ran.code, "has no row" in ran.out, "no incidents" in ran.out) == (3, True, False)


def test_a_plot_is_written_over_a_plot_and_over_nothing_else(cli: Command, tmp_path: Path) -> None:
    path = Path(written(tmp_path, series(0.1)))
    before = path.read_text()
    (tmp_path / "link.html").symlink_to(path)
    (tmp_path / "notes.txt").write_text("mine")
    for name, told in (
        ("past.csv", "is the input file; give another one, for example past.html"),
        ("link.html", "is the input file; give another one, for example link.html"),
        ("notes.txt", "already exists and is not a page of `backtest`; give another file"),
    ):
        ran = cli("backtest", str(path), "--plot", str(tmp_path / name))
        assert (ran.code, ran.err) == (2, f"--plot {tmp_path / name} {told}\n")
    assert (path.read_text(), (tmp_path / "notes.txt").read_text()) == (before, "mine")
    for _ in range(2):
        assert cli("backtest", str(path), "--plot", str(tmp_path / "plot.html")).code == 0


def test_targets_of_a_file_are_judged_each_for_itself(cli: Command, tmp_path: Path) -> None:
    from dataclasses import replace

    slow = [replace(s, target="slow") for s in series(8, drop_at_h=6)]
    path = written(tmp_path, sorted([*series(8, seed=2), *slow], key=lambda s: s.started_at))
    ran = cli("backtest", path, *QUICK, "--json")
    assert [target["name"] for target in ran.json["targets"]] == ["local", "slow"]
    assert {i["target"] for i in ran.json["incidents"]} == {"slow"}
    assert cli("backtest", path, *QUICK, "--target", "local").code == 0
    assert "it has: local, slow" in cli("backtest", path, "--target", "typo").err


def test_the_plot_is_one_page_that_needs_nothing_else_and_shows_what_was_found(
    cli: Command, tmp_path: Path
) -> None:
    plot = tmp_path / "plot.html"
    cli("backtest", written(tmp_path, series(8, drop_at_h=6)), *QUICK, "--plot", str(plot))
    page = plot.read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert "decode rate, % of median" in page
    assert "<rect" in page
    assert "speed of decode" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert (
        cli(
            "backtest", written(tmp_path, series(0.1)), "--plot", str(tmp_path / "no" / "plot.html")
        ).code
        == 2
    )


def stored(history: History, samples: Sequence[Sample], every_s: float = 60.0) -> None:
    """A history with these samples."""
    history.target("local", samples[0].started_at, {"decode": every_s})
    history.samples(samples)


def test_the_history_is_judged_with_what_was_learnt_before(cli: Command, history: History) -> None:
    begin = datetime.now(UTC) - timedelta(hours=10)
    stored(history, series(9.5, drop_at_h=7, start=begin))
    ran = cli("backtest", "--db", history.database, *QUICK, "--since", "4h", "--json")
    assert ran.code == 1
    [incident] = ran.json["incidents"]
    assert (incident["kind"], incident["metric"]) == ("speed", "decode_tok_s")
    late = cli("backtest", "--db", history.database, *QUICK, "--since", "1h", "--json")
    assert (late.code, late.json["incidents"]) == (0, [])  # it had opened before


def test_an_outage_and_a_hang_of_the_past_are_found_as_the_daemon_finds_them(
    cli: Command, history: History
) -> None:
    begin = datetime.now(UTC) - timedelta(hours=2)
    samples = series(1, start=begin)
    gone = {"decode_tok_s": None, "ttft_ms": None, "e2e_ms": 10_000.0, "probe": "decode"}
    samples.append(a_sample(started_at=begin + timedelta(minutes=61), outcome=Outcome.HUNG, **gone))
    samples += [
        a_sample(started_at=begin + timedelta(minutes=62 + n), outcome=Outcome.REFUSED, **gone)
        for n in range(3)
    ]
    stored(history, samples)
    ran = cli("backtest", "--db", history.database, "--since", "3h", "--json")
    assert {i["kind"] for i in ran.json["incidents"]} >= {"hung", "server_down"}


def test_a_history_with_nothing_in_it_is_said(cli: Command, history: History) -> None:
    ran = cli("backtest", "--db", history.database)
    assert (ran.code, "the history has no target yet; start `vllm-canary run`" in ran.out) == (
        3,
        True,
    )
    history.target("local", START, {"decode": 60.0})
    ran = cli("backtest", "--db", history.database)
    assert (ran.code, "nothing was measured" in ran.out, "no incidents" in ran.out) == (
        3,
        True,
        False,
    )
    ran = cli("backtest", "--db", history.database, "--target", "typo")
    assert (ran.code, "known targets: local" in ran.err) == (2, True)


def test_a_file_and_a_time_do_not_go_together(cli: Command, tmp_path: Path) -> None:
    assert cli("backtest", written(tmp_path, series(0.1)), "--since", "2h").code == 2


def test_nothing_is_written(cli: Command, history: History) -> None:
    stored(history, series(1, start=datetime.now(UTC) - timedelta(hours=1)))
    history.do(lambda c: record.ensure_revision(c, a_probe(), START))
    history.close()
    before = history.path.read_bytes()
    cli("backtest", "--db", history.database)
    assert history.path.read_bytes() == before
