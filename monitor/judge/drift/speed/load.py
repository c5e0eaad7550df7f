"""The load that a canary met, and its decode rate and wait as measurements at that load.

Two measures of load. *Batch peers*: how many sequences of others shared our decode steps. Each of
them got one token a step, as ours did, so it is the tokens generated for others over ours, which no
slow GPU can change; where that cannot be read, the requests running before. *Prompts*: tokens of
others' prompts computed in each of our steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from monitor.model import CanaryPoint

PEERS_BIN = 0.15  # width in ln(1 + peers): 0, 1, … apart up to five, then 15 %
PROMPTS_BIN = 0.7  # width in ln(1 + tokens a step / 16)
PROMPT_UNIT = 16.0
UNKNOWN_BIN = -1  # canaries of unknown load are compared among themselves only
LEAST_TOKENS = 8  # below this one late chunk is most of the decode rate


class EngineLoad(NamedTuple):
    """Load met by one canary on the two scales of the curve; None is unknown."""

    peers: float | None
    prompts: float | None


class MetricValue(NamedTuple):
    """One canary of a block: its probe, the load it met, and the logarithm of its metric (lower is
    worse).
    """

    key: int
    load: EngineLoad
    value: float


def probe_name(p: CanaryPoint) -> str:
    """Name under which canaries are comparable: probe and priority."""
    return p.probe if p.priority is None else f"{p.probe} at priority {p.priority}"


def decode_rate(p: CanaryPoint) -> float | None:
    """Decode rate, where it is a number and rests on enough tokens."""
    rate = p.decode_tok_s
    if rate is None or not 0.0 < rate < math.inf:
        return None
    too_short = p.completion_tokens is not None and p.completion_tokens < LEAST_TOKENS
    return None if too_short else rate


def wait_ms(p: CanaryPoint) -> float | None:
    """Time to first token without the time in the queue."""
    if p.ttft_ms is None:
        return None
    wait = p.ttft_ms - (p.queue_ms or 0.0)
    return wait if 0.0 < wait < math.inf else None


def decode_load(p: CanaryPoint) -> EngineLoad:
    """Load during our decode steps."""
    others = p.other_generation_tokens
    if others is None or not (p.completion_tokens and p.decode_tok_s and p.e2e_ms):
        return EngineLoad(None if p.running is None else math.log1p(max(0.0, p.running)), None)
    decode_ms = 1000.0 * (p.completion_tokens - 1) / p.decode_tok_s
    share = min(1.0, decode_ms / p.e2e_ms) / p.completion_tokens
    prompts = p.other_prompt_tokens
    return EngineLoad(
        math.log1p(others * share), None if prompts is None else prompt_scale(prompts * share)
    )


def wait_load(p: CanaryPoint) -> EngineLoad:
    """Load before our first token: requests running and waiting."""
    peers = None if p.running is None else math.log1p(max(0.0, p.running))
    if p.waiting is None or p.queue_ms is not None:
        return EngineLoad(peers, None)
    return EngineLoad(peers, math.log1p(max(0.0, p.waiting)))


def prompt_scale(tokens_a_step: float) -> float:
    """ln(1 + tokens / 16): a chunk of 16 tokens costs about as much as one more sequence."""
    return math.log1p(max(0.0, tokens_a_step) / PROMPT_UNIT)


def peers_bin(value: float | None) -> int:
    """Index of the bin of batch peers."""
    return UNKNOWN_BIN if value is None else int(value / PEERS_BIN)


def prompts_bin(value: float | None) -> int:
    """Index of the bin of others' prompts."""
    return UNKNOWN_BIN if value is None else int(value / PROMPTS_BIN)
