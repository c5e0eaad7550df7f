"""Pins: how they are made from repeated answers, their noise and their expiry. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import fmean

from monitor.judge.quality.expect import judge_answer
from monitor.judge.quality.gate import pin_for
from monitor.judge.quality.pinned import MOST_TIE_NAT, broken_text, nat_behind, shift_between
from monitor.judge.quality.shift import MOST_NOISE_NAT
from monitor.model import (
    Finding,
    Kind,
    ObservedAnswer,
    Outcome,
    Pin,
    PinnedOutput,
    Probe,
    Severity,
    Verdict,
)

SPREAD = 0.1  # of the life of a pin, so that not all pins expire on one day


def unfit(probe: Probe, answer: ObservedAnswer) -> str | None:
    """Returns why a finished answer must not be pinned: a condition of the probe does not hold, or
    the answer is broken. None: it may be pinned.
    """
    plain = judge_answer(probe, Outcome.OK, answer.text, answer.finish_reason)
    return plain.reason if plain.verdict in {Verdict.FAIL, Verdict.UNKNOWN} else broken_text(answer)


def doubts(answers: Sequence[ObservedAnswer], noise_nat: float | None) -> list[str]:
    """Returns warnings about a new pin, as sentences."""
    found: list[str] = []
    if noise_nat is not None and noise_nat > MOST_NOISE_NAT:
        found.append(
            f"its log-probabilities vary by {noise_nat:.2f} nat without any change, more than "
            f"{MOST_NOISE_NAT:g} nat: changed weights cannot be distinguished from that, so the "
            "test of the model shift does not use this pin; check whether the server was changed "
            "or very busy meanwhile, or scores an answer differently from how it generates it"
        )
    behind = [
        nat
        for answer in answers
        for token in answer.tokens
        if (nat := nat_behind(token)) is not None
    ]
    if max(behind, default=0.0) > MOST_TIE_NAT:
        found.append(
            f"the server chose a token that was {max(behind):.2f} nat less likely than another: "
            "check its temperature, penalties, generation_config and any proxy that rewrites "
            "requests; sampled answers differ from a pin without any fault"
        )
    return found


def outputs_of(answers: Sequence[ObservedAnswer]) -> tuple[PinnedOutput, ...]:
    """Returns every distinct answer with the mean log-probabilities of its tokens, the most
    frequent answer first.
    """
    groups: dict[tuple[object, ...], list[ObservedAnswer]] = {}
    for answer in answers:
        groups.setdefault(_key(answer), []).append(answer)
    outputs = [_output(members) for members in groups.values()]
    return tuple(sorted(outputs, key=lambda output: -output.count))


def _key(answer: ObservedAnswer) -> tuple[object, ...]:
    """Returns what makes two answers the same: their tokens, or else their text."""
    tokens: tuple[object, ...] = tuple(token.token for token in answer.tokens)
    return answer.token_ids or tokens or (answer.text,)


def _output(members: Sequence[ObservedAnswer]) -> PinnedOutput:
    first = members[0]
    places = range(len(first.tokens))
    logprobs = tuple(_mean([m.tokens[i].logprob for m in members]) for i in places)
    tops = tuple(_mean_top([m.tokens[i].top for m in members]) for i in places)
    tokens = tuple(t.token for t in first.tokens)
    return PinnedOutput(
        text=first.text,
        tokens=tokens,
        token_ids=first.token_ids,
        logprobs=logprobs,
        finish_reason=first.finish_reason,
        count=len(members),
        tops=tops,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _mean_top(tops: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the alternatives that every repeat has, with their mean."""
    shared = set(tops[0]).intersection(*tops[1:])
    return {token: fmean([top[token] for top in tops]) for token in tops[0] if token in shared}


def noise_of(answers: Sequence[ObservedAnswer], outputs: Sequence[PinnedOutput]) -> float | None:
    """Returns the largest shift of log-probabilities between repeats of one answer, in nat; None if
    no answer was repeated.
    """
    shifts: list[float] = []
    for output in outputs:
        same: tuple[object, ...] = output.token_ids or output.tokens or (output.text,)
        repeats = [answer for answer in answers if _key(answer) == same]
        moved = [shift_between(output, answer) for answer in repeats] if len(repeats) > 1 else []
        shifts += [m for m in moved if m is not None]
    return max(shifts, default=None)


def expiry(probe: str, now: datetime, life: timedelta) -> datetime:
    """Returns when a pin expires: earlier by up to a tenth of its life, depending on the probe's
    name, so that not all pins expire on one day.
    """
    share = int.from_bytes(hashlib.sha256(probe.encode()).digest()[:4]) / 2**32
    return now + life * (1 - SPREAD * share)


def objection(pin: Pin, here: Sequence[Pin], now: datetime, is_known: bool) -> str | None:
    """Returns why a pin should not be imported without `--force`: it would page on an old
    reference, or undo what a person did in this history. `here`: this history's pins of the probe;
    `is_known`: whether the identity of the server is known.
    """
    if pin.expires_at <= now:
        return f"the pin of {pin.probe} expired on {pin.expires_at:%Y-%m-%d}"
    if pin.fingerprint is None and is_known:
        return (
            f"the pin of {pin.probe} does not name the configuration it was recorded under (no "
            "fingerprint), so it could never become stale"
        )
    comparable = [other for other in here if other.fingerprint in {pin.fingerprint, None}]
    active = [other for other in comparable if other.retired_at is None]
    newer = next((other for other in active if other.created_at > pin.created_at), None)
    if newer is not None:
        times = (
            f"recorded {newer.created_at:%Y-%m-%d %H:%M} UTC, the one in the file "
            f"{pin.created_at:%Y-%m-%d %H:%M} UTC"
        )
        return f"pin {newer.id} of {pin.probe} is active and newer ({times})"
    same = next(
        (
            o
            for o in comparable
            if o.retired_at is not None
            and (o.created_at, o.revision) == (pin.created_at, pin.revision)
        ),
        None,
    )
    if (
        same is not None
        and same.retired_at is not None
        and not any(other.created_at == pin.created_at for other in active)
    ):
        return (
            f"the pin of {pin.probe} was retired in this history as pin {same.id} "
            f"({same.retired_at:%Y-%m-%d %H:%M} UTC)"
        )
    return None


def judge_pin_expiry(
    target: str, probes: Sequence[Probe], pins: Sequence[Pin], digest: str | None, now: datetime
) -> list[Finding]:
    """Returns the expired pins that are in use: they still judge, and need renewal. `probes`: as
    they are sent to this target.
    """
    judging = (pin_for(pins, probe, digest)[0] for probe in probes)
    expired = {pin.probe: pin for pin in judging if pin is not None and pin.expires_at <= now}
    return [
        Finding(
            kind=Kind.PIN_EXPIRED,
            target=target,
            subject=pin.probe,
            severity=Severity.INFO,
            since=pin.expires_at,
            evidence={
                "pin": pin.id,
                "reason": pin.reason,
                "created_at": pin.created_at.isoformat(),
            },
        )
        for pin in expired.values()
    ]
