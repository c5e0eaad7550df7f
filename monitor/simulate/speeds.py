"""What a card tells the engine."""

from __future__ import annotations

from typing import NamedTuple


class Speeds(NamedTuple):
    """What is left of the speed of a cool, unhindered card: 1.0 = all of it."""

    prefill: float
    decode: float
