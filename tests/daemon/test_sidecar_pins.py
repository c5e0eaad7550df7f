"""Which pin a sample of a file means: samples name them by numbers, files of pins have none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitor.model import CanaryPoint, Pin, PinnedOutput
from monitor.replay.csv.points import TARGET
from monitor.replay.sidecar_pins import NumberedPins, read_sidecar_pins
from monitor.store.pinfile import PinFileError, to_yaml

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR_US = 3_600_000_000


def pin(
    probe: str = "chat", hours: float = 0.0, fingerprint: str | None = "a", target: str = "t"
) -> Pin:
    made = NOON + timedelta(hours=hours)
    outputs = (PinnedOutput("Yes", ("Yes",), (7,), (-0.1,), "stop", 5),)
    return Pin(
        0,
        target,
        probe,
        "r",
        fingerprint,
        "right",
        "me",
        made,
        made + timedelta(days=30),
        outputs,
        4,
        0.003,
    )


def sample(
    number: int,
    hours: float,
    probe: str = "chat",
    fingerprint: str | None = "a",
    stale: bool | None = False,
) -> CanaryPoint:
    at_us = int(NOON.timestamp() * 1e6 + hours * HOUR_US)
    return CanaryPoint(
        at_us,
        at_us,
        probe=probe,
        pin=number,
        fingerprint=fingerprint,
        stale=stale,
        logprob_shift=0.001,
    )


def test_a_number_is_the_newest_pin_of_the_probe_that_was_there_then() -> None:
    pins = [pin(), pin("coding"), pin(hours=4)]
    numbered = NumberedPins(pins)
    numbered.note([sample(12, 1), sample(13, 1, "coding"), sample(14, 5), sample(12, 6)])
    assert numbered.numbered == {12: pins[0], 13: pins[1], 14: pins[2]}


def test_a_number_is_no_pin_of_another_identity_unless_the_sample_was_judged_by_a_stale_one() -> (
    None
):
    pins = [pin(), pin(hours=2, fingerprint="b")]
    numbered = NumberedPins(pins)
    numbered.note(
        [
            sample(1, 3, fingerprint="a"),
            sample(2, 3, fingerprint="b"),
            sample(3, 3, fingerprint="c", stale=True),
        ]
    )
    assert numbered.numbered == {1: pins[0], 2: pins[1], 3: pins[1]}


@pytest.mark.parametrize(
    ("in_pins", "in_samples"),
    [("a", "a whole"), ("a whole", "a")],
    ids=["pins first", "samples first"],
)
def test_files_written_before_and_after_more_was_known_of_one_identity_belong_together(
    in_pins: str, in_samples: str
) -> None:
    pins = [pin(hours=1, fingerprint=in_pins), pin(hours=5, fingerprint="b")]
    numbered = NumberedPins(pins)
    asked = [
        sample(1, 0.9, fingerprint=in_samples)._replace(pin=None),
        sample(1, 4.9, fingerprint="b")._replace(pin=None),
    ]
    numbered.note(
        [
            asked[0],
            sample(7, 2, fingerprint=in_samples),
            asked[1],
            sample(9, 6, fingerprint=in_samples),
        ]
    )
    assert numbered.numbered == {7: pins[0], 9: pins[0]}


def test_a_pin_that_is_not_there_is_said_and_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "h.pins.yaml").write_text(to_yaml([pin()]))
    beside = read_sidecar_pins(tmp_path / "h.csv")
    beside.note("t", [sample(1, 1), sample(2, 1, "coding"), sample(3, -1)])
    assert list(beside.of("t")) == [1]
    [note] = beside.notes()
    assert "shifts of chat, coding are not judged: h.pins.yaml has no pin of them" in note


def test_a_pin_that_was_taken_of_something_else_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "h.pins.yaml").write_text(to_yaml([pin(hours=1)]))
    beside = read_sidecar_pins(tmp_path / "h.csv")
    beside.note("t", [sample(4, 0.9, "coding", "b"), sample(4, 0.8), sample(5, 2, fingerprint="b")])
    assert list(beside.of("t")) == []


def test_where_samples_name_no_target_all_pins_are_theirs(tmp_path: Path) -> None:
    (tmp_path / "h.pins.yaml").write_text(to_yaml([pin()]))
    beside = read_sidecar_pins(tmp_path / "h.csv")
    for target in ("t", "other", TARGET):
        beside.note(target, [sample(1, 1)])
    assert [len(beside.of(target)) for target in ("t", "other", TARGET)] == [1, 0, 1]


def test_without_such_a_file_there_are_no_pins_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    assert list(read_sidecar_pins(tmp_path / "h.csv").pins) == []
    (tmp_path / "h.pins.yaml").write_text("pins: 3")
    with pytest.raises(PinFileError, match=r"h\.pins\.yaml: is not a pin file"):
        read_sidecar_pins(tmp_path / "h.csv")
