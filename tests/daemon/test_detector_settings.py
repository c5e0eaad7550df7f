"""From the configuration to what drift detection is told."""

from __future__ import annotations

from dataclasses import fields

import pytest

from monitor.config import ConfigError
from monitor.config.detector import DetectorSettings
from monitor.config.settings import ClassSettings, Settings
from monitor.daemon.detector_settings import (
    DURATIONS,
    check_classes,
    drift_settings,
    overridden,
    thresholds,
)
from monitor.judge.drift.settings import DriftSettings


def test_the_defaults_of_the_file_are_those_of_the_judges_and_every_threshold_can_be_set() -> None:
    assert thresholds(DetectorSettings(), {}) == DriftSettings()
    settable = {DURATIONS.get(name, (name, 1))[0] for name in DetectorSettings.model_fields} | {
        "levels"
    }
    assert settable == {f.name for f in fields(DriftSettings)}


def test_durations_arrive_in_the_units_that_are_used_inside() -> None:
    found = thresholds(
        DetectorSettings.model_validate(
            {"block": "2m", "learn": "90m", "remember": "36h", "grace": "5s"}
        ),
        {},
    )
    assert (found.block_s, found.learn_h, found.remember_days, found.grace_s) == (120, 1.5, 1.5, 5)


def test_service_levels_are_those_of_the_classes_that_have_one() -> None:
    raw = {
        "targets": [{"name": "local", "url": "http://127.0.0.1:9"}],
        "classes": {"chat": {"ttft": "800ms"}, "batch": {}},
    }
    assert drift_settings(Settings.model_validate(raw)).levels == {"chat": 800.0}


def test_a_wish_stands_in_the_place_of_what_is_configured_and_the_last_one_counts() -> None:
    detector, classes = overridden(
        DetectorSettings(),
        {"chat": ClassSettings(max_wait="7s")},
        ["detector.block=10m", "detector.block=1m"],
    )  # type: ignore[arg-type]
    assert detector == DetectorSettings.model_validate({"block": "1m"})
    detector, classes = overridden(
        detector, classes, ["classes.chat.ttft=1s", "classes.night.ttft=3s"]
    )
    assert (classes["chat"].ttft, classes["chat"].max_wait, classes["night"].ttft) == (
        1.0,
        7.0,
        3.0,
    )
    _, without = overridden(detector, classes, ["classes.chat.ttft=none"])
    assert without["chat"].ttft is None


def test_a_wish_is_checked_against_the_other_thresholds_as_they_are_configured() -> None:
    wide = DetectorSettings.model_validate({"small_drop": 0.05, "large_drop": 0.2})
    assert overridden(wide, {}, ["detector.small_drop=0.1"])[0].small_drop == 0.1
    with pytest.raises(ConfigError, match="large_drop a value above small_drop"):
        overridden(wide, {}, ["detector.large_drop=0.04"])


@pytest.mark.parametrize("order", [1, -1])
def test_wishes_that_only_go_together_may_come_in_any_order(order: int) -> None:
    wishes = ["detector.small_drop=0.1", "detector.large_drop=0.2"][::order]
    detector, _ = overridden(DetectorSettings(), {}, wishes)
    assert (detector.small_drop, detector.large_drop) == (0.1, 0.2)


def test_a_level_is_only_tried_on_a_class_that_is_configured_or_measured() -> None:
    check_classes(
        ["classes.chat.ttft=1s", "classes.night.ttft=1s", "detector.block=1m"],
        ["chat"],
        ["night", ""],
    )
    with pytest.raises(ConfigError, match=r"no class nihgt.*did you mean night"):
        check_classes(["classes.nihgt.ttft=1s"], ["chat"], ["night"])


@pytest.mark.parametrize(
    "given",
    [
        {"block": "10ms"},
        {"card_step": "0.0001ms"},
        {"remember": "99999d"},
        {"block": "9" * 400 + "d"},
    ],
)
def test_lengths_that_no_clock_counts_in_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"1s or longer|at most ten years"):
        DetectorSettings.model_validate(given)


@pytest.mark.parametrize(
    "wish",
    [
        "",
        "detector",
        "detector.block",
        "detector.block.s=1",
        "targets.url=x",
        "classes.chat.max_wait=1s",
    ],
)
def test_what_is_no_wish_is_told_with_an_example(wish: str) -> None:
    with pytest.raises(ConfigError, match=r"for example detector\.block=10m"):
        overridden(DetectorSettings(), {}, [wish])
