"""Several GPUs: which of them share a problem, since when, and after which GPU it is named."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.judge.drift.evidence import (
    Effect,
    GpuComparison,
    Observations,
    Pair,
    Shift,
)
from monitor.judge.drift.problem.findings import finding_of
from monitor.judge.drift.problem.problem import Observed, Problem
from monitor.judge.drift.problem.problems import judge
from monitor.judge.drift.settings import HOUR_US, MINUTE_US
from monitor.model import Cause, GpuFigures, GpuWarning, Kind, Severity

NOW_US = 1_700_000_000_000_000


def warning(
    condition: str, uuid: str, minutes_ago: float, cause: Cause, severity: Severity
) -> GpuWarning:
    since_us = NOW_US - round(minutes_ago * MINUTE_US)
    figures = GpuFigures(temp_c=90.0)
    return GpuWarning(condition, uuid, severity, since_us, cause, figures)


def hot(
    uuid: str,
    minutes_ago: float,
    severity: Severity = Severity.WARNING,
    condition: str = "thermal_duty",
) -> GpuWarning:
    return warning(condition, uuid, minutes_ago, Cause.HEAT, severity)


def capped(uuid: str, minutes_ago: float) -> GpuWarning:
    return warning("power_limit", uuid, minutes_ago, Cause.POWER_CAP, Severity.WARNING)


def slow(uuid: str, minutes_ago: float) -> GpuWarning:
    return warning("clock_deficit", uuid, minutes_ago, Cause.UNEXPLAINED, Severity.WARNING)


def opened(*rounds: Sequence[GpuWarning]) -> dict[str, Problem]:
    """What is open after these rounds of warnings, a minute apart."""
    held: dict[str, Problem] = {}
    for number, warnings in enumerate(rounds):
        held = {
            problem.name: problem
            for problem in judge(
                Observed({}, {}, warnings, Observations({}, ())), held, NOW_US + number * MINUTE_US
            )
        }
    return held


def shown(held: dict[str, Problem]) -> list[tuple[str, float, list[str]]]:
    """Subject, minutes since it began, and GPUs of each."""
    return [(t.subject, (NOW_US - t.since_us) / MINUTE_US, sorted(t.gpus)) for t in held.values()]


def test_gpus_that_begin_within_minutes_are_one_problem_named_after_the_first() -> None:
    held = opened([hot("GPU-2", 20), hot("GPU-1", 12), hot("GPU-3", 1)])
    assert shown(held) == [("GPU-2", 20.0, ["GPU-1", "GPU-2", "GPU-3"])]


def test_a_gpu_that_begins_at_another_time_is_a_problem_of_its_own() -> None:
    first = [hot("GPU-1", 120)]
    held = opened(first, [*first, hot("GPU-2", 3)])
    assert shown(held) == [("GPU-1", 120.0, ["GPU-1"]), ("GPU-2", 3.0, ["GPU-2"])]
    assert len({finding_of(problem, "box").key for problem in held.values()}) == 2


def test_a_problem_goes_on_under_its_name_when_the_other_one_is_over() -> None:
    both = [hot("GPU-1", 120), hot("GPU-2", 3)]
    held = opened(both[:1], both, both[1:])
    assert shown(held) == [("GPU-2", 3.0, ["GPU-2"])]
    assert held == {
        name: problem
        for name, problem in opened(both[:1], both).items()
        if problem.subject == "GPU-2"
    }


def test_a_gpu_stays_in_the_problem_it_is_in_whichever_condition_shows_it() -> None:
    both = [hot("GPU-1", 20), hot("GPU-2", 12)]
    held = opened(both, [both[0], hot("GPU-2", 1, condition="margin")])
    assert shown(held) == [("GPU-1", 20.0, ["GPU-1", "GPU-2"])]


def test_when_the_first_of_two_is_well_the_second_has_its_own_name_and_onset() -> None:
    both = [hot("GPU-1", 20), hot("GPU-2", 12)]
    held = opened(both, both[1:])
    assert shown(held) == [("GPU-2", 12.0, ["GPU-2"])]
    assert held["thermal"].opened_us == NOW_US + MINUTE_US


def test_the_subject_stays_while_its_gpu_warns_although_another_is_louder() -> None:
    both = [hot("GPU-1", 20), hot("GPU-2", 12)]
    held = opened(both, [both[0], hot("GPU-2", 12, Severity.PAGE, "hw_thermal")])
    assert (held["thermal"].subject, held["thermal"].severity) == ("GPU-1", Severity.PAGE)


def test_a_hot_gpu_and_one_with_a_lower_limit_are_two() -> None:
    held = opened([hot("GPU-1", 5), capped("GPU-2", 5)])
    assert sorted((t.kind, t.subject) for t in held.values()) == [
        ("power", "GPU-2"),
        ("thermal", "GPU-1"),
    ]


def test_a_gpu_that_was_well_for_hours_does_not_return_into_a_problem_of_others() -> None:
    others = [hot("GPU-1", 300), hot("GPU-2", 299)]
    held = opened(others, others[1:], [others[1], hot("GPU-1", 2)])
    assert shown(held) == [("GPU-2", 299.0, ["GPU-2"]), ("GPU-1", 2.0, ["GPU-1"])]


def test_a_low_clock_is_dated_to_the_gpu_that_still_has_it() -> None:
    held = opened(
        [slow("GPU-1", 300)],
        [slow("GPU-1", 300), slow("GPU-2", 10)],
        [slow("GPU-2", 10)],
        [slow("GPU-2", 10)],
    )
    assert shown(held) == [("decode", 300.0, ["GPU-2"])]  # one and the same slow target: it goes on
    apart = opened([slow("GPU-1", 300)], [slow("GPU-2", 10)])
    assert shown(apart) == [("decode", 10.0, ["GPU-2"])]


def test_what_was_felt_before_any_gpu_said_why_is_what_the_gpu_says_now() -> None:
    effect = Effect(
        "decode", Shift("decode_tok_s", -8.0, -9.0, -7.0), NOW_US - HOUR_US, Severity.WARNING
    )
    felt = Problem(
        name="thermal",
        kind=Kind.THERMAL,
        subject="GPU-1",
        severity=Severity.WARNING,
        since_us=NOW_US - HOUR_US,
        opened_us=NOW_US - HOUR_US,
        cause=Cause.HEAT,
        score=6.0,
        effects=(effect,),
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
