"""The quality gate's plain conditions: is this answer what the probe expects? Fails closed: no
answer is no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from monitor.judge.quality.conditions import complaint
from monitor.judge.quality.pinned import REPEATED_TOKENS, broken_text
from monitor.model import ObservedAnswer, Outcome, Probe, Verdict
from monitor.text import one_line


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the one line that explains it."""

    verdict: Verdict
    reason: str | None = None


def judge_answer(
    probe: Probe, outcome: Outcome, output: str | None, finish_reason: str | None = None
) -> Judgement:
    """All conditions must hold. Only a finished answer can pass or fail; an empty one fails;
    without conditions it is `unpinned`.
    """
    if outcome is Outcome.EMPTY:
        return Judgement(Verdict.FAIL, "the answer is empty")
    if outcome is not Outcome.OK:
        return Judgement(Verdict.UNKNOWN, f"no finished answer to judge ({outcome.value})")
    try:
        complaints = (
            complaint(expectation, output or "", finish_reason) for expectation in probe.expect
        )
        wrong = next((words for words in complaints if words is not None), None)
    # a model may write anything: what a judge trips over is one answer unjudged, never the end of
    # the watch
    except Exception as error:
        return Judgement(Verdict.UNKNOWN, not_judged(error))
    if wrong is not None:
        return Judgement(Verdict.FAIL, one_line(wrong))
    if probe.pinned or not probe.expect:
        return Judgement(
            Verdict.UNPINNED,
            "no pin is recorded for it"
            if probe.pinned
            else "the probe expects nothing in particular",
        )
    return Judgement(Verdict.PASS)


def not_judged(error: Exception) -> str:
    """The sentence about an answer that made a judge fail."""
    return one_line(
        f"the answer could not be judged ({type(error).__name__}: {error}); please report it "
        "with the probe and the answer"
    )


def broken(probe: Probe, observed: ObservedAnswer) -> str | None:
    """What is a failure of any finished answer, pinned or not: nothing said, one token for ever,
    characters that are none.

    Two things are no failure where nothing was pinned. A model that was still reasoning when its
    tokens were used up has said something, though nothing of it is the answer. And a probe that
    forbids the end (`ignore_eos`, for an answer of a fixed length) asks the model to go on after it
    has said everything: then it often repeats itself.
    """
    if not observed.text and observed.finish_reason == "length":
        return None
    if probe.sampling.get("ignore_eos"):
        return broken_text(replace(observed, tokens=()))
    return broken_text(observed) or _one_for_ever(observed.token_ids)


def _one_for_ever(ids: Sequence[int]) -> str | None:
    """By its number, where no log-probabilities were asked for that would name it."""
    tail = ids[-REPEATED_TOKENS:]
    return (
        f"one token is repeated: number {tail[0]}"
        if len(tail) == REPEATED_TOKENS and len(set(tail)) == 1
        else None
    )
