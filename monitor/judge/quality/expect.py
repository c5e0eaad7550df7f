"""The quality gate's conditions: whether an answer is what the probe expects. Fails closed: a
missing answer never passes.
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
    """A verdict with one line that explains it."""

    verdict: Verdict
    reason: str | None = None


def judge_answer(
    probe: Probe, outcome: Outcome, output: str | None, finish_reason: str | None = None
) -> Judgement:
    """Judges by the probe's conditions, all of which must hold. Only a finished answer can pass or
    fail; an empty one fails; without conditions it is `unpinned`.
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
    # a model may write anything: an answer that breaks a judge is unjudged, and must not stop the
    # watch
    except Exception as error:
        return Judgement(Verdict.UNKNOWN, not_judged(error))
    if wrong is not None:
        return Judgement(Verdict.FAIL, one_line(wrong))
    if probe.pinned or not probe.expect:
        return Judgement(
            Verdict.UNPINNED,
            "no pin is recorded for it" if probe.pinned else "the probe has no conditions",
        )
    return Judgement(Verdict.PASS)


def not_judged(error: Exception) -> str:
    """Returns the reason for an answer on which a judge raised an exception."""
    return one_line(
        f"the answer could not be judged ({type(error).__name__}: {error}); please report it "
        "with the probe and the answer"
    )


def broken(probe: Probe, observed: ObservedAnswer) -> str | None:
    """Returns why a finished answer is broken, pinned or not: no text, one token repeated, or
    replacement characters.

    Two cases are not failures. A model that was still reasoning when it reached `max_tokens` has
    produced tokens, although no answer. And a probe with `ignore_eos` (an answer of a fixed length)
    makes the model continue after its answer: then it often repeats itself.
    """
    if not observed.text and observed.finish_reason == "length":
        return None
    if probe.sampling.get("ignore_eos"):
        return broken_text(replace(observed, tokens=()))
    return broken_text(observed) or _one_repeated(observed.token_ids)


def _one_repeated(ids: Sequence[int]) -> str | None:
    """Identifies the token by its id, for answers without log-probabilities."""
    tail = ids[-REPEATED_TOKENS:]
    return (
        f"one token is repeated: id {tail[0]}"
        if len(tail) == REPEATED_TOKENS and len(set(tail)) == 1
        else None
    )
