"""Whose the readings of a CSV file are: the target that a row names, else the only one, else those
whose samples name the GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from monitor.model import GpuPoint, Point

SHOWN = 5  # GPUs or targets in a sentence


@dataclass(slots=True)
class Belonging:
    """Decides for each reading, and counts those that are nobody's. `GPUs`: by target, as the
    samples name them; `named`: whether the samples say their target at all. Where they do not, the
    first target that a reading names is theirs.
    """

    gpus: Mapping[str, Collection[str]]
    named: bool
    lost: dict[tuple[str, str | None], int] = field(
        default_factory=dict
    )  # by the target named and the GPU
    _adopted: str | None = None
    _known: dict[tuple[str, str | None], list[str]] = field(default_factory=dict)

    def of(self, name: str, point: Point) -> list[str]:
        """The targets that a reading belongs to; `name` is the one that its row names, "" for
        none.
        """
        key = (name, point.uuid if isinstance(point, GpuPoint) else None)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._targets(*key)
        if not found:
            self.lost[key] = self.lost.get(key, 0) + 1
        return found

    def _targets(self, name: str, gpu: str | None) -> list[str]:
        if name in self.gpus:
            return [name]
        if name and self.named:
            return []
        if name:
            self._adopted = self._adopted or name
            return list(self.gpus) if self._adopted == name else []
        if len(self.gpus) == 1:
            return list(self.gpus)
        return [target for target, gpus in self.gpus.items() if gpu in gpus]

    def sentences(self, readings: str, samples: str) -> list[str]:
        """What was left out, and how to mend it. The names of the two files are given."""
        told = []
        strange = {
            name: sum(n for (of, _), n in self.lost.items() if of == name)
            for name, _ in self.lost
            if name
        }
        if strange and self.named:
            told.append(
                f"{readings}: {sum(strange.values()):,} readings of "
                f"{_listed('target', strange)} were left out: {samples} has samples only "
                f"of {_listed('target', self.gpus)}"
            )
        elif strange:
            told.append(
                f"{readings}: {sum(strange.values()):,} readings of "
                f"{_listed('target', strange)} were left out: the samples name no target "
                f"and were taken as those of {self._adopted}; give them a column target"
            )
        nameless = {gpu: n for (name, gpu), n in self.lost.items() if not name}
        if gpus := [gpu for gpu in nameless if gpu is not None]:
            told.append(
                f"{readings}: {sum(nameless[gpu] for gpu in gpus):,} readings of "
                f"{_listed('GPU', gpus)} were left out: they name no "
                "target, and no sample names the GPU; write whose they are into the column target"
            )
        if count := nameless.get(None):
            told.append(
                f"{readings}: {count:,} readings of a server were left out: they name no "
                "target, and there are several"
            )
        return told


def _listed(what: str, names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
    return f"{what}{'s' if len(names) > 1 else ''} {shown}"
