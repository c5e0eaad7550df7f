"""History in virtual time: the daemon's names, the daemon's timetable, the model's truth."""

from __future__ import annotations

import csv
import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import mean, median, pstdev

import pytest

from monitor.cli import main
from monitor.config import Settings, load_probes, shipped_probes_dir
from monitor.judge.quality.shift import LEAST_REPEATS, NOISE_FLOOR_NAT
from monitor.model import SAMPLE_FIELDS, Outcome, Phase, Verdict
from monitor.replay.virtual.export import GPU_FIELDS, SERVER_FIELDS, ExportError, export
from monitor.simulate.assemble import make_world, switch
from monitor.simulate.fastforward.world import FastForwardWorld
from monitor.simulate.world import World
from monitor.store import tables
from monitor.store.pinfile import from_yaml

Rows = list[dict[str, str]]
SETTINGS = Settings.model_validate({"targets": [{"name": "t", "url": "http://127.0.0.1:1"}]})
PROBES = load_probes(shipped_probes_dir(), SETTINGS)


def rows_of(file: Path) -> Rows:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def written(folder: Path, hours: float, scenario: str = "calm", seed: int = 0) -> tuple[Rows, Rows]:
    done = export(folder / f"{scenario}-{seed}.csv", hours, scenario=scenario, seed=seed)
    return rows_of(done.file), rows_of(done.readings_file)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows]:
    return written(tmp_path_factory.mktemp("calm"), 2.0)


def numbers(rows: Rows, field: str) -> list[float]:
    return [float(row[field]) for row in rows if row[field]]


def test_the_columns_are_the_fields_of_a_sample(calm: tuple[Rows, Rows]) -> None:
    assert tuple(calm[0][0]) == SAMPLE_FIELDS


def test_the_columns_of_readings_are_those_of_the_daemons_tables() -> None:
    assert set(SERVER_FIELDS) == set(tables.server_reading.c.keys()) - {
        "id",
        "target_id",
        "at_us",
        "process_start_id",
    }
    assert set(GPU_FIELDS) == set(tables.gpu_reading.c.keys()) - {"id", "at_us"}


def test_values_are_of_the_closed_lists(calm: tuple[Rows, Rows]) -> None:
    for row in calm[0]:
        Phase(row["phase"])
        Outcome(row["outcome"])
        Verdict(row["verdict"])
        assert datetime.fromisoformat(row["started_at"]).tzinfo is not None


def test_each_probe_runs_as_often_as_it_says(calm: tuple[Rows, Rows]) -> None:
    counts = Counter(row["probe"] for row in calm[0])
    for probe in PROBES:
        assert counts[probe.name] == pytest.approx(2 * 3600 / (probe.every_s or 0.0), abs=1)
        if probe.same_salt_twice:
            assert counts[f"{probe.name}-again"] == counts[probe.name]


def test_the_first_answer_of_each_parameter_set_is_cold_and_the_first_after_a_rest_idle(
    calm: tuple[Rows, Rows],
) -> None:
    phases = [row["phase"] for row in calm[0]]
    assert phases.count("cold") == 2
    assert {"idle", "warm"} <= set(phases)
    assert all(float(row["idle_before_s"]) > 10 for row in calm[0] if row["phase"] == "idle")


def test_a_calm_history_is_all_good(calm: tuple[Rows, Rows]) -> None:
    samples = calm[0]
    assert {row["outcome"] for row in samples} == {"ok"}
    assert "fail" not in {row["verdict"] for row in samples}
    assert len({row["fingerprint"] for row in samples}) == 1


def test_a_lone_canary_measures_the_engines_own_rate_with_a_little_unrest(
    calm: tuple[Rows, Rows],
) -> None:
    alone = [
        r
        for r in calm[0]
        if r["probe"] == "decode-fixed"
        and r["other_generation_tokens"] in {"0", "0.0"}
        and r["phase"] != "cold"
    ]
    rates = numbers(alone, "decode_tok_s")
    # 7.5 ms of the GPU and 0.4 ms of the host a step
    assert median(rates) == pytest.approx(1 / 0.0079, rel=0.02)
    assert 0.001 < pstdev(rates) / mean(rates) < 0.05


def test_readings_come_on_a_clock_of_their_own(calm: tuple[Rows, Rows]) -> None:
    server = [row for row in calm[1] if row["kind"] == "server"]
    gpus = [row for row in calm[1] if row["kind"] == "gpu"]
    assert len(server) == pytest.approx(2 * 3600 / 15, abs=2)
    assert len(gpus) == pytest.approx(2 * 3600 / 5, abs=2)
    tokens = numbers(server, "generation_tokens")
    assert tokens == sorted(tokens)
    energy = numbers(gpus, "energy_j")
    assert energy == sorted(energy)
    assert all(
        a <= b <= c
        for a, b, c in zip(
            *(numbers(gpus, f"power_w_{k}") for k in ("min", "median", "max")), strict=True
        )
    )


def test_the_same_seed_writes_the_same_file_and_another_one_another(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        export(tmp_path / f"{name}.csv", 0.2, seed=seed)
        texts.append(
            (tmp_path / f"{name}.csv").read_text() + (tmp_path / f"{name}.readings.csv").read_text()
        )
    assert texts[0] == texts[1] != texts[2]


def test_behind_a_batch_job_chat_is_cut_at_its_cap_and_the_uncapped_probe_measures_the_wait(
    tmp_path: Path,
) -> None:
    samples, _ = written(tmp_path, 0.8, "batch-job")
    later = [row for row in samples if row["started_at"] > "2026-01-05T00:25"]
    chat = [row for row in later if row["probe"] == "chat-short"]
    assert all(row["outcome"] == "queue_cap" for row in chat)
    assert {row["ttft_ms"] for row in chat} == {""}
    assert median(numbers(chat, "e2e_ms")) == pytest.approx(2000, abs=50)
    uncapped = [row for row in later if row["probe"] == "chat-uncapped"]
    assert uncapped
    assert min(numbers(uncapped, "ttft_ms")) > 5000
    assert min(numbers(uncapped, "queue_ms")) > 5000


def test_a_hang_is_hung_after_ten_seconds_and_not_a_queue(tmp_path: Path) -> None:
    samples, _ = written(tmp_path, 0.4, "hang")
    after = [
        row for row in samples if row["started_at"] > "2026-01-05T00:13" and row["class"] == "chat"
    ]
    assert {row["outcome"] for row in after} == {"hung"}
    assert all(10_000 <= float(row["e2e_ms"]) <= 12_500 for row in after)


@pytest.mark.parametrize(("scenario", "outcome"), [("die", "refused"), ("sleep", "asleep")])
def test_faults_of_the_server_have_their_outcome(
    tmp_path: Path, scenario: str, outcome: str
) -> None:
    samples, _ = written(tmp_path, 0.4, scenario)
    assert {row["outcome"] for row in samples if row["started_at"] > "2026-01-05T00:14"} == {
        outcome
    }


def test_lost_bos_is_a_shorter_prompt_and_a_wrong_answer(tmp_path: Path) -> None:
    samples, _ = written(tmp_path, 0.4, "lost-bos")
    chat = [row for row in samples if row["probe"] == "chat-short" and row["outcome"] == "ok"]
    assert (chat[0]["verdict"], chat[-1]["verdict"]) == ("pass", "fail")
    assert int(chat[-1]["prompt_tokens"]) == int(chat[0]["prompt_tokens"]) - 1
    assert chat[0]["fingerprint"] != chat[-1]["fingerprint"]


def test_heat_shows_in_counter_clock_and_decode(tmp_path: Path) -> None:
    samples, readings = written(tmp_path, 2.5, "heat")
    decode = [row for row in samples if row["probe"] == "decode-fixed"]
    before = [row for row in decode if "2026-01-05T00:30" < row["started_at"] < "2026-01-05T01:15"]
    after = [row for row in decode if row["started_at"] > "2026-01-05T02:20"]
    assert sum(numbers(before, "throttle_thermal_ms")) == 0
    assert min(numbers(after, "throttle_thermal_ms")) > 0
    assert median(numbers(after, "sm_clock_mhz")) < 1850
    # the governor holds between 85 and 87
    assert median(numbers(after, "gpu_temp_c")) == pytest.approx(86, abs=1)
    assert median(numbers(after, "decode_tok_s")) < 0.98 * median(numbers(before, "decode_tok_s"))
    hot = [row for row in readings if row["kind"] == "gpu"][-1]
    assert int(hot["event_reasons"]) & 0x20


@pytest.mark.parametrize("scenario", ["calm", "heat", "batch-job"])
def test_leaps_change_nothing_but_the_work(scenario: str) -> None:
    def story(kind: type[World]) -> list[float]:
        made = make_world(["h100"], 1, kind=kind)
        switch(made, scenario)
        made.advance(120)
        made.settle()
        c = made.engine.counters
        counts = [
            c.generation_tokens,
            c.prompt_tokens,
            c.iteration_tokens.count,
            c.e2e_latency.count,
        ]
        return [
            *counts,
            c.inter_token_latency.sum,
            c.e2e_latency.sum,
            c.queue_time.sum,
            made.gpus[0].reading().energy_j,
        ]  # type: ignore[attr-defined]

    assert story(FastForwardWorld) == pytest.approx(story(World), rel=1e-3, abs=0.01)


def test_beside_the_samples_lie_the_pins_they_are_judged_by_as_pins_export_writes_them(
    tmp_path: Path,
) -> None:
    done = export(tmp_path / "h.csv", 0.3)
    assert done.pins_file == tmp_path / "h.pins.yaml"
    rows, found = rows_of(done.file), from_yaml(done.pins_file.read_text(), "h.pins.yaml")
    assert {pin.probe for pin in found} == {row["probe"] for row in rows if row["pin"]}
    for pin in found:
        of_probe = [row for row in rows if row["probe"] == pin.probe]
        assert {(row["target"], row["fingerprint"], row["output"]) for row in of_probe} == {
            (pin.target, pin.fingerprint, pin.outputs[0].text)
        }
        assert {row["prompt_tokens"] for row in of_probe} == {str(pin.prompt_tokens)}
        assert pin.repeats >= LEAST_REPEATS
        assert 0 < (pin.noise_nat or 0) < NOISE_FLOOR_NAT


@pytest.mark.parametrize(
    ("scenario", "found"), [("calm", set()), ("int4", {"log-probabilities"}), ("new-weights", None)]
)
def test_from_the_file_and_its_pins_a_backtest_finds_the_change_of_the_model(
    scenario: str, found: set[str] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = export(tmp_path / "h.csv", 2.0, scenario=scenario)
    main(["backtest", str(done.file), "--json"])
    told = json.loads(capsys.readouterr().out)
    quality = {
        i["subject"]
        for i in told["incidents"]
        if (i["kind"], i["cause"]) == ("quality", "answers_changed")
    }
    if found is None:
        assert {"chat-short", "extraction-json", "coding", "log-probabilities"} <= quality
    else:
        assert quality == found
    done.pins_file.unlink()
    main(["backtest", str(done.file), "--json"])
    without = json.loads(capsys.readouterr().out)
    assert not [i for i in without["incidents"] if i["subject"] == "log-probabilities"]
    assert [note for note in without["notes"] if "h.pins.yaml does not exist" in note]


def test_a_scenario_begins_after_half_of_the_time_or_where_one_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def limits(*options: str) -> list[str]:
        file = tmp_path / "h.csv"
        assert (
            main(
                [
                    "simulate",
                    "--export",
                    str(file),
                    "--hours",
                    "0.3",
                    "--scenario",
                    "power-cap",
                    *options,
                ]
            )
            == 0
        )
        rows = rows_of(file.with_name("h.readings.csv"))
        lowered = [
            row["at"] for row in rows if row["kind"] == "gpu" and row["power_limit_w"] != "700"
        ]
        assert "must raise power (power_cap)" in capsys.readouterr().out
        return lowered

    # 0.15 h: 540 s, and the window of five looks that ends after it
    assert limits()[0][:19] == "2026-01-05T00:09:04"
    assert limits("--onset", "0.25")[0][:19] == "2026-01-05T00:15:04"
    assert limits("--onset", "0")[0][:19] == "2026-01-05T00:00:04"


@pytest.mark.parametrize("onset", ["0.3", "-1", "nan"])
def test_a_scenario_that_would_never_begin_is_one_sentence_and_exit_code_2(
    onset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["simulate", "--export", str(tmp_path / "h.csv"), "--hours", "0.3", "--onset", onset])
        == 2
    )
    assert (
        f"the scenario would begin after {float(onset):g} h, but the history has 0.3 h"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("option", ["--hours", "--thermal-speed"])
@pytest.mark.parametrize("value", ["inf", "nan", "0"])
def test_a_history_without_an_end_is_refused(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--export", str(tmp_path / "h.csv"), option, value]) == 2
    assert "--thermal-speed and --hours must be numbers above 0" in capsys.readouterr().err


def test_an_onset_without_an_export_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--onset", "3"]) == 2
    assert (
        "--onset requires --export; without it the scenario begins immediately"
        in capsys.readouterr().err
    )


def test_a_file_that_cannot_be_written_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere" / "x.csv"
    with pytest.raises(ExportError):
        export(missing, 0.01)
    assert main(["simulate", "--export", str(missing), "--hours", "0.01"]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_the_command_says_what_it_wrote_and_what_must_be_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "h.csv"
    assert (
        main(
            [
                "simulate",
                "--export",
                str(file),
                "--hours",
                "0.1",
                "--scenario",
                "power-cap",
                "--gpu",
                "rtx4090",
            ]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert f"{file}: " in told
    assert "from 2026-01-05T00:03:00.000000Z on it must raise power (power_cap)" in told
