"""What a predicate is given, and logic with three values: True, False, and None for unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from monitor.judge.drift.evidence import GpuComparison, Observations, Pair


class Scope(NamedTuple):
    """All observations, and one GPU of the target (None: no GPU is known)."""

    observed: Observations
    gpu: GpuComparison | None


Predicate = Callable[[Scope], bool | None]


def any_of(*found: bool | None) -> bool | None:
    """True if one holds; unknown if none does and one is unknown."""
    return True if True in found else None if None in found else False


def all_of(*found: bool | None) -> bool | None:
    """False if one does not hold; unknown if all others do and one is unknown."""
    return False if False in found else None if None in found else True


def negated(found: bool | None) -> bool | None:
    """Unknown stays unknown."""
    return None if found is None else not found


def fell(pair: Pair, by: float) -> bool | None:
    """Whether ln(now / before) is at most -by."""
    ratio = pair.log_ratio
    return None if ratio is None else ratio <= -by


def rose(pair: Pair, by: float) -> bool | None:
    """Whether now - before is at least `by`.

    A counter whose past is unknown is compared with 0, the count of a healthy GPU.
    """
    rise = pair.rise if pair.before is not None else pair.now
    return None if rise is None else rise >= by
