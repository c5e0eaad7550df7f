"""A history in which nothing happens must look to a detector like a real healthy server: uneven,
and without drift.

The sizes are those that were measured on idle servers at concurrency 1
(monitor/replay/virtual/noise.py), and those that the detectors of the project were designed for.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, pstdev

import pytest

from monitor.config import Settings, load_probes, shipped_probes_dir
from monitor.judge.quality.shift import NOISE_FLOOR_NAT
from monitor.replay.virtual.export import export
from monitor.simulate.model.language_model import VOCABULARY

Rows = list[dict[str, str]]
HOURS = 8.0
SETTINGS = Settings.model_validate({"targets": [{"name": "t", "url": "http://127.0.0.1:1"}]})


def written(
    folder: Path, hours: float, gpu: str = "h100", scenario: str = "calm"
) -> tuple[Rows, Rows]:
    done = export(folder / f"{gpu}-{scenario}.csv", hours, [gpu], scenario)
    with done.file.open(newline="") as samples, done.readings_file.open(newline="") as readings:
        return list(csv.DictReader(samples)), list(csv.DictReader(readings))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows]:
    return written(tmp_path_factory.mktemp("calm"), HOURS)


def alone(rows: Rows) -> Rows:
    """Warm runs that had the server to themselves."""
    return [
        row
        for row in rows
        if row["phase"] == "warm" and row["other_generation_tokens"] in {"0", "0.0"}
    ]


def of(rows: Rows, probe: str, field: str) -> list[float]:
    return [float(row[field]) for row in rows if row["probe"] == probe and row[field]]


def usual(values: Sequence[float]) -> list[float]:
    """Without the rare slow ones."""
    return [value for value in values if abs(value / median(values) - 1) < 0.05]


def test_the_decode_rate_of_a_lone_canary_varies_by_some_tenths_of_a_per_cent(
    calm: tuple[Rows, Rows],
) -> None:
    rates = of(alone(calm[0]), "decode-fixed", "decode_tok_s")
    kept = usual(rates)
    assert 0.002 < pstdev(kept) / mean(kept) < 0.01
    assert len(kept) / len(rates) > 0.97


def test_the_time_to_the_first_token_is_far_less_steady(calm: tuple[Rows, Rows]) -> None:
    waits = of(alone(calm[0]), "chat-short", "ttft_ms")
    assert 0.03 < pstdev(waits) / mean(waits) < 0.4


def test_gaps_between_tokens_are_uneven(calm: tuple[Rows, Rows]) -> None:
    rows = alone(calm[0])
    half, most, longest = (
        median(of(rows, "decode-fixed", f"itl_{which}_ms")) for which in ("p50", "p95", "max")
    )
    assert 1.02 * half < most < longest < 1.3 * half


def test_nothing_drifts(calm: tuple[Rows, Rows]) -> None:
    rates = usual(of(alone(calm[0]), "decode-fixed", "decode_tok_s"))
    quarter = len(rates) // 4
    quarters = [mean(rates[i * quarter : (i + 1) * quarter]) for i in range(4)]
    assert max(quarters) / min(quarters) < 1.012  # a slow wander of 0.4 % is left


def test_no_throttle_counter_moves_on_a_healthy_gpu(calm: tuple[Rows, Rows]) -> None:
    samples, readings = calm
    for cause in ("thermal", "power", "brake"):
        assert {float(row[f"throttle_{cause}_ms"]) for row in samples} == {0.0}
        assert {row[f"throttle_{cause}_ns"] for row in readings if row["kind"] == "gpu"} == {"0"}
    # at work, and idle
    assert {row["event_reasons"] for row in readings if row["kind"] == "gpu"} == {
        "0",
        "1",
    }


def test_a_power_cap_bit_that_is_always_set_shows_at_work_and_at_rest_and_no_heat_throttling(
    tmp_path: Path,
) -> None:
    samples, readings = written(tmp_path, 0.5, "rtx3090")
    gpus = [row for row in readings if row["kind"] == "gpu"]
    assert all(int(row["event_reasons"]) & 0x4 for row in gpus[1:])
    assert int(gpus[-1]["throttle_power_ns"]) == pytest.approx(1800e9, rel=0.01)
    assert {row["throttle_thermal_ns"] for row in gpus} == {"0"}
    asked = [row for row in samples if row["probe"] == "decode-fixed"]
    assert all(
        float(row["throttle_power_ms"]) == pytest.approx(float(row["e2e_ms"]), rel=0.1)
        for row in asked
    )


def test_power_and_the_air_of_the_room_are_uneven(calm: tuple[Rows, Rows]) -> None:
    gpus = [row for row in calm[1] if row["kind"] == "gpu"]
    busy = [float(row["power_w_median"]) for row in gpus if float(row["util_min"]) > 0.94]
    assert 0.003 < pstdev(busy) / mean(busy) < 0.03
    asleep = [float(row["temp_c_median"]) for row in gpus if float(row["util_max"]) == 0]
    assert 1 <= max(asleep) - min(asleep) <= 8


def test_another_seed_is_uneven_in_another_way(tmp_path: Path) -> None:
    powers = []
    for seed in (0, 1):
        done = export(tmp_path / f"{seed}.csv", 0.05, seed=seed)
        with done.readings_file.open(newline="") as readings:
            powers.append(
                [row["power_w_max"] for row in csv.DictReader(readings) if row["kind"] == "gpu"][:4]
            )
    assert powers[0] != powers[1]


# -- the answers, as a daemon with pins judges them


def test_healthy_answers_pass_and_their_log_probabilities_stay_within_the_noise(
    calm: tuple[Rows, Rows],
) -> None:
    pinned = [row for row in calm[0] if row["pin"]]
    assert {row["probe"] for row in pinned} == {
        probe.name
        for probe in load_probes(shipped_probes_dir(), SETTINGS)
        if probe.sampling.get("logprobs")
    }
    assert {(row["verdict"], row["stale"], row["first_divergence"]) for row in pinned} == {
        ("pass", "False", "")
    }
    assert 0 < max(float(row["logprob_shift"]) for row in alone(pinned)) < NOISE_FLOOR_NAT
    # others in the batch move them a little
    assert max(float(row["logprob_shift"]) for row in pinned) < 0.03
    assert {row["verdict"] for row in calm[0] if not row["pin"]} <= {"pass", "unpinned"}


@pytest.mark.parametrize(
    ("scenario", "verdicts", "moved"),
    [
        ("int4", {"pass"}, (0.3, 1.0)),
        ("new-weights", {"pass", "fail"}, (1.5, 5.0)),
        ("lost-bos", {"fail"}, None),
    ],
)
def test_other_weights_move_log_probabilities_and_a_lost_token_fails(
    scenario: str, verdicts: set[str], moved: tuple[float, float] | None, tmp_path: Path
) -> None:
    samples, _ = written(tmp_path, 0.5, scenario=scenario)
    after = [
        row
        for row in samples
        if row["started_at"] > "2026-01-05T00:16" and row["pin"] and row["outcome"] == "ok"
    ]
    assert after
    assert {row["verdict"] for row in after} == verdicts
    shifts = [float(row["logprob_shift"]) for row in after if row["logprob_shift"]]
    if moved is None:
        assert not shifts  # another prompt: there is nothing to compare
        # the template is another one, so the pins wait for a retest
        assert {row["stale"] for row in after} == {"True"}
    else:
        assert moved[0] < min(shifts) <= max(shifts) < moved[1]
        # nothing that can be seen from outside has changed
        assert {row["stale"] for row in after} == {"False"}


def test_where_another_answer_came_the_pinned_one_is_scored_if_nobody_else_was_served(
    tmp_path: Path,
) -> None:
    samples, _ = written(tmp_path, 2.0, scenario="new-weights")
    other = [row for row in samples if row["first_divergence"]]
    assert {row["probe"] for row in other} == {
        "chat-short",
        "chat-uncapped",
        "coding",
        "extraction-json",
    }
    assert {
        bool(row["logprob_shift"])
        for row in other
        if row["other_generation_tokens"] in {"0", "0.0"}
    } == {True}
    assert {
        bool(row["logprob_shift"])
        for row in other
        if row["other_generation_tokens"] not in {"0", "0.0"}
    } == {False}


def test_the_texts_of_different_tokens_are_different() -> None:
    """Log-probabilities are compared by the texts of their tokens."""
    texts = [VOCABULARY.text(token) for token in range(6 + 256 + 128 * 128, VOCABULARY.size)]
    assert Counter(texts).most_common(1)[0][1] == 1
