"""Before and after a change of configuration."""

from __future__ import annotations

import random
from itertools import islice
from math import erfc
from statistics import median

import pytest
from healthy import DAY, HOUR, SETTINGS, START_US, canaries, step
from pydantic import TypeAdapter

from monitor.judge.drift.settings import MINUTE_US
from monitor.judge.drift.speed.change_window import ChangeComparison, ChangeWindow
from monitor.judge.drift.stats.rank import hodges_lehmann, rank_test

CHANGE = 6 * HOUR


def mixed(minute: int) -> float:
    return float(random.Random(f"load {minute}").choice([0, 1, 4, 8]))


def compared(
    share: float = 1.0, wait: float = 1.0, minutes: int = 60, **kind: object
) -> dict[str, ChangeComparison]:
    window = ChangeWindow()
    for point in canaries(range(CHANGE), running=mixed):
        window.canary(point)
    assert window.compare(SETTINGS) == []
    after = range(CHANGE, CHANGE + minutes)
    running = kind.get("running", mixed)
    assert callable(running)
    for point in canaries(
        after, factor=step(0, share), wait_factor=step(0, wait), running=running, fingerprint="two"
    ):
        window.canary(point)
    return {c.channel: c for c in window.compare(SETTINGS)}


@pytest.mark.parametrize(("share", "verdict"), [(0.95, "slower"), (1.06, "faster"), (1.0, "same")])
def test_what_became_of_the_decode_rate_is_told_with_an_interval(
    share: float, verdict: str
) -> None:
    decode = compared(share)["decode"]
    assert decode.verdict == verdict and decode.shift is not None
    assert decode.shift.low_pct <= 100 * (share - 1) <= decode.shift.high_pct
    assert decode.shift.high_pct - decode.shift.low_pct < 5


def test_decode_and_first_token_are_compared_apart() -> None:
    found = compared(wait=1.6)
    assert {name for name, c in found.items() if c.verdict == "slower"} == {"ttft"}
    shift = found["ttft"].shift
    assert (
        shift is not None
        and shift.change_pct == pytest.approx(60, abs=8)
        and found["decode"].verdict == "same"
    )


def test_more_load_after_the_change_is_no_slowness() -> None:
    assert compared(running=lambda m: 8.0)["decode"].verdict == "same"


def test_a_load_that_was_not_met_before_says_nothing() -> None:
    decode = compared(running=lambda m: 60.0)["decode"]
    assert (decode.verdict, decode.shift, decode.after) == ("not enough yet", None, 0)


def test_a_few_canaries_are_not_enough_yet() -> None:
    assert compared(0.8, minutes=8)["decode"].verdict == "not enough yet"


def test_a_first_configuration_is_no_change() -> None:
    window = ChangeWindow()
    for point in canaries(range(30)):
        window.canary(point)
    assert window.change is None


def test_what_was_before_stays_as_it_was() -> None:
    window = ChangeWindow()
    for point in canaries(range(CHANGE)):
        window.canary(point)
    for point in canaries(range(CHANGE, CHANGE + 300), factor=step(0, 0.9), fingerprint="two"):
        window.canary(point)
    assert window.change is not None
    assert max(kept.known_us for kept in window.change.before) < START_US + CHANGE * MINUTE_US


def test_a_second_change_before_anything_is_known_compares_with_what_was_before_both() -> None:
    window = ChangeWindow()
    for point in canaries(range(CHANGE)):
        window.canary(point)
    for number, minutes in enumerate((range(CHANGE, CHANGE + 3), range(CHANGE + 3, CHANGE + 60))):
        for point in canaries(minutes, factor=step(0, 0.9), fingerprint=f"new {number}"):
            window.canary(point)
    assert {c.channel: c.verdict for c in window.compare(SETTINGS)}["decode"] == "slower"


def test_a_comparison_is_over_after_a_day() -> None:
    window = ChangeWindow()
    for point in canaries(range(CHANGE)):
        window.canary(point)
    last = next(islice(canaries(range(CHANGE, CHANGE + 1), fingerprint="two"), 1))
    window.canary(last)
    window.advance(last.known_us + DAY * MINUTE_US // 2)
    assert window.change is not None
    window.advance(last.known_us + 2 * DAY * MINUTE_US)
    assert window.change is None


def test_hodges_lehmann_is_the_median_of_all_differences() -> None:
    before, after = [1.0, 4.0, 2.5], [3.0, 7.0]
    estimate, half = hodges_lehmann([(before, after)])
    assert estimate == median([a - b for b in before for a in after])
    assert half >= 0


def test_the_interval_of_the_shift_holds_the_truth_nineteen_times_in_twenty() -> None:
    draw, inside = random.Random(4), 0
    for _ in range(300):
        strata = [
            ([draw.gauss(k, 1) for _ in range(20)], [draw.gauss(k - 0.5, 1) for _ in range(10)])
            for k in (0, 5)
        ]
        estimate, half = hodges_lehmann(strata)
        inside += abs(estimate + 0.5) <= half
    assert inside / 300 >= 0.92


def test_the_rank_test_is_right_about_nothing_and_about_something() -> None:
    draw = random.Random(5)
    alike = [
        rank_test([([draw.random() for _ in range(15)], [draw.random() for _ in range(10)])])
        for _ in range(400)
    ]
    assert sum(p < 0.05 for p in alike) / 400 == pytest.approx(0.05, abs=0.03)
    assert rank_test([([1.0, 2.0, 3.0] * 5, [5.0, 6.0] * 5)]) < 1e-4
    assert rank_test([]) == 1.0


def test_the_rank_test_of_one_stratum_is_mann_and_whitneys() -> None:
    before, after = [1.0, 2.0, 3.0, 4.0], [2.5, 5.0, 6.0]
    z = abs(10 - 6) / (4 * 3 * 8 / 12) ** 0.5  # U = 10 of 12, mean 6
    assert rank_test([(before, after)]) == pytest.approx(erfc(z / 2**0.5))


def test_a_dump_in_the_middle_changes_nothing() -> None:
    adapter, window = TypeAdapter(ChangeWindow), ChangeWindow()
    for point in canaries(range(50)):
        window.canary(point)
    for point in canaries(range(50, 80), fingerprint="two"):
        window.canary(point)
    assert adapter.validate_json(adapter.dump_json(window)) == window


def test_what_is_kept_is_bounded() -> None:
    window = ChangeWindow()
    for point in canaries(range(2 * CHANGE), running=mixed, probes=tuple("abcd")):
        changed = "two" if point.at_us >= START_US + CHANGE * MINUTE_US else "one"
        window.canary(point._replace(fingerprint=changed))
    assert len(TypeAdapter(ChangeWindow).dump_json(window)) < 200_000
