"""An answer against its pin: the same, a near tie, or another answer. Pure.

Greedy output is not stable under load, across cache states or versions (vLLM:
docs/features/batch_invariance; #5898, #40896). So a pin holds a set of accepted answers with the
log-probabilities of their tokens, and a difference is judged where it begins: when the pinned token
was still among the likeliest there, and the gap is no more than this pin's own noise, the two are a
near tie and not a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import sqrt
from statistics import fmean

from monitor.judge.quality.conditions import shown
from monitor.model import ObservedAnswer, Pin, PinnedOutput, TokenLogprob, Verdict

#: Below this gap two tokens are a tie on any hardware: bf16 logits were seen to wander by some
#: hundredths of a nat with the batch.
LEAST_TIE_NAT = 0.1
#: Two tokens that were a tie when pinned stay one until the other is this much likelier (1.6
#: times): weights of another precision move them so far (measured on the tiny model of the tests in
#: 4 bits: 0.13 nat), and either was as good an answer then.
MOST_TIE_NAT = 0.5
#: A gap within this many times the largest move among the pin's own repeats is the pin's own noise.
TIE_MOVES = 3.0
REPEATED_TOKENS = 16
REPLACEMENT_RUN = "\ufffd" * 3


@dataclass(frozen=True, slots=True)
class PinJudgement:
    """The verdict with its reason; where the answer parts from the pin (token index), and how much
    likelier or unlikelier it became.
    """

    verdict: Verdict
    reason: str | None = None
    first_divergence: int | None = None
    logprob_shift: float | None = (
        None  # root mean square move of log-probabilities over the whole pinned answer, nat
    )


def judge_pinned(pin: Pin, observed: ObservedAnswer) -> PinJudgement:
    """Compare with every accepted answer of the pin; the closest one counts."""
    broken = broken_text(observed)
    if broken is not None:
        return PinJudgement(Verdict.FAIL, broken)
    blamed = other_prompt(pin, observed)
    if blamed is not None:
        return PinJudgement(Verdict.FAIL, blamed)
    if not observed.tokens:
        return _by_text(pin, observed)
    closest = max(pin.outputs, key=lambda output: _common(output, observed))
    common = _common(closest, observed)
    if common == len(closest.tokens) == len(observed.tokens):
        shift = _shift(closest, observed, common)
        if closest.finish_reason != observed.finish_reason:
            reason = f"finish_reason is {observed.finish_reason}, pinned is {closest.finish_reason}"
            return PinJudgement(Verdict.FAIL, reason, logprob_shift=shift)
        return PinJudgement(Verdict.PASS, logprob_shift=shift)
    return _parted(pin, closest, observed, common)


def other_prompt(pin: Pin, observed: ObservedAnswer) -> str | None:
    """The sentence where the prompt itself became longer or shorter; the model is not to blame
    then.
    """
    if (
        pin.prompt_tokens is None
        or observed.prompt_tokens is None
        or pin.prompt_tokens == observed.prompt_tokens
    ):
        return None
    return (
        f"prompt is {observed.prompt_tokens} tokens, was {pin.prompt_tokens}: chat template "
        "or tokenizer changed"
    )


def broken_text(observed: ObservedAnswer) -> str | None:
    """What is a failure whatever the pin says: nothing, one token for ever, or characters that are
    none.
    """
    if not observed.text.strip():
        return "the answer is empty"
    tail = [token.token for token in observed.tokens[-REPEATED_TOKENS:]]
    if len(tail) == REPEATED_TOKENS and len(set(tail)) == 1:
        return f"one token is repeated: {tail[0]!r}"
    if REPLACEMENT_RUN in observed.text:
        return "the answer holds runs of U+FFFD: bytes that are no text"
    return None


def _by_text(pin: Pin, observed: ObservedAnswer) -> PinJudgement:
    """Without tokens only the whole text can be compared, and a near tie cannot be told from
    another answer.
    """
    same = [output for output in pin.outputs if output.text == observed.text]
    if same:
        ended = _other_end(same, observed)
        return PinJudgement(Verdict.PASS) if ended is None else PinJudgement(Verdict.FAIL, ended)
    return PinJudgement(
        Verdict.FAIL, f"expected {shown(pin.outputs[0].text)}, got {shown(observed.text)}"
    )


def _other_end(outputs: Sequence[PinnedOutput], observed: ObservedAnswer) -> str | None:
    """The sentence where the answer ended for a reason that none of these outputs has. A reason
    that is not known is no other one.
    """
    known = {output.finish_reason for output in outputs}
    if observed.finish_reason is None or None in known or observed.finish_reason in known:
        return None
    return (
        f"finish_reason is {observed.finish_reason}, pinned is "
        f"{' or '.join(sorted(filter(None, known)))}"
    )


def _common(output: PinnedOutput, observed: ObservedAnswer) -> int:
    """How many tokens are the same from the beginning."""
    if output.token_ids and observed.token_ids:
        pairs: Sequence[tuple[object, object]] = list(
            zip(output.token_ids, observed.token_ids, strict=False)
        )
    else:
        pairs = list(zip(output.tokens, [t.token for t in observed.tokens], strict=False))
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shift(output: PinnedOutput, observed: ObservedAnswer, common: int) -> float | None:
    """How far log-probabilities moved, of the tokens and of their alternatives: a confident answer
    hides a change, what else could have come does not (measured on the tiny model of the tests in 4
    bits: 0.0001 nat on the tokens, tenths of a nat beside them).
    """
    moved: list[float] = []
    for index in range(common):
        then, now = output.logprobs[index], observed.tokens[index].logprob
        if then is not None and now is not None:
            moved.append(now - then)
        before = output.tops[index] if index < len(output.tops) else {}
        same = output.tokens[index]
        moved += [
            v - before[t]
            for t, v in observed.tokens[index].top.items()
            if t in before and t != same
        ]
    return sqrt(fmean([m * m for m in moved])) if moved else None


def shift_between(output: PinnedOutput, answer: ObservedAnswer) -> float | None:
    """The move from a pinned output to an answer with the same tokens."""
    return _shift(output, answer, min(len(output.tokens), len(answer.tokens)))


def tie_gap_nat(pin: Pin) -> float:
    """How far apart two tokens may be and still be a tie for this pin. However noisy it is: what is
    MOST_TIE_NAT apart is no tie.
    """
    return min(MOST_TIE_NAT, max(LEAST_TIE_NAT, TIE_MOVES * (pin.noise_nat or 0.0)))


def _parted(pin: Pin, closest: PinnedOutput, observed: ObservedAnswer, index: int) -> PinJudgement:
    """Judged where it begins. How far the pinned answer moved is not known from another answer:
    somebody has to have it scored.
    """
    expected = closest.tokens[index] if index < len(closest.tokens) else None
    got = observed.tokens[index] if index < len(observed.tokens) else None
    where = f"token {index + 1}"
    if expected is None or got is None:
        longer = "goes on after" if expected is None else "ends before"
        return PinJudgement(
            Verdict.FAIL,
            f"the answer {longer} the pinned one ({where}): {shown(observed.text)}",
            index,
        )
    words = f"expected {expected!r}, got {got.token!r} at {where}"
    limit = tie_gap_nat(pin)
    unlikely = _not_the_likeliest(closest, index, got, limit)
    if unlikely is not None:
        return PinJudgement(Verdict.FAIL, f"{words}, {unlikely}", index)
    alternative = got.top.get(expected)
    if alternative is None or got.logprob is None:
        return PinJudgement(
            Verdict.FAIL, f"{words}; the pinned token is not among the likeliest any more", index
        )
    gap, then = got.logprob - alternative, _gap_when_pinned(closest, index, got.token)
    told = f"{words}, {abs(gap):.3f} nat apart" + (
        "" if then is None else f" ({abs(then):.3f} {_way(gap, then)} way when pinned)"
    )
    if abs(gap) <= limit or (then is not None and abs(then) <= limit and 0 <= gap <= MOST_TIE_NAT):
        ended = _other_end(pin.outputs, observed)
        if (
            ended is not None
        ):  # the text may be as good; that it was cut off, or called a tool, is not
            return PinJudgement(Verdict.FAIL, f"{ended}; {told}", index)
        return PinJudgement(Verdict.NEAR_TIE, f"{told}: a near tie", index)
    return PinJudgement(Verdict.FAIL, told, index)


def _not_the_likeliest(
    output: PinnedOutput, index: int, got: TokenLogprob, limit: float
) -> str | None:
    """The sentence where the server itself held another token for clearly likelier than the one
    that it took. At temperature 0 it takes the likeliest, whatever the weights: then it is the
    sampling that went wrong. Where the pinned token was none either (a probe with penalties of its
    own), this says nothing.
    """
    lost = nat_behind(got)
    if lost is None or lost <= limit:
        return None
    tops = output.tops[index] if index < len(output.tops) else {}
    pinned_lost = nat_behind(TokenLogprob(output.tokens[index], output.logprobs[index], tops))
    if pinned_lost is not None and pinned_lost > limit:
        return None
    likeliest = max(got.top, key=lambda token: got.top[token])
    return (
        f"{lost:.3f} nat less likely than {likeliest!r}: the server did not take the "
        "likeliest token "
        "(its temperature, penalties or generation_config, or a proxy that rewrites requests?)"
    )


def nat_behind(token: TokenLogprob) -> float | None:
    """How much likelier than the token that was taken another one was there; None where that is not
    known, at most 0 for the likeliest.
    """
    return (
        None if token.logprob is None or not token.top else max(token.top.values()) - token.logprob
    )


def _way(gap: float, then: float) -> str:
    """Both are positive where the token that came is the likelier one now, and the pinned one was
    when it was pinned.
    """
    return "the other" if (gap >= 0) == (then >= 0) else "the same"


def _gap_when_pinned(output: PinnedOutput, index: int, token: str) -> float | None:
    """How much likelier the pinned token was than this one, when it was pinned; None where that was
    not recorded.
    """
    before = output.tops[index].get(token) if index < len(output.tops) else None
    chosen = output.logprobs[index]
    return None if before is None or chosen is None else chosen - before
