"""The pins in the sidecar file of a CSV file: a sample names its pin by a number, and only the pin
holds the noise of its log-probabilities.

FILE.pins.yaml is written by `vllm-canary pins export` and `vllm-canary simulate --export`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monitor.model import CanaryPoint, Pin, from_us
from monitor.replay.csv.points import TARGET
from monitor.store.pinfile import PinFileError, from_yaml


@dataclass(slots=True)
class NumberedPins:
    """The pins of one target by the numbers that its samples name.

    A file of pins has no numbers, because they differ from history to history. A number is
    therefore resolved to the newest pin of the sample's probe that existed when the number was
    first named and that was recorded under the identity served then, unless the sample says that
    its pin was stale. The identity is compared by its digest. A digest changes as more of an
    identity becomes known, so files written at different times may use two digests for one
    identity: if no pin has the sample's digest, a pin matches whose own answers, the last ones of
    the probe before it was recorded, have it.
    """

    pins: Sequence[Pin]  # oldest first
    numbered: dict[int, Pin] = field(default_factory=dict)
    # probes by pin number: a shift was measured against the pin, and the file does not have it
    unknown: dict[int, str] = field(default_factory=dict)
    # by probe: the digest of its last sample so far
    _last: dict[str, str] = field(default_factory=dict)
    # of each pin recorded so far: the digest of the probe's last sample before it
    _taken_of: list[str | None] = field(default_factory=list)

    def note(self, points: Iterable[CanaryPoint]) -> None:
        """Collects the numbers that samples name, in the order of time."""
        for point in points:
            self._advance_to(point)
            if point.pin is None or point.pin in self.numbered:
                continue
            pin = self._named(point)
            if pin is not None:
                self.numbered[point.pin] = pin
                self.unknown.pop(point.pin, None)
            elif point.logprob_shift is not None:
                self.unknown.setdefault(point.pin, point.probe)

    def _advance_to(self, point: CanaryPoint) -> None:
        """Notes for each pin recorded before this sample which digest was served."""
        while len(self._taken_of) < len(self.pins) and (
            pin := self.pins[len(self._taken_of)]
        ).created_at <= from_us(point.at_us):
            self._taken_of.append(self._last.get(pin.probe))
        if point.fingerprint is not None:
            self._last[point.probe] = point.fingerprint

    def _named(self, point: CanaryPoint) -> Pin | None:
        taken = [
            (pin, of)
            for pin, of in zip(self.pins, self._taken_of, strict=False)
            if pin.probe == point.probe
        ]
        there = [(pin, of) for pin, of in taken if pin.created_at <= from_us(point.at_us)]
        if point.stale is False and point.fingerprint is not None:
            same = [(pin, of) for pin, of in there if pin.fingerprint in {None, point.fingerprint}]
            there = same or [(pin, of) for pin, of in there if of == point.fingerprint]
        return there[-1][0] if there else None


@dataclass(slots=True)
class SidecarPins:
    """All pins of FILE.pins.yaml, by target."""

    file: Path
    pins: Sequence[Pin]
    _of: dict[str, NumberedPins] = field(default_factory=dict)

    def of(self, target: str) -> Mapping[int, Pin]:
        """Returns the pins of one target by number; the mapping grows as samples are noted. If the
        samples do not name their target, all pins are theirs.
        """
        return self._numbered(target).numbered

    def note(self, target: str, points: Iterable[CanaryPoint]) -> None:
        """Collects the numbers that samples of a target name, before they are judged."""
        self._numbered(target).note(points)

    def _numbered(self, target: str) -> NumberedPins:
        if target not in self._of:
            self._of[target] = NumberedPins(
                [pin for pin in self.pins if target in {pin.target, TARGET}]
            )
        return self._of[target]

    def notes(self) -> list[str]:
        """Returns notes after all samples were read."""
        probes = sorted(
            {probe for numbered in self._of.values() for probe in numbered.unknown.values()}
        )
        if not probes:
            return []
        why = (
            f"{self.file.name} has no pin of them"
            if self.pins
            else f"{self.file.name} does not exist"
        )
        return [
            f"log-probability shifts of {', '.join(probes)} are not judged: {why} "
            "(`vllm-canary pins export` writes one)"
        ]


def read_sidecar_pins(path: Path) -> SidecarPins:
    """Reads the pins next to a CSV file; none if there is no such file. Raises PinFileError."""
    file = path.with_name(f"{path.stem}.pins.yaml")
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return SidecarPins(file, ())
    except (OSError, UnicodeDecodeError) as error:
        raise PinFileError(f"{file} cannot be read: {error}; fix it or move it away") from None
    return SidecarPins(file, sorted(from_yaml(text, str(file)), key=lambda pin: pin.created_at))
