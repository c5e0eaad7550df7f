"""From repeated answers to a pin: which answers were seen, how firm they stand, when the pin ends.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import fmean

from monitor.judge.quality.expect import judge_answer
from monitor.judge.quality.pinned import MOST_TIE_NAT, broken_text, nat_behind, shift_between
from monitor.judge.quality.shift import MOST_NOISE_NAT
from monitor.model import ObservedAnswer, Outcome, Pin, PinnedOutput, Probe, Verdict

SPREAD = 0.1  # of the life of a pin: so that not all of them end on one day


def unfit(probe: Probe, answer: ObservedAnswer) -> str | None:
    """Why a finished answer must not be pinned: a condition of the probe does not hold, or it is no
    answer at all. None: it may.
    """
    plain = judge_answer(probe, Outcome.OK, answer.text, answer.finish_reason)
    return plain.reason if plain.verdict in {Verdict.FAIL, Verdict.UNKNOWN} else broken_text(answer)


def doubts(answers: Sequence[ObservedAnswer], noise_nat: float | None) -> list[str]:
    """What a person should know of a pin before it is relied on, in sentences."""
    told: list[str] = []
    if noise_nat is not None and noise_nat > MOST_NOISE_NAT:
        told.append(
            f"its log-probabilities move by {noise_nat:.2f} nat with nothing changed, more "
            f"than {MOST_NOISE_NAT:g}: a change of weights "
            "cannot be told from that, so this pin takes no part in the test of the model "
            "shift; was the server changed or very busy "
            "meanwhile, or does it score an answer otherwise than it gives it?"
        )
    behind = [
        nat
        for answer in answers
        for token in answer.tokens
        if (nat := nat_behind(token)) is not None
    ]
    if max(behind, default=0.0) > MOST_TIE_NAT:
        told.append(
            f"the server took a token {max(behind):.2f} nat less likely than another one: its "
            "temperature, penalties or "
            "generation_config, or a proxy that rewrites requests? Answers drawn by chance "
            "differ from a pin without a fault"
        )
    return told


def outputs_of(answers: Sequence[ObservedAnswer]) -> tuple[PinnedOutput, ...]:
    """Every distinct answer with the means of its tokens' log-probabilities, the most frequent
    first.
    """
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
    return PinnedOutput(
        first.text, tokens, first.token_ids, logprobs, first.finish_reason, len(members), tops
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _mean_top(tops: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The alternatives that every repeat shows, at their mean."""
    shared = set(tops[0]).intersection(*tops[1:])
    return {token: fmean([top[token] for top in tops]) for token in tops[0] if token in shared}


def noise_of(answers: Sequence[ObservedAnswer], outputs: Sequence[PinnedOutput]) -> float | None:
    """The largest move of log-probabilities among the repeats of one answer (nat); None from fewer
    than two repeats of each.
    """
    shifts: list[float] = []
    for output in outputs:
        same: tuple[object, ...] = output.token_ids or output.tokens or (output.text,)
        repeats = [answer for answer in answers if _key(answer) == same]
        moved = [shift_between(output, answer) for answer in repeats] if len(repeats) > 1 else []
        shifts += [m for m in moved if m is not None]
    return max(shifts, default=None)


def expiry(probe: str, now: datetime, life: timedelta) -> datetime:
    """When a pin ends: up to a tenth of its life earlier, by the probe's name, so that not all pins
    end on one day.
    """
    share = int.from_bytes(hashlib.sha256(probe.encode()).digest()[:4]) / 2**32
    return now + life * (1 - SPREAD * share)


def objection(pin: Pin, here: Sequence[Pin], now: datetime, is_known: bool) -> str | None:
    """Why a pin from a file should not be taken without a second thought: it would page on an old
    reference, or undo what a person did here. `here`: this history's pins of the probe; `is_known`:
    whether it is known what is served.
    """
    if pin.expires_at <= now:
        return f"the pin of {pin.probe} expired on {pin.expires_at:%Y-%m-%d}"
    if pin.fingerprint is None and is_known:
        return (
            f"the pin of {pin.probe} does not say under what it was taken (it has no "
            "fingerprint), so that it could never become stale"
        )
    beside = [other for other in here if other.fingerprint in {pin.fingerprint, None}]
    holding = [other for other in beside if other.retired_at is None]
    newer = next((other for other in holding if other.created_at > pin.created_at), None)
    if newer is not None:
        times = (
            f"taken {newer.created_at:%Y-%m-%d %H:%M} UTC, that of the file "
            f"{pin.created_at:%Y-%m-%d %H:%M} UTC"
        )
        return f"pin {newer.id} of {pin.probe} holds and is newer ({times})"
    same = next(
        (
            o
            for o in beside
            if o.retired_at is not None
            and (o.created_at, o.revision) == (pin.created_at, pin.revision)
        ),
        None,
    )
    if (
        same is not None
        and same.retired_at is not None
        and not any(other.created_at == pin.created_at for other in holding)
    ):
        return (
            f"the pin of {pin.probe} was ended here as pin {same.id} "
            f"({same.retired_at:%Y-%m-%d %H:%M} UTC)"
        )
    return None
