"""The quality gate's plain conditions: is this answer what the probe expects? Fails closed: no answer is no pass."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.model import Expectation, Outcome, Probe, Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the one line that explains it."""

    verdict: Verdict
    reason: str | None = None


def judge_answer(probe: Probe, outcome: Outcome, output: str | None) -> Judgement:
    """All conditions must hold. Only a finished answer can pass or fail; an empty one fails; without conditions it is `unpinned`."""
    if outcome is Outcome.EMPTY:
        return Judgement(Verdict.FAIL, "the answer is empty")
    if outcome is not Outcome.OK:
        return Judgement(Verdict.UNKNOWN, f"no finished answer to judge ({outcome.value})")
    if not probe.expect:
        return Judgement(Verdict.UNPINNED, "the probe expects nothing in particular")
    for expectation in probe.expect:
        complaint = _complaint(expectation, output or "")
        if complaint is not None:
            return Judgement(Verdict.FAIL, complaint)
    return Judgement(Verdict.PASS)


def _complaint(expectation: Expectation, output: str) -> str | None:
    """Why the condition does not hold; None when it does."""
    if expectation.equals is not None and output.strip() != expectation.equals.strip():
        return f"expected {expectation.equals.strip()!r}, got {_short(output)}"
    if expectation.contains is not None and expectation.contains not in output:
        return f"expected {expectation.contains!r} in the answer, got {_short(output)}"
    return None


def _short(text: str, limit: int = 80) -> str:
    text = text.strip()
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
