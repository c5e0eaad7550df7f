"""What each scenario does to the figures, against what the model's own parameters say that it must.

Speeds are measured with one request that has the server to itself, before the scenario and after
it; what they must be follows from the cost of a step (costs.py) and the GPU's constants
(gpu/kinds.py). Columns of a history are checked where the story is told in them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from monitor.replay.virtual.export import export
from monitor.simulate.assemble import make_world
from monitor.simulate.engine.costs import EngineConfig
from monitor.simulate.engine.requests import Ending, EngineRequest, Handle
from monitor.simulate.fastforward.world import FastForwardWorld
from monitor.simulate.gpu.gpu import DriverReading, Gpu
from monitor.simulate.scenarios.play import Play
from monitor.simulate.scenarios.scenario import load
from monitor.simulate.traffic.traffic import trace
from monitor.simulate.world import World

NOMINAL = EngineConfig()
PROMPT, ANSWER = 4000, 1200
PARAGRAPH_TOKENS = 100  # at most, of the text that lengthens a prompt
Row = dict[str, str]


# -- one request that has the server to itself


@dataclass(frozen=True)
class Measured:
    """Of one request, and of the GPU while it decoded."""

    prefill_s: float
    step_s: float  # from token to token, on average
    gpu: DriverReading


def ask(world: World, prompt: int, answer: int) -> Handle:
    """A request, to its end."""
    handle = world.submit(EngineRequest("mine", prompt, answer, lambda _: Ending(answer, "length")))
    assert handle is not None
    while not handle.finished:
        world.advance(world.now_s + 1.0)
    return handle


def measured(world: World) -> Measured:
    """On a quiet server whose clocks are up."""
    world.set("traffic.rate_per_s", 0.0)
    while world.engine.running or world.engine.waiting:
        world.advance(world.now_s + 1.0)
    ask(world, 10, 300)
    handle = world.submit(EngineRequest("mine", PROMPT, ANSWER, lambda _: Ending(ANSWER, "length")))
    assert handle is not None
    looks: list[DriverReading] = []
    while not handle.finished:
        world.advance(world.now_s + 0.5)
        world.settle()
        looks.append(gpu_of(world).reading())
    assert handle.scheduled_s is not None
    assert handle.first_s is not None
    assert handle.last_s is not None
    return Measured(
        handle.first_s - handle.scheduled_s,
        (handle.last_s - handle.first_s) / (ANSWER - 1),
        looks[-2],
    )


def gpu_of(world: World) -> Gpu:
    gpu = world.gpus[0]
    assert isinstance(gpu, Gpu)
    return gpu


def told(name: str, seconds: float, gpu: str = "h100") -> tuple[World, Measured, Measured]:
    """A scenario played for so long, and the same server measured before and after it."""
    world = make_world([gpu], 1, kind=FastForwardWorld)
    before = measured(world)
    world.sources.append(Play(load(name, world.settable), world, world.now_s))
    world.advance(world.now_s + seconds)
    return world, before, measured(world)


def read_s() -> float:
    """The GPU's part of a decode step of that request: weights, one sequence, the context half way
    through.
    """
    return (
        NOMINAL.decode_base_s
        + NOMINAL.decode_per_seq_s
        + (PROMPT + ANSWER / 2) * NOMINAL.decode_per_context_s
    )


def power_w(gpu: Gpu, busy: float, dynamic: float = 1.0) -> float:
    """Mean power while it decodes for a share `busy` of the time at full clock."""
    kind = gpu.kind
    return kind.p_idle_w + (kind.p0_w + kind.pd_w * dynamic - kind.p_idle_w) * busy


def test_a_healthy_server_is_as_fast_as_its_parameters_say() -> None:
    world, before, _ = told("calm", 10)
    assert before.step_s == pytest.approx(read_s() + NOMINAL.host_s, rel=1e-3)
    assert before.prefill_s == pytest.approx(
        PROMPT / NOMINAL.prefill_tok_s + NOMINAL.host_s, rel=0.02
    )
    assert before.gpu.power_w == pytest.approx(
        power_w(gpu_of(world), read_s() / before.step_s), rel=0.01
    )


def test_a_kernel_fallback_triples_prefill_and_draws_less_power_at_the_same_clock() -> None:
    world, before, after = told("kernel-fallback", 60)
    slow, prefill, dynamic = (
        world.get("kernel_slow_factor"),
        world.get("prefill_slow_factor"),
        gpu_of(world).kernel_power,
    )
    assert (slow, prefill, dynamic) == (1.12, 3.0, 0.75)
    # of a decode step only the GPU's part is slower
    assert after.step_s == pytest.approx(slow * read_s() + NOMINAL.host_s, rel=1e-3)
    assert after.prefill_s / before.prefill_s == pytest.approx(slow * prefill, rel=0.03)
    assert after.gpu.sm_clock_mhz == before.gpu.sm_clock_mhz == 1980
    assert after.gpu.power_w == pytest.approx(
        power_w(gpu_of(world), slow * read_s() / after.step_s, dynamic), rel=0.01
    )
    assert after.gpu.power_w < 0.85 * before.gpu.power_w
    assert after.gpu.event_reasons == 0


def test_a_busy_host_adds_its_delay_to_every_step_and_the_gpu_idles_meanwhile() -> None:
    world, before, after = told("host-bound", 700)
    assert after.step_s - before.step_s == pytest.approx(0.004, rel=0.01)
    assert after.prefill_s - before.prefill_s == pytest.approx(0.004, rel=0.05)
    assert after.gpu.util == pytest.approx(read_s() / after.step_s, abs=0.015)
    assert before.gpu.util - after.gpu.util > 0.25
    assert after.gpu.power_w == pytest.approx(
        power_w(gpu_of(world), read_s() / after.step_s), rel=0.02
    )
    assert after.gpu.sm_clock_mhz == before.gpu.sm_clock_mhz


def test_a_driver_that_costs_four_per_cent_costs_four_per_cent_of_the_gpus_part() -> None:
    world, before, after = told("driver-update", 60)
    assert after.step_s == pytest.approx(1.04 * read_s() + NOMINAL.host_s, rel=1e-3)
    assert (after.prefill_s - NOMINAL.host_s) / (
        before.prefill_s - NOMINAL.host_s
    ) == pytest.approx(1.04, rel=0.01)
    assert (before.gpu.driver_version, after.gpu.driver_version) == ("580.95.05", "590.44.01")
    assert world.engine.started_s > 0
    assert after.gpu.sm_clock_mhz == before.gpu.sm_clock_mhz


def test_weights_of_four_bits_take_three_quarters_of_the_gpus_time() -> None:
    world, _, after = told("int4", 60)
    assert after.step_s == pytest.approx(0.75 * read_s() + NOMINAL.host_s, rel=1e-3)
    assert world.answers == "int4"


def test_new_weights_are_as_fast_as_the_old_ones() -> None:
    world, before, after = told("new-weights", 60)
    assert after.step_s == pytest.approx(before.step_s, rel=1e-3)
    assert world.answers == "new-weights"


def test_a_neighbour_leaves_us_the_rest_of_the_gpus_time_and_shows_in_use_power_and_memory() -> (
    None
):
    world, before, after = told("new-neighbour", 10)
    share = gpu_of(world).neighbour
    assert after.step_s == pytest.approx(read_s() / (1 - share) + NOMINAL.host_s, rel=2e-3)
    assert (after.prefill_s - NOMINAL.host_s) / (
        before.prefill_s - NOMINAL.host_s
    ) == pytest.approx(1 / (1 - share), rel=0.02)
    assert after.gpu.sm_clock_mhz == before.gpu.sm_clock_mhz
    assert (after.gpu.vram_used_mib or 0) - (before.gpu.vram_used_mib or 0) == 4000
    world.advance(world.now_s + 120)
    world.settle()
    idle = gpu_of(world).reading()
    assert idle.util == pytest.approx(share, abs=0.01)
    assert idle.power_w == pytest.approx(power_w(gpu_of(world), share), rel=0.01)


def test_every_hour_since_the_start_makes_steps_half_a_per_cent_longer_until_a_restart() -> None:
    world, _, after = told("uptime-decay", 8 * 3600)
    hours = (world.now_s - world.engine.started_s) / 3600
    assert after.step_s == pytest.approx((1 + 0.005 * hours) * read_s() + NOMINAL.host_s, rel=1e-3)
    world.restart()
    assert measured(world).step_s == pytest.approx(read_s() + NOMINAL.host_s, rel=1e-3)


def test_drafts_that_are_taken_less_often_bring_fewer_tokens_a_step() -> None:
    def step_s(acceptance: float) -> float:
        """From token to token: a step costs its drafts whether they are taken or not."""
        drafts = 3 * (NOMINAL.draft_share * NOMINAL.decode_base_s + NOMINAL.decode_per_seq_s)
        return (read_s() + drafts + NOMINAL.host_s) / sum(acceptance**taken for taken in range(4))

    world = make_world(["h100"], 1, kind=FastForwardWorld)
    world.sources.append(Play(load("speculation-falls", world.settable), world, world.now_s + 300))
    for moment_s, acceptance in ((60, 0.8), (2400, 0.3)):
        world.advance(moment_s)
        assert world.get("spec_acceptance") == pytest.approx(acceptance)
        counters = world.engine.counters
        drafted, accepted = (
            counters.spec_decode_num_draft_tokens,
            counters.spec_decode_num_accepted_tokens,
        )
        world.set("traffic.rate_per_s", 0.2)
        assert mean(measured(world).step_s for _ in range(3)) == pytest.approx(
            step_s(acceptance), rel=0.03
        )
        drafted, accepted = (
            counters.spec_decode_num_draft_tokens - drafted,
            counters.spec_decode_num_accepted_tokens - accepted,
        )
        assert accepted / drafted == pytest.approx(
            (acceptance + acceptance**2 + acceptance**3) / 3, rel=0.04
        )


# -- what others do


def test_longer_prompts_are_four_times_as_long_as_far_as_the_context_allows() -> None:
    def mean_prompt(factor: float) -> float:
        return mean(
            min(round(row.prompt_tokens * factor), 8192 - row.output_tokens) for row in trace()
        )

    world = make_world(["h100"], 1, kind=FastForwardWorld)
    world.sources.append(Play(load("longer-prompts", world.settable), world, 6 * 3600))
    seen = []
    for begin_s, end_s in ((0, 6 * 3600), (7 * 3600, 13 * 3600)):
        world.advance(begin_s)
        counters = world.engine.counters
        tokens, requests = counters.prompt_tokens, sum(counters.request_success.values())
        world.advance(end_s)
        seen.append(
            (counters.prompt_tokens - tokens) / (sum(counters.request_success.values()) - requests)
        )
    assert seen == [
        pytest.approx(mean_prompt(1.0), rel=0.05),
        pytest.approx(mean_prompt(4.0), rel=0.05),
    ]


def test_more_clients_than_places_wait_and_the_server_does_what_six_places_can() -> None:
    world = make_world(["h100"], 1, kind=FastForwardWorld)
    world.sources.append(Play(load("more-clients", world.settable), world))
    world.advance(600)
    assert world.engine.waiting == 0
    world.advance(2 * 3600)
    counters, queue = world.engine.counters, world.engine.waiting
    tokens, requests = counters.generation_tokens, sum(counters.request_success.values())
    world.advance(3 * 3600)
    # A request: its prompt takes a step to itself, in which the others get a token, and its tokens
    # come six at a time.
    prompt, output = (
        mean(row.prompt_tokens for row in trace()),
        mean(row.output_tokens for row in trace()),
    )
    context_s = 6 * (prompt + output / 2) * NOMINAL.decode_per_context_s
    step_s = NOMINAL.decode_base_s + 6 * NOMINAL.decode_per_seq_s + context_s + NOMINAL.host_s
    longer_s = mean(
        max(0.0, row.prompt_tokens / NOMINAL.prefill_tok_s - NOMINAL.decode_base_s)
        for row in trace()
    )
    served_per_s = 1 / (output / 6 * step_s + longer_s)
    assert served_per_s < 2.5  # and so many come
    assert (sum(counters.request_success.values()) - requests) / 3600 == pytest.approx(
        served_per_s, rel=0.07
    )
    assert (counters.generation_tokens - tokens) / 3600 == pytest.approx(
        served_per_s * output, rel=0.07
    )
    assert world.engine.waiting > queue > 0
    assert world.engine.running == 6


# -- what the daemon would have stored


def history(
    folder: Path, scenario: str, hours: float, onset: float
) -> tuple[list[Row], list[Row], str]:
    done = export(folder / f"{scenario}.csv", hours, scenario=scenario, onset_hours=onset)
    with done.file.open(newline="") as samples, done.readings_file.open(newline="") as readings:
        return list(csv.DictReader(samples)), list(csv.DictReader(readings)), done.onset


def rates(rows: list[Row], when: Callable[[Row], bool]) -> float:
    """The decode rate of the fixed-length probe when it had the server to itself."""
    kept = [
        r
        for r in rows
        if r["probe"] == "decode-fixed"
        and r["phase"] == "warm"
        and r["other_generation_tokens"] in {"0", "0.0"}
    ]
    return median(float(row["decode_tok_s"]) for row in kept if when(row))


@pytest.mark.parametrize(
    ("scenario", "change"),
    [
        ("kernel-fallback", {"kernel_slow_factor": 1.12}),
        ("driver-update", {"kernel_slow_factor": 1.04}),
        ("int4", {"kernel_slow_factor": 0.75}),
        ("new-weights", {}),
        ("shorter-context", {}),
    ],
)
def test_the_decode_rate_of_a_history_falls_by_what_the_step_grows_and_a_restart_shows(
    scenario: str, change: dict[str, Any], tmp_path: Path
) -> None:
    samples, _, onset = history(tmp_path, scenario, 3.0, 1.5)
    gpu_s = NOMINAL.decode_base_s + NOMINAL.decode_per_seq_s
    expected = (gpu_s + NOMINAL.host_s) / (
        gpu_s * change.get("kernel_slow_factor", 1.0) + NOMINAL.host_s
    )
    found = rates(samples, lambda row: row["started_at"] > onset) / rates(
        samples, lambda row: row["started_at"] < onset
    )
    assert found == pytest.approx(expected, rel=0.01)
    starts = [row["process_start"] for row in samples if row["process_start"]]
    assert len(set(starts)) == 2
    refused = [row for row in samples if row["outcome"] == "refused"]
    assert refused
    # `restart: 30`
    assert all(0 <= seconds(row["started_at"]) - seconds(onset) <= 30 for row in refused)
    digests = {row["fingerprint"] for row in samples}
    # the others show nothing to the outside
    assert len(digests) == (2 if scenario in {"driver-update", "shorter-context"} else 1)


def seconds(iso: str) -> float:
    hour, minute, second = iso[11:-1].split(":")
    return int(hour) * 3600 + int(minute) * 60 + float(second)


def test_half_the_context_is_half_a_long_prompt_and_its_wait(tmp_path: Path) -> None:
    samples, _, onset = history(tmp_path, "shorter-context", 6.0, 3.0)
    long = [row for row in samples if row["probe"] == "long-context" and row["outcome"] == "ok"]
    before, after = (
        [row for row in long if (row["started_at"] > onset) is late] for late in (False, True)
    )
    lengths = [{int(row["prompt_tokens"]) for row in rows} for rows in (before, after)]
    ((long_tokens,), (half_tokens,)) = lengths
    # at most 4000 tokens, or half of the context, in whole paragraphs
    assert 4000 - PARAGRAPH_TOKENS < long_tokens <= 4000
    assert 2048 - PARAGRAPH_TOKENS < half_tokens <= 2048
    quickest = [min(float(row["prefill_ms"]) for row in rows) for rows in (before, after)]
    assert quickest[1] / quickest[0] == pytest.approx(half_tokens / long_tokens, rel=0.1)


def test_a_hidden_page_hides_the_load_and_nothing_else(tmp_path: Path) -> None:
    samples, readings, onset = history(tmp_path, "metrics-gone", 2.0, 1.0)
    pages = [row for row in readings if row["kind"] == "server"]
    assert {(row["state"], row["running"] == "") for row in pages if row["at"] < onset} == {
        ("ok", False)
    }
    assert {
        (row["state"], row["engine_steps"], row["running"]) for row in pages if row["at"] > onset
    } == {("http_error", "", "")}
    after = [row for row in samples if row["started_at"] > onset]
    assert {row["outcome"] for row in after} == {"ok"}
    assert {
        row[field]
        for row in after
        for field in ("running", "waiting", "kv_usage", "other_generation_tokens")
    } == {""}
    assert len({row["process_start"] for row in samples}) == 1  # the last one known, as in a daemon
    assert {row["gpu_uuid"] != "" for row in after} == {True}
    fixed = [row for row in samples if row["probe"] == "decode-fixed" and row["phase"] != "cold"]
    quick = [
        median(sorted(float(r["decode_tok_s"]) for r in fixed if (r["started_at"] > onset) is late))
        for late in (False, True)
    ]
    assert quick[1] == pytest.approx(quick[0], rel=0.02)


def test_renamed_metrics_are_unknown_and_the_others_go_on(tmp_path: Path) -> None:
    samples, readings, onset = history(tmp_path, "renamed-metrics", 2.0, 1.0)
    pages = [row for row in readings if row["kind"] == "server"]
    after = [row for row in pages if row["at"] > onset]
    assert {(row["state"], row["waiting"], row["engine_steps"]) for row in after} == {
        ("ok", "", "")
    }
    assert all(row["waiting"] and row["engine_steps"] for row in pages if row["at"] < onset)
    tokens = [float(row["generation_tokens"]) for row in after]
    assert all(a <= b for a, b in pairwise(tokens))
    assert tokens[-1] > tokens[0]
    late = [row for row in samples if row["started_at"] > onset]
    assert {row["waiting"] for row in late} == {""}
    assert all(row["running"] for row in late)
    assert {row["outcome"] for row in late} == {"ok"}


def test_falling_speculation_stands_in_its_column(tmp_path: Path) -> None:
    samples, _, onset = history(tmp_path, "speculation-falls", 1.5, 0.5)
    fixed = [row for row in samples if row["probe"] == "decode-fixed" and row["spec_acceptance"]]
    before = [float(row["spec_acceptance"]) for row in fixed if row["started_at"] < onset]
    after = [
        float(row["spec_acceptance"])
        for row in fixed
        if seconds(row["started_at"]) > seconds(onset) + 1800
    ]
    assert mean(before) == pytest.approx((0.8 + 0.64 + 0.512) / 3, abs=0.03)
    assert mean(after) == pytest.approx((0.3 + 0.09 + 0.027) / 3, abs=0.03)
