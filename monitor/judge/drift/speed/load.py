"""How a rate depends on the load it met, and where that is known. Outside of it nothing is
compared: a curve carried on beyond what was learnt was the largest source of false alarms
(docs/detection.md).

Two measures of load. *Mates*: how many sequences of others shared our decode steps. Each of them
got one token a step, as we did, so it is the tokens generated for others over ours, which no slow
GPU can change; where that cannot be read, the requests running before. *Prompts*: tokens of
others' prompts computed in each of our steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.model import CanaryPoint

MATES_BIN = 0.15  # width in ln(1 + mates): 0, 1, … apart up to five, then 15 %
PROMPTS_BIN = 0.7  # width in ln(1 + tokens a step / 16)
PROMPT_UNIT = 16.0
UNKNOWN_BIN = -1  # nothing is known of the load: compared among themselves only
MOST_ENTRIES = 1440  # kept in all; the fullest load gives way


class Load(NamedTuple):
    """Load met by one canary on the two scales of the curve; None is unknown."""

    mates: float | None
    prompts: float | None


class Taken(NamedTuple):
    """One canary of a block: its probe, the load it met, and the logarithm of its metric (lower is
    worse).
    """

    key: int
    load: Load
    value: float


class Entry(NamedTuple):
    """One canary kept for learning: when, which probe, which load, and the logarithm of its metric
    (lower is worse).
    """

    block: int
    key: int
    mates: float | None
    prompts: float | None
    value: float


def decode_load(p: CanaryPoint) -> Load:
    """Load during our decode steps."""
    if (
        p.other_generation_tokens is not None
        and p.completion_tokens
        and p.decode_tok_s
        and p.e2e_ms
    ):
        decode_ms = 1000.0 * (p.completion_tokens - 1) / p.decode_tok_s
        share = min(1.0, decode_ms / p.e2e_ms) / p.completion_tokens
        prompts = (
            None if p.other_prompt_tokens is None else prompt_scale(p.other_prompt_tokens * share)
        )
        return Load(math.log1p(p.other_generation_tokens * share), prompts)
    return Load(None if p.running is None else math.log1p(max(0.0, p.running)), None)


def wait_load(p: CanaryPoint) -> Load:
    """Load before our first token: what ran and what waited."""
    mates = None if p.running is None else math.log1p(max(0.0, p.running))
    return Load(
        mates,
        None if p.waiting is None or p.queue_ms is not None else math.log1p(max(0.0, p.waiting)),
    )


def prompt_scale(tokens_a_step: float) -> float:
    """ln(1 + tokens / 16): a chunk of 16 tokens costs about as much as one more sequence."""
    return math.log1p(max(0.0, tokens_a_step) / PROMPT_UNIT)


def mates_bin(value: float | None) -> int:
    """Index of the load bin."""
    return UNKNOWN_BIN if value is None else int(value / MATES_BIN)


def prompts_bin(value: float | None) -> int:
    """Index of the bin of others' prompts."""
    return UNKNOWN_BIN if value is None else int(value / PROMPTS_BIN)


@dataclass(slots=True)
class Bin:
    """Canaries of one load. When there are too many, those of half of the blocks are kept: whole
    blocks, spread over the whole time.
    """

    stride: int = 1  # how many canaries one of them stands for: a power of two
    entries: list[Entry] = field(default_factory=list)


def _chosen(block: int, stride: int) -> bool:
    """One block in `stride`, as if by lot: a probe that runs in every second block must not be
    thinned out whole (Knuth's hash).
    """
    return (block * 2_654_435_761 & 0xFFFF_FFFF) * stride < 1 << 32


@dataclass(slots=True)
class Gathering:
    """Canaries for learning, by load: rare loads are kept whole, common ones thinned."""

    bins: dict[str, Bin] = field(default_factory=dict)
    size: int = 0

    def add(self, entry: Entry) -> None:
        """Keep one more, if its block is not one that was thinned out."""
        name = str(mates_bin(entry.mates))
        bin_ = self.bins.get(name)
        if bin_ is None:
            bin_ = self.bins[name] = Bin()
        if not _chosen(entry.block, bin_.stride):
            return
        bin_.entries.append(entry)
        self.size += 1
        if self.size > MOST_ENTRIES:
            fullest = max(self.bins.values(), key=lambda b: len(b.entries))
            fullest.stride *= 2
            self._keep(fullest, lambda entry: _chosen(entry.block, fullest.stride))

    def forget_before(self, block: int) -> None:
        """Drop what is older."""
        for name in list(self.bins):
            self._keep(self.bins[name], lambda entry: entry.block >= block)
            if not self.bins[name].entries:
                del self.bins[name]

    def _keep(self, bin_: Bin, wanted: Callable[[Entry], bool]) -> None:
        kept = [entry for entry in bin_.entries if wanted(entry)]
        self.size += len(kept) - len(bin_.entries)
        bin_.entries = kept

    def entries(self) -> list[Entry]:
        """All of them, in order of blocks."""
        return sorted(
            (entry for bin_ in self.bins.values() for entry in bin_.entries),
            key=lambda entry: entry.block,
        )

    def weight(self, entry: Entry) -> int:
        """How many canaries an entry stands for."""
        return self.bins[str(mates_bin(entry.mates))].stride

    def forget_where(self, known: Callable[[Entry], bool]) -> None:
        """Drop what is known by now."""
        for name in list(self.bins):
            self._keep(self.bins[name], lambda entry: not known(entry))
            if not self.bins[name].entries:
                del self.bins[name]
