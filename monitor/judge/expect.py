"""The quality gate's plain conditions: is this answer what the probe expects? Fails closed: no answer is no pass."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.judge.conditions import complaint
from monitor.model import Outcome, Probe, Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the one line that explains it."""

    verdict: Verdict
    reason: str | None = None


def judge_answer(probe: Probe, outcome: Outcome, output: str | None, finish_reason: str | None = None) -> Judgement:
    """All conditions must hold. Only a finished answer can pass or fail; an empty one fails; without conditions it is `unpinned`."""
    if outcome is Outcome.EMPTY:
        return Judgement(Verdict.FAIL, "the answer is empty")
    if outcome is not Outcome.OK:
        return Judgement(Verdict.UNKNOWN, f"no finished answer to judge ({outcome.value})")
    for expectation in probe.expect:
        wrong = complaint(expectation, output or "", finish_reason)
        if wrong is not None:
            return Judgement(Verdict.FAIL, wrong)
    if probe.pinned or not probe.expect:
        return Judgement(Verdict.UNPINNED, "no pin is recorded for it" if probe.pinned else "the probe expects nothing in particular")
    return Judgement(Verdict.PASS)
