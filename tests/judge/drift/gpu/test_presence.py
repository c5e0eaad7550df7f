"""A GPU that was taken out, and one that is only silent."""

from __future__ import annotations

from simulated_gpu import HEALTHY, SETTINGS, START_US, GpuHistory, conditions_of, feed

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.presence import check_others
from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US

WEEK_US = 7 * DAY_US


def throttled() -> tuple[GpuChannel, int]:
    """A GPU that is held back by heat, and when it was last seen."""
    story = GpuHistory().play(1.0).play(0.3, thermal=0.9)
    return story.channel(), story.points[-1].at_us


def without(
    gpus: dict[str, GpuChannel], begin_us: int, hours: int, every_us: int = 5 * MINUTE_US
) -> list[str]:
    """So many hours in which only GPU-2 is polled; which GPUs are to be forgotten in the end."""
    forget: list[str] = []
    present = gpus.setdefault("GPU-2", GpuChannel("GPU-2"))
    for at_us in range(begin_us, begin_us + hours * HOUR_US, every_us):
        if at_us >= present.presence.check_us:
            forget = check_others(gpus, present.presence, at_us, WEEK_US)
        present.gpu(HEALTHY._replace(at_us=at_us, uuid="GPU-2"), SETTINGS)
        for gpu in gpus.values():
            gpu.advance(at_us, SETTINGS)
    return forget


def test_a_gpu_that_was_taken_out_is_over_after_a_day_in_which_others_were_polled() -> None:
    gone, last_us = throttled()
    gpus = {"GPU-1": gone}
    without(gpus, last_us, 23)
    assert conditions_of(gone) == ["thermal_duty"]
    without(gpus, last_us + 23 * HOUR_US, 2)
    assert conditions_of(gone) == []


def test_meanwhile_its_warning_has_the_time_when_it_was_last_seen() -> None:
    gone, last_us = throttled()
    (now,) = gone.warnings(SETTINGS)
    assert now.not_seen_since_us is None
    without({"GPU-1": gone}, last_us, 3)
    (later,) = gone.warnings(SETTINGS)
    assert later.not_seen_since_us == last_us


def test_where_nobody_was_polled_silence_closes_nothing() -> None:
    gone, last_us = throttled()
    gpus = {"GPU-1": gone}
    without(gpus, last_us, 2)
    without(gpus, last_us + 30 * DAY_US, 2)  # the monitor was off for a month
    assert conditions_of(gone) == ["thermal_duty"]


def test_samples_that_name_the_worst_gpu_say_nothing_about_the_others() -> None:
    quiet, _ = throttled()
    worst = GpuChannel("GPU-2")
    for hour in range(48):
        assert (
            check_others(
                {"GPU-1": quiet, "GPU-2": worst},
                worst.presence,
                START_US + (2 + hour) * HOUR_US,
                WEEK_US,
            )
            == []
        )
        worst.presence.note(START_US + (2 + hour) * HOUR_US, polled=False)
    assert conditions_of(quiet) == ["thermal_duty"]


def test_one_look_from_the_future_makes_no_gpu_gone() -> None:
    here, last_us = throttled()
    gpus = {"GPU-1": here}
    without(gpus, last_us, 1)
    without(gpus, last_us + 365 * DAY_US, 1, every_us=HOUR_US)
    forget = without(gpus, last_us + HOUR_US, 20)
    assert forget == []
    assert conditions_of(here) == ["thermal_duty"]


def test_a_gpu_that_comes_back_is_judged_again_with_what_is_normal_for_it() -> None:
    gone, last_us = throttled()
    normal = gone.baseline
    without({"GPU-1": gone}, last_us, 30)
    story = GpuHistory()
    story.at_us = last_us + 30 * HOUR_US
    assert conditions_of(feed(gone, story.play(0.2, thermal=0.9).points)) == ["thermal_duty"]
    assert gone.baseline is normal
    assert gone.presence.absent_us == 0


def test_a_gpu_is_forgotten_after_a_week_in_which_others_were_polled() -> None:
    gone, last_us = throttled()
    gpus = {"GPU-1": gone}
    assert without(gpus, last_us, 24 * 7 - 2, every_us=10 * MINUTE_US) == []
    assert without(gpus, last_us + (24 * 7 - 2) * HOUR_US, 4, every_us=10 * MINUTE_US) == ["GPU-1"]
