"""The pins that a history is judged by, beside it, in the format of `vllm-canary pins export`: what
a file of samples cannot carry.

They are the five repeats that `vllm-canary pin` asks for by default, of a healthy idle server, just
before the history begins.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import yaml

from monitor.simulate.answers import VOCABULARY
from monitor.simulate.asking import Scores
from monitor.simulate.noise import shift_nat

VERSION = 1  # of the format (monitor/store/pinfile.py)
REPEATS, LIFE = 5, timedelta(days=30)  # as `pin` has them
REASON = "what the healthy simulated server says, before this history begins"


def to_yaml(
    pinned: dict[str, Scores], target: str, fingerprint: str, made_at: datetime, seed: int
) -> str:
    """One document with a pin for each probe, by name."""
    chance = random.Random(f"pins/{seed}")  # noqa: S311 - a story, not a secret; of its own, so that no sample moves
    pins = []
    for probe, scores in pinned.items():
        pin: dict[str, Any] = {
            "target": target,
            "probe": probe,
            "revision": "simulated",
            "fingerprint": fingerprint,
            "reason": REASON,
        }
        pin |= {
            "author": "simulate",
            "created_at": made_at.isoformat(),
            "expires_at": (made_at + LIFE).isoformat(),
        }
        pin |= {"outputs": [_output(scores)], "prompt_tokens": scores.prompt_tokens}
        pins.append(pin | {"noise_nat": round(max(shift_nat(chance) for _ in range(REPEATS)), 5)})
    return yaml.safe_dump(
        {"version": VERSION, "pins": pins}, sort_keys=False, allow_unicode=True, width=120
    )


def _output(scores: Scores) -> dict[str, Any]:
    """The one answer that all repeats gave."""
    return {
        "text": VOCABULARY.decode(scores.tokens),
        "tokens": _texts(scores.tokens),
        "token_ids": list(scores.tokens),
        "logprobs": [top[token] for token, top in zip(scores.tokens, scores.tops, strict=True)],
        "finish_reason": scores.reason,
        "count": REPEATS,
        "tops": [dict(zip(_texts(list(top)), top.values(), strict=True)) for top in scores.tops],
    }


def _texts(tokens: Sequence[int]) -> list[str]:
    return [VOCABULARY.text(token) for token in tokens]
