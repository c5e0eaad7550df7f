"""The export in virtual time waits, reads and judges as the daemon does."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from monitor.measure.server.metrics_page import parse_page
from monitor.replay.virtual.export import export
from monitor.replay.virtual.readings import read_page
from monitor.simulate.api.http_counts import HttpCounts
from monitor.simulate.api.metrics_page import metrics_page
from monitor.simulate.assemble import make_world

Rows = list[dict[str, str]]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def samples(folder: Path, scenario: str, hours: float, onset_hours: float) -> Rows:
    file = folder / "story.yaml"
    file.write_text(f"about: a test\n{scenario}\n")
    done = export(folder / "h.csv", hours, scenario=str(file), onset_hours=onset_hours)
    with done.file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_speculative_tokens": 3},
        {"api_servers": 2},
        {"hidden_metrics": ["vllm:iteration_tokens_total", "vllm:kv_cache_usage_perc"]},
        {"renamed_metrics": {"vllm:num_requests_waiting": "vllm:waiting"}},
        {"hidden_metrics": ["vllm:request_success_total", "vllm:engine_sleep_state"]},
    ],
)
def test_a_page_in_virtual_time_is_what_the_daemons_parser_reads_on_the_printed_page(
    settings: dict[str, Any],
) -> None:
    world = make_world(["h100"])
    for name, value in {"traffic.rate_per_s": 2.0, **settings}.items():
        world.set(name, value)
    world.advance(60.0)
    parsed = parse_page(metrics_page(world, HttpCounts()), NOW)
    assert replace(parsed, cache_config=None, model_name=None) == replace(read_page(world), at=NOW)


def test_a_page_that_cannot_be_read_at_the_cap_decides_nothing_before_a_hang_would_show(
    tmp_path: Path,
) -> None:
    story = (
        "base: {batch.clients: 30, max_num_seqs: 4}\n"
        "timeline: [{at: 1s, set: {metrics_status: 404}}]"
    )
    rows = samples(tmp_path, story, 0.2, 0.1)
    out = [row for row in rows if "2026-01-05T00:05:50" < row["started_at"] < "2026-01-05T00:06:01"]
    hidden = [
        row for row in rows if row["started_at"] > "2026-01-05T00:06:30" and row["phase"] != "cold"
    ]
    capped = {"chat-short", "coding", "extraction-json", "chat-history"}
    assert [(row["outcome"], round(float(row["e2e_ms"]) / 1000)) for row in out] == [
        ("timeout", 12)
    ]
    # without a counter from the beginning the cap is all there is
    assert {(row["outcome"], row["e2e_ms"]) for row in hidden if row["probe"] in capped} == {
        ("timeout", "2000.0")
    }


def test_an_answer_that_does_not_end_is_cut_off_after_its_timeout(tmp_path: Path) -> None:
    rows = samples(tmp_path, "timeline: [{at: 0s, set: {kernel_slow_factor: 500.0}}]", 0.5, 0.1)
    slow = [
        row
        for row in rows
        if row["probe"] == "decode-fixed" and row["started_at"] > "2026-01-05T00:06:30"
    ]
    assert slow
    for row in slow:
        assert row["outcome"] == "timeout"
        first_s, whole_s = float(row["ttft_ms"]) / 1000, float(row["e2e_ms"]) / 1000
        assert first_s < 10.0
        assert whole_s - first_s == pytest.approx(300.0, abs=3.0)


def test_no_second_run_follows_a_first_one_that_failed(tmp_path: Path) -> None:
    rows = samples(tmp_path, "timeline: [{at: 0s, set: {frozen: true}}]", 1.5, 0.4)
    pairs = [row for row in rows if row["probe"].startswith("prefix-pair")]
    assert [(row["probe"], row["outcome"]) for row in pairs] == [
        ("prefix-pair", "ok"),
        ("prefix-pair-again", "ok"),
        ("prefix-pair", "hung"),
        ("prefix-pair", "hung"),
    ]


def test_without_times_in_the_answer_they_come_from_the_metrics_page(tmp_path: Path) -> None:
    rows = samples(tmp_path, "base: {per_request_metrics: false}", 0.2, 0.1)
    told = [row for row in rows if row["outcome"] == "ok"]
    assert {row["server_timing"] for row in told} == {"metrics"}
    assert all(float(row["decode_ms"]) > 0 for row in told if row["probe"] == "decode-fixed")


def test_a_server_that_refuses_gives_no_times_and_no_gpu(tmp_path: Path) -> None:
    rows = samples(tmp_path, "timeline: [{at: 0s, set: {restart: 1000}}]", 0.3, 0.1)
    refused = [row for row in rows if row["outcome"] == "refused"]
    assert refused
    for row in refused:
        assert {row[name] for name in ("connect_ms", "e2e_ms", "gpu_uuid", "energy_j")} == {""}
