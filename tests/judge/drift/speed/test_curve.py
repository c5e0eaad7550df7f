"""The load curve: what a probe shows at a load, where that is known, and how it is learnt and
refined.
"""

from __future__ import annotations

import math
import random

import pytest

from monitor.judge.drift.speed.curve import LoadCurve
from monitor.judge.drift.speed.curve_fit import add_missing, fit_curve, refine
from monitor.judge.drift.speed.load import EngineLoad, decode_load, wait_load
from monitor.judge.drift.speed.training import TrainingPoint, TrainingSet
from monitor.judge.drift.stats.regression import weighted_parabola
from monitor.model import CanaryPoint


def entry(
    block: int,
    running: int,
    key: int = 0,
    noise: float = 0.01,
    seed: int = 0,
    prompts: float | None = None,
) -> TrainingPoint:
    draw = random.Random(f"{seed} {block} {running} {key} {prompts}")
    value = (
        (4.0, 5.0)[key] - math.log1p(0.05 * running) - 0.1 * (prompts or 0.0) + draw.gauss(0, noise)
    )
    return TrainingPoint(block, key, math.log1p(running), prompts, value)


def learnt(entries: list[TrainingPoint], least: int = 60) -> LoadCurve:
    training = TrainingSet()
    for one in entries:
        training.add(one)
    curve = fit_curve(training, least)
    assert curve is not None
    return curve


def value(curve: LoadCurve, running: float, key: int = 0, prompts: float | None = None) -> float:
    expected = curve.expected(key, EngineLoad(math.log1p(running), prompts))
    assert expected is not None
    return expected.value


BUSY = [
    entry(b, random.Random(b).choice([0, 1, 2, 4, 6, 8, 11, 15, 20]), seed=i)
    for b in range(400)
    for i in range(5)
]


@pytest.mark.parametrize("running", [0, 2, 6, 15, 20])
def test_the_curve_is_learnt_to_a_few_tenths_of_a_per_cent(running: int) -> None:
    assert value(learnt(BUSY), running) == pytest.approx(
        4.0 - math.log1p(0.05 * running), abs=0.006
    )


def test_a_load_that_was_not_met_often_enough_is_not_known() -> None:
    curve = learnt([*BUSY, *(entry(b, 60) for b in range(59))])
    assert curve.expected(0, EngineLoad(math.log1p(60), None)) is None
    assert curve.expected(0, EngineLoad(math.log1p(90), None)) is None


def test_a_probe_that_was_never_met_is_not_known() -> None:
    assert learnt(BUSY).expected(7, EngineLoad(0.0, None)) is None


def test_two_probes_share_the_curve_and_have_levels_of_their_own() -> None:
    curve = learnt([*BUSY, *(entry(b, 0, key=1) for b in range(200))])
    assert value(curve, 8, key=1) - value(curve, 8, key=0) == pytest.approx(1.0, abs=0.006)


def test_prompts_of_others_have_a_curve_of_their_own() -> None:
    entries = [
        entry(b, b % 6, prompts=(0.0, 1.0, 2.0)[b // 6 % 3], seed=i)
        for b in range(400)
        for i in range(4)
    ]
    curve = learnt(entries)
    assert value(curve, 3, prompts=2.0) - value(curve, 3, prompts=0.0) == pytest.approx(
        -0.2, abs=0.01
    )


def test_noise_is_learnt_by_load_and_without_the_slow_wander() -> None:
    draw, entries = random.Random(3), []
    for block in range(600):
        slow, running = 0.03 * math.sin(block / 50), block % 2 * 15
        for i in range(5):
            one = entry(block, running, noise=0.0, seed=i)
            entries.append(
                one._replace(value=one.value + slow + draw.gauss(0, 0.02 if running else 0.005))
            )
    curve = learnt(entries)
    quiet, loud = (
        curve.expected(0, EngineLoad(0.0, None)),
        curve.expected(0, EngineLoad(math.log1p(15), None)),
    )
    assert quiet is not None and quiet.noise == pytest.approx(0.005, rel=0.2)
    assert loud is not None and loud.noise == pytest.approx(0.02, rel=0.2)


def test_common_loads_are_thinned_and_rare_ones_kept() -> None:
    training = TrainingSet()
    for block in range(3000):
        training.add(entry(block, 0))
        if block % 60 == 0:
            training.add(entry(block, 20))
    rare = [e for e in training.points() if e.peers == math.log1p(20)]
    assert training.size <= 1440 and len(rare) == 50
    assert sum(training.weight(e) for e in training.points()) == pytest.approx(3050, rel=0.02)


def test_a_probe_that_runs_in_every_second_block_is_not_thinned_out_whole() -> None:
    training = TrainingSet()
    for block in range(3000):
        training.add(entry(block, 0, key=block % 2))
    assert {e.key for e in training.points()} == {0, 1}


def test_deviations_refine_a_curve_that_was_learnt_badly() -> None:
    curve = learnt(BUSY)
    off = curve.peers["16"] = curve.peers["16"]._replace(
        height=curve.peers["16"].height + 0.02, seen=curve.peers["16"].seen + 0.02
    )
    draw = random.Random(4)
    truth, zero = off.height - 0.02, curve.peers["0"].height
    for _ in range(4):
        for _ in range(3000):
            expected = curve.expected(0, EngineLoad(off.at, None))
            assert expected is not None
            left = (
                draw.gauss(0, 0.01)
                + truth
                - zero
                - (expected.value - curve.levels["0"] - curve.peers["0"].height)
            )
            curve.observe(
                0, EngineLoad(off.at, None), left / 2, expected.noise
            )  # its block's mean lies between the two
            curve.observe(0, EngineLoad(0.0, None), draw.gauss(0, 0.01) - left / 2, 0.01)
        refine(curve)
    assert curve.peers["16"].height - curve.peers["0"].height == pytest.approx(
        truth - zero, abs=0.005
    )


def test_a_load_that_comes_up_later_is_learnt_then() -> None:
    curve, training = learnt(BUSY), TrainingSet()
    before = value(curve, 6)
    for block in range(1000, 1080):
        training.add(entry(block, 40))
    add_missing(curve, training, 60)
    assert value(curve, 40) == pytest.approx(4.0 - math.log1p(2.0), abs=0.012)
    assert value(curve, 6) == pytest.approx(before, abs=0.002)
    assert training.size == 0


def test_mates_are_told_by_the_tokens_generated_for_others_beside_ours() -> None:
    p = CanaryPoint(
        0,
        1,
        decode_tok_s=64.0,
        completion_tokens=65.0,
        e2e_ms=1000.0,
        other_generation_tokens=195.0,
        running=9.0,
    )
    assert decode_load(p).peers == pytest.approx(math.log1p(3.0))


def test_a_slower_gpu_changes_no_load() -> None:
    fast = CanaryPoint(0, 1, decode_tok_s=64.0, completion_tokens=65.0, e2e_ms=1000.0)
    fast = fast._replace(other_generation_tokens=195.0, other_prompt_tokens=640.0)
    slow = fast._replace(decode_tok_s=32.0, e2e_ms=2000.0)
    assert decode_load(fast) == decode_load(slow)


def test_without_counters_the_requests_running_before_tell_the_load() -> None:
    assert decode_load(CanaryPoint(0, 1, running=4.0)).peers == pytest.approx(math.log1p(4.0))
    assert decode_load(CanaryPoint(0, 1)) == EngineLoad(None, None)


def test_what_waits_is_no_load_where_the_time_in_the_queue_is_known() -> None:
    assert wait_load(CanaryPoint(0, 1, running=0.0, waiting=3.0, queue_ms=80.0)).prompts is None
    assert wait_load(CanaryPoint(0, 1, running=0.0, waiting=3.0)).prompts == pytest.approx(
        math.log1p(3.0)
    )


def test_a_parabola_through_points_of_a_parabola_is_exact() -> None:
    x = [-2.0, -1.0, 0.5, 1.5, 3.0]
    assert weighted_parabola(
        x, [3 + 2 * v - v * v for v in x], [1.0, 2.0, 1.0, 5.0, 1.0]
    ) == pytest.approx(3.0)
    assert weighted_parabola([1.0, 1.0], [4.0, 6.0], [1.0, 1.0]) == pytest.approx(5.0)
