"""Several GPUs: which of them a trouble is named after, since when, and which of them share
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.judge.drift.evidence import (
    Effect,
    GpuComparison,
    GpuWarning,
    Observations,
    Pair,
    Shift,
)
from monitor.judge.drift.problem.findings import finding_of
from monitor.judge.drift.problem.problem import Observed, Problem
from monitor.judge.drift.problem.problems import judge
from monitor.judge.drift.settings import HOUR_US, MINUTE_US
from monitor.model import Cause, Severity

NOW_US = 1_700_000_000_000_000
HOT = {"cause": Cause.HEAT.value}


def hot(
    uuid: str, minutes_ago: float, severity: Severity = Severity.WARNING, sign: str = "thermal_duty"
) -> GpuWarning:
    since_us = NOW_US - round(minutes_ago * MINUTE_US)
    return GpuWarning(
        sign,
        uuid,
        severity,
        since_us,
        {**HOT, "temp_c": 90.0},
        f"GPU {uuid} is held back. Look at fans.",
    )


def capped(uuid: str, minutes_ago: float) -> GpuWarning:
    return GpuWarning(
        "power_limit",
        uuid,
        Severity.WARNING,
        NOW_US - round(minutes_ago * MINUTE_US),
        {"cause": Cause.POWER_CAP.value},
        "",
    )


def slow(uuid: str, minutes_ago: float) -> GpuWarning:
    return GpuWarning(
        "clock_deficit",
        uuid,
        Severity.WARNING,
        NOW_US - round(minutes_ago * MINUTE_US),
        {},
        f"GPU {uuid} runs slower.",
    )


def opened(*rounds: Sequence[GpuWarning]) -> dict[str, Problem]:
    """What is open after these rounds of warnings, a minute apart."""
    held: dict[str, Problem] = {}
    for number, warnings in enumerate(rounds):
        held = {
            trouble.name: trouble
            for trouble in judge(
                Observed({}, {}, warnings, Observations({}, ())), held, NOW_US + number * MINUTE_US
            )
        }
    return held


def told(held: dict[str, Problem]) -> list[tuple[str, float, list[str]]]:
    """Subject, minutes since it began, and GPUs of each."""
    return [
        (t.subject, (NOW_US - t.since_us) / MINUTE_US, t.evidence["gpus"]) for t in held.values()
    ]


def test_gpus_that_fall_ill_within_minutes_are_one_trouble_named_after_the_first() -> None:
    held = opened([hot("GPU-2", 20), hot("GPU-1", 12), hot("GPU-3", 1)])
    assert told(held) == [("GPU-2", 20.0, ["GPU-1", "GPU-2", "GPU-3"])]


def test_a_gpu_that_falls_ill_at_another_time_is_a_trouble_of_its_own() -> None:
    first = [hot("GPU-1", 120)]
    held = opened(first, [*first, hot("GPU-2", 3)])
    assert told(held) == [("GPU-1", 120.0, ["GPU-1"]), ("GPU-2", 3.0, ["GPU-2"])]
    assert len({finding_of(trouble, "box").key for trouble in held.values()}) == 2


def test_a_trouble_goes_on_under_its_name_when_the_other_one_is_over() -> None:
    both = [hot("GPU-1", 120), hot("GPU-2", 3)]
    held = opened(both[:1], both, both[1:])
    assert told(held) == [("GPU-2", 3.0, ["GPU-2"])]
    assert held == {
        name: trouble
        for name, trouble in opened(both[:1], both).items()
        if trouble.subject == "GPU-2"
    }


def test_a_gpu_stays_in_the_trouble_it_is_in_whichever_sign_shows_it() -> None:
    both = [hot("GPU-1", 20), hot("GPU-2", 12)]
    held = opened(both, [both[0], hot("GPU-2", 1, sign="margin")])
    assert told(held) == [("GPU-1", 20.0, ["GPU-1", "GPU-2"])]


def test_of_two_that_were_one_the_second_is_named_with_its_own_beginning_when_the_first_is_well() -> (
    None
):
    both = [hot("GPU-1", 20), hot("GPU-2", 12)]
    held = opened(both, both[1:])
    assert told(held) == [("GPU-2", 12.0, ["GPU-2"])]
    assert held["thermal"].opened_us == NOW_US + MINUTE_US


def test_the_subject_stays_while_its_gpu_is_ill_although_another_is_louder() -> None:
    both = [hot("GPU-1", 20), hot("GPU-2", 12)]
    held = opened(both, [both[0], hot("GPU-2", 12, Severity.PAGE, "hw_thermal")])
    assert (held["thermal"].subject, held["thermal"].severity) == ("GPU-1", Severity.PAGE)


def test_the_gpu_that_a_trouble_is_named_after_is_told_first() -> None:
    held = opened([hot("GPU-2", 20), hot("GPU-1", 12)])
    assert [text.split(" ")[1] for text in held["thermal"].told] == ["GPU-2", "GPU-1"]


def test_a_hot_gpu_and_one_with_a_lower_limit_are_two() -> None:
    held = opened([hot("GPU-1", 5), capped("GPU-2", 5)])
    assert sorted((t.kind, t.subject) for t in held.values()) == [
        ("power", "GPU-2"),
        ("thermal", "GPU-1"),
    ]


def test_a_gpu_that_was_well_for_hours_does_not_return_into_a_trouble_of_others() -> None:
    others = [hot("GPU-1", 300), hot("GPU-2", 299)]
    held = opened(others, others[1:], [others[1], hot("GPU-1", 2)])
    assert told(held) == [("GPU-2", 299.0, ["GPU-2"]), ("GPU-1", 2.0, ["GPU-1"])]


def test_a_low_clock_is_dated_to_the_gpu_that_still_has_it() -> None:
    held = opened(
        [slow("GPU-1", 300)],
        [slow("GPU-1", 300), slow("GPU-2", 10)],
        [slow("GPU-2", 10)],
        [slow("GPU-2", 10)],
    )
    assert told(held) == [("decode", 300.0, ["GPU-2"])]  # one and the same slow target: it goes on
    apart = opened([slow("GPU-1", 300)], [slow("GPU-2", 10)])
    assert told(apart) == [("decode", 10.0, ["GPU-2"])]


def test_what_was_felt_before_any_gpu_said_why_is_what_the_gpu_says_now() -> None:
    felt = Problem(
        "thermal",
        "thermal",
        "GPU-1",
        "warning",
        NOW_US - HOUR_US,
        NOW_US - HOUR_US,
        "heat",
        6.0,
        {"effects": []},
    )
    effect = Effect(
        "decode", Shift("decode_tok_s", -8.0, -9.0, -7.0), NOW_US - HOUR_US, Severity.WARNING
    )
    signs = Observations(
        {"decode": effect},
        (),
        (GpuComparison("GPU-2", sm_clock_mhz=Pair(1980.0, 1700.0)),),
        since_us=NOW_US - HOUR_US,
    )
    (found,) = judge(
        Observed({"decode": effect}, {}, [hot("GPU-2", 2)], signs), {"thermal": felt}, NOW_US
    )
    assert (found.name, found.subject, found.since_us) == ("thermal", "GPU-1", NOW_US - HOUR_US)


def test_one_gpu_is_felt_and_the_other_goes_on() -> None:
    effect = Effect("decode", Shift("decode_tok_s", -8.0, -9.0, -7.0), NOW_US, Severity.WARNING)
    gpus = (
        GpuComparison("GPU-1", sm_clock_mhz=Pair(1980.0, 1980.0)),
        GpuComparison("GPU-2", sm_clock_mhz=Pair(1980.0, 1700.0)),
    )
    both = [hot("GPU-1", 120), hot("GPU-2", 3)]
    held = opened(both[:1], both)
    found = judge(
        Observed(
            {"decode": effect},
            {},
            both,
            Observations({"decode": effect}, (), gpus, since_us=NOW_US),
        ),
        held,
        NOW_US,
    )
    assert sorted((t.subject, t.severity) for t in found) == [
        ("GPU-1", "warning"),
        ("GPU-2", "page"),
    ]
