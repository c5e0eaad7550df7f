"""What a card tells the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speeds:
    """What is left of the speed of a cool, unhindered card: 1.0 = all of it."""

    prefill: float
    decode: float
