"""From repeated answers to a pin: which answers were seen, how firm they stand, when the pin ends. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import fmean

from monitor.judge.expect import judge_answer
from monitor.judge.pinned import broken_text, shift_between
from monitor.model import ObservedAnswer, Outcome, PinnedOutput, Probe, Verdict

SPREAD = 0.1  # of the life of a pin: so that not all of them end on one day


def unfit(probe: Probe, answer: ObservedAnswer) -> str | None:
    """Why a finished answer must not be pinned: a condition of the probe does not hold, or it is no answer at all. None: it may."""
    plain = judge_answer(probe, Outcome.OK, answer.text, answer.finish_reason)
    return plain.reason if plain.verdict is Verdict.FAIL else broken_text(answer)


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
    places = range(len(first.tokens))
    logprobs = tuple(_mean([m.tokens[i].logprob for m in members]) for i in places)
    tops = tuple(_mean_top([m.tokens[i].top for m in members]) for i in places)
    tokens = tuple(t.token for t in first.tokens)
    return PinnedOutput(first.text, tokens, first.token_ids, logprobs, first.finish_reason, len(members), tops)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _mean_top(tops: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The alternatives that every repeat shows, at their mean."""
    shared = set(tops[0]).intersection(*tops[1:])
    return {token: fmean([top[token] for top in tops]) for token in tops[0] if token in shared}


def noise_of(answers: Sequence[ObservedAnswer], outputs: Sequence[PinnedOutput]) -> float | None:
    """The largest move of log-probabilities among the repeats of one answer (nat); None from fewer than two repeats of each."""
    shifts: list[float] = []
    for output in outputs:
        same: tuple[object, ...] = output.token_ids or output.tokens or (output.text,)
        repeats = [answer for answer in answers if _key(answer) == same]
        moved = [shift_between(output, answer) for answer in repeats] if len(repeats) > 1 else []
        shifts += [m for m in moved if m is not None]
    return max(shifts, default=None)


def expiry(probe: str, now: datetime, life: timedelta) -> datetime:
    """When a pin ends: up to a tenth of its life earlier, by the probe's name, so that not all pins end on one day."""
    share = int.from_bytes(hashlib.sha256(probe.encode()).digest()[:4]) / 2**32
    return now + life * (1 - SPREAD * share)
