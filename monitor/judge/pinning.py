"""From repeated answers to a pin: which answers were seen, how firm they stand, when the pin ends. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import fmean, pstdev

from monitor.model import ObservedAnswer, PinnedOutput

SPREAD = 0.1  # of the life of a pin: so that not all of them end on one day


def outputs_of(answers: Sequence[ObservedAnswer]) -> tuple[PinnedOutput, ...]:
    """Every distinct answer with the means of its tokens' log-probabilities, the most frequent first."""
    groups: dict[tuple[object, ...], list[ObservedAnswer]] = {}
    for answer in answers:
        groups.setdefault(_key(answer), []).append(answer)
    outputs = [_output(members) for members in groups.values()]
    return tuple(sorted(outputs, key=lambda output: -output.count))


def _key(answer: ObservedAnswer) -> tuple[object, ...]:
    """What makes two answers the same: their tokens, else their text."""
    tokens: tuple[object, ...] = tuple(token.token for token in answer.tokens)
    return answer.token_ids or tokens or (answer.text,)


def _output(members: Sequence[ObservedAnswer]) -> PinnedOutput:
    first = members[0]
    logprobs = tuple(_mean([m.tokens[i].logprob for m in members]) for i in range(len(first.tokens)))
    tokens = tuple(t.token for t in first.tokens)
    return PinnedOutput(first.text, tokens, first.token_ids, logprobs, first.finish_reason, len(members))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def noise_of(answers: Sequence[ObservedAnswer], outputs: Sequence[PinnedOutput]) -> float | None:
    """Standard deviation between repeats of the mean log-probability shift of one whole answer (nat); None from fewer than two repeats."""
    shifts: list[float] = []
    for output in outputs:
        same: tuple[object, ...] = output.token_ids or output.tokens or (output.text,)
        for answer in (a for a in answers if _key(a) == same):
            both = zip(output.logprobs, (t.logprob for t in answer.tokens), strict=True)
            moved = [now - then for then, now in both if then is not None and now is not None]
            if moved:
                shifts.append(fmean(moved))
    return pstdev(shifts) if len(shifts) >= 2 else None


def expiry(probe: str, now: datetime, life: timedelta) -> datetime:
    """When a pin ends: up to a tenth of its life earlier, by the probe's name, so that not all pins end on one day."""
    share = int.from_bytes(hashlib.sha256(probe.encode()).digest()[:4]) / 2**32
    return now + life * (1 - SPREAD * share)
