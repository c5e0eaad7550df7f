"""The pins beside a file of samples: a sample names its pin by a number, and only the pin knows how
much moves without any change.

FILE.pins.yaml is what `vllm-canary pins export` writes, or `vllm-canary simulate --export`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from monitor.model import CanaryPoint, Pin
from monitor.replay.csv.points import TARGET
from monitor.store.pinfile import PinFileError, from_yaml

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class NumberedPins:
    """The pins of one target by the numbers that its samples name.

    A file of pins has no numbers: they differ from history to history. So a number is the newest
    pin of the sample's probe that was there when the number was first named, and that was taken of
    what was served then, unless the sample says that its pin was stale. What was served is told by
    digests. They change as more of it becomes known, so that files written at different times may
    name one thing differently: where no pin has the sample's digest, it is one whose own answers,
    the last of the probe before it was taken, have it.
    """

    pins: Sequence[Pin]  # oldest first
    numbered: dict[int, Pin] = field(default_factory=dict)
    unknown: dict[int, str] = field(
        default_factory=dict
    )  # numbers by which a shift was measured, of no pin that is there; their probes
    _last: dict[str, str] = field(
        default_factory=dict
    )  # by probe: the digest of its last sample so far
    _taken_of: list[str | None] = field(
        default_factory=list
    )  # of each pin that was taken so far: the digest of its last answer

    def note(self, points: Iterable[CanaryPoint]) -> None:
        """Take up the numbers that these samples name. In the order of time."""
        for point in points:
            self._go_on_to(point)
            if point.pin is None or point.pin in self.numbered:
                continue
            pin = self._named(point)
            if pin is not None:
                self.numbered[point.pin] = pin
                self.unknown.pop(point.pin, None)
            elif point.logprob_shift is not None:
                self.unknown.setdefault(point.pin, point.probe)

    def _go_on_to(self, point: CanaryPoint) -> None:
        """Up to this sample, pins were taken of what the last answers before them were of."""
        while len(self._taken_of) < len(self.pins) and (
            pin := self.pins[len(self._taken_of)]
        ).created_at <= _at(point):
            self._taken_of.append(self._last.get(pin.probe))
        if point.fingerprint is not None:
            self._last[point.probe] = point.fingerprint

    def _named(self, point: CanaryPoint) -> Pin | None:
        taken = [
            (pin, of)
            for pin, of in zip(self.pins, self._taken_of, strict=False)
            if pin.probe == point.probe
        ]
        there = [(pin, of) for pin, of in taken if pin.created_at <= _at(point)]
        if point.stale is False and point.fingerprint is not None:
            same = [(pin, of) for pin, of in there if pin.fingerprint in {None, point.fingerprint}]
            there = same or [(pin, of) for pin, of in there if of == point.fingerprint]
        return there[-1][0] if there else None


def _at(point: CanaryPoint) -> datetime:
    return EPOCH + timedelta(microseconds=point.at_us)


@dataclass(slots=True)
class PinsBeside:
    """All pins of FILE.pins.yaml, by the targets they belong to."""

    file: Path
    pins: Sequence[Pin]
    _of: dict[str, NumberedPins] = field(default_factory=dict)

    def of(self, target: str) -> Mapping[int, Pin]:
        """One target's by number, which grow as samples are noted; all of them where the samples do
        not say whose they are.
        """
        return self._numbered(target).numbered

    def note(self, target: str, points: Iterable[CanaryPoint]) -> None:
        """Take up the numbers that samples of a target name, before they are judged."""
        self._numbered(target).note(points)

    def _numbered(self, target: str) -> NumberedPins:
        if target not in self._of:
            self._of[target] = NumberedPins(
                [pin for pin in self.pins if target in {pin.target, TARGET}]
            )
        return self._of[target]

    def notes(self) -> list[str]:
        """What is to be said when all samples were read."""
        probes = sorted(
            {probe for numbered in self._of.values() for probe in numbered.unknown.values()}
        )
        if not probes:
            return []
        why = (
            f"{self.file.name} holds no pin of theirs"
            if self.pins
            else f"{self.file.name} is not there"
        )
        return [
            (
                f"how far log-probabilities moved is not judged for {', '.join(probes)}: {why} "
                "(`vllm-canary pins export` writes one)"
            )
        ]


def pins_beside(path: Path) -> PinsBeside:
    """The pins beside a file of samples; none where there is no such file. Raises PinFileError."""
    beside = path.with_name(f"{path.stem}.pins.yaml")
    try:
        text = beside.read_text(encoding="utf-8")
    except FileNotFoundError:
        return PinsBeside(beside, ())
    except (OSError, UnicodeDecodeError) as error:
        raise PinFileError(f"{beside} cannot be read: {error}; mend it or move it away") from None
    return PinsBeside(beside, sorted(from_yaml(text, str(beside)), key=lambda pin: pin.created_at))
