"""The quality gate: the verdict on one answer, and the pin that it is compared with. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from monitor.judge.quality.expect import Judgement, broken, judge_answer, not_judged
from monitor.judge.quality.pinned import PinJudgement, judge_pinned, other_prompt
from monitor.model import ObservedAnswer, Outcome, Pin, Probe, Verdict
from monitor.model.probe import AGAIN
from monitor.text import one_line


def again(probe: Probe) -> Probe:
    """Returns the second run of a probe that is sent twice with the same salt. It counts as a probe
    of its own, never in one cohort with the first.
    """
    return replace(probe, name=f"{probe.name}{AGAIN}")


def with_second_runs(probes: Iterable[Probe]) -> list[Probe]:
    """Returns every probe that has samples, including the second runs of those sent twice."""
    return [
        each
        for probe in probes
        for each in ([probe, again(probe)] if probe.same_salt_twice else [probe])
    ]


def first_of(probe: Probe) -> str:
    """Returns the name of the probe that this is a run of. A second run asks the same, so it is not
    independent evidence where probes are counted together.
    """
    return probe.name.removesuffix(AGAIN) if probe.same_salt_twice else probe.name


def pin_for(pins: Sequence[Pin], probe: Probe, digest: str | None) -> tuple[Pin | None, bool]:
    """Returns the pin that a probe is judged by, and whether the pin is stale.

    Pins of the current identity come first; one that was recorded under another identity still
    judges, but is stale. A pin of another revision of the probe judges nothing. A second run is
    judged by the pin of the first. `pins`: the newest first.
    """
    names = {probe.name, first_of(probe)}
    own = [
        pin
        for pin in pins
        if pin.probe in names and pin.revision == probe.revision and pin.retired_at is None
    ]
    current = next((pin for pin in own if pin.fingerprint == digest), None)
    if current is not None:
        return current, False
    # Recorded before any identity was known, with no other pin to compare with: not stale until
    # the first identity adopts it (store/pins.adopt).
    without_identity = all(pin.fingerprint is None for pin in own)
    return (own[0], not without_identity) if own else (None, False)


def judge_gate(
    probe: Probe, outcome: Outcome, observed: ObservedAnswer, pin: Pin | None
) -> PinJudgement:
    """Returns the verdict: first what is always a failure, then the conditions, then the pin; all
    must hold.

    An answer that no judge can read is `unknown` and its reason says so: no answer may stop the
    watch. Reasons are one line of at most LONGEST_DETAIL characters.
    """
    try:
        judged = _judged(probe, outcome, observed, pin)
    # a pin written by an older version, an answer of an unforeseen shape
    except Exception as error:
        return PinJudgement(Verdict.UNKNOWN, not_judged(error))
    return judged if judged.reason is None else replace(judged, reason=one_line(judged.reason))


def _judged(
    probe: Probe, outcome: Outcome, observed: ObservedAnswer, pin: Pin | None
) -> PinJudgement:
    if outcome is Outcome.OK:
        # the prompt first: another prompt explains every other difference
        wrong = (None if pin is None else other_prompt(pin, observed)) or broken(probe, observed)
        if wrong is not None:
            return PinJudgement(Verdict.FAIL, wrong)
    plain: Judgement = judge_answer(probe, outcome, observed.text, observed.finish_reason)
    if pin is None or outcome is not Outcome.OK or plain.verdict in {Verdict.FAIL, Verdict.UNKNOWN}:
        return PinJudgement(plain.verdict, plain.reason)
    return judge_pinned(pin, observed)


class ConcurrentLoad(Protocol):
    """The server's other work during a run, as far as it is known."""

    @property
    def running(self) -> float | None: ...
    @property
    def other_generation_tokens(self) -> float | None: ...


def was_alone(run: ConcurrentLoad) -> bool:
    """Whether the server is known to have served no other request during a run.

    The tokens of other requests are the best evidence: the gauge of running requests keeps its
    value when the last request is aborted (vLLM #29928). Where neither can be read, the answer is
    no.
    """
    others = run.other_generation_tokens
    return run.running == 0 if others is None else others <= 0
