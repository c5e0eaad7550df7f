"""The comparison of an answer with its pin: the same, a near tie, or another answer. Pure.

Greedy output is not stable under load, across cache states or across versions (vLLM
docs/features/batch_invariance; #5898, #40896). So a pin holds a set of accepted answers with the
log-probabilities of their tokens, and a difference is judged at the first token that differs: if
the pinned token is still among the most likely ones and the gap is within the pin's noise, it is a
near tie and not a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import sqrt
from statistics import fmean

from monitor.model import ObservedAnswer, Pin, PinnedOutput, TokenLogprob, Verdict
from monitor.text import shown

#: Below this gap two tokens are a tie on any hardware: bf16 logits vary by some hundredths of a nat
#: with the batch.
LEAST_TIE_NAT = 0.1
#: Two tokens that were a tie when pinned remain one until the other is this much more likely (1.6
#: times): weights of another precision shift them that far (measured on the tiny model of the tests
#: in 4 bits: 0.13 nat), and either was as good an answer when pinned.
MOST_TIE_NAT = 0.5
#: A gap within this multiple of the pin's noise is a tie.
TIE_MOVES = 3.0
REPEATED_TOKENS = 16
REPLACEMENT_RUN = "\ufffd" * 3


@dataclass(frozen=True, slots=True)
class PinJudgement:
    """The verdict with its reason, the index of the first token that differs from the pin, and the
    shift of log-probabilities.
    """

    verdict: Verdict
    reason: str | None = None
    first_divergence: int | None = None
    # root mean square shift of log-probabilities over the whole pinned answer, nat
    logprob_shift: float | None = None


def judge_pinned(pin: Pin, observed: ObservedAnswer) -> PinJudgement:
    """Compares with every accepted answer of the pin; the closest one counts."""
    broken = broken_text(observed)
    if broken is not None:
        return PinJudgement(Verdict.FAIL, broken)
    prompt = other_prompt(pin, observed)
    if prompt is not None:
        return PinJudgement(Verdict.FAIL, prompt)
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
    return _diverged(pin, closest, observed, common)


def other_prompt(pin: Pin, observed: ObservedAnswer) -> str | None:
    """Returns the failure if the prompt has another length than when pinned, which is not a change
    of the model.
    """
    if (
        pin.prompt_tokens is None
        or observed.prompt_tokens is None
        or pin.prompt_tokens == observed.prompt_tokens
    ):
        return None
    return (
        f"the prompt has {observed.prompt_tokens} tokens, pinned are {pin.prompt_tokens}: the chat "
        "template or tokenizer changed"
    )


def broken_text(observed: ObservedAnswer) -> str | None:
    """Returns why an answer is broken whatever the pin says: no text, one token repeated, or
    replacement characters.
    """
    if not observed.text.strip():
        return "the answer is empty"
    tail = [token.token for token in observed.tokens[-REPEATED_TOKENS:]]
    if len(tail) == REPEATED_TOKENS and len(set(tail)) == 1:
        return f"one token is repeated: {tail[0]!r}"
    if REPLACEMENT_RUN in observed.text:
        return "the answer contains runs of U+FFFD: bytes that are not text"
    return None


def _by_text(pin: Pin, observed: ObservedAnswer) -> PinJudgement:
    """Compares the whole text, as there are no tokens: a near tie cannot be distinguished from
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
    """Returns the failure if the answer's finish_reason is that of none of these outputs. An
    unknown finish_reason is never a difference.
    """
    known = {output.finish_reason for output in outputs}
    if observed.finish_reason is None or None in known or observed.finish_reason in known:
        return None
    return (
        f"finish_reason is {observed.finish_reason}, pinned is "
        f"{' or '.join(sorted(filter(None, known)))}"
    )


def _common(output: PinnedOutput, observed: ObservedAnswer) -> int:
    """Returns the number of identical tokens from the beginning."""
    if output.token_ids and observed.token_ids:
        pairs: Sequence[tuple[object, object]] = list(
            zip(output.token_ids, observed.token_ids, strict=False)
        )
    else:
        pairs = list(zip(output.tokens, [t.token for t in observed.tokens], strict=False))
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shift(output: PinnedOutput, observed: ObservedAnswer, common: int) -> float | None:
    """Returns the shift of the log-probabilities of the tokens and their alternatives. A confident
    answer hides a change, its alternatives do not (measured on the tiny model of the tests in 4
    bits: 0.0001 nat for the tokens, tenths of a nat for the alternatives).
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
    """Returns the shift from a pinned output to an answer with the same tokens."""
    return _shift(output, answer, min(len(output.tokens), len(answer.tokens)))


def tie_gap_nat(pin: Pin) -> float:
    """Returns the largest gap of a tie for this pin: MOST_TIE_NAT however noisy it is."""
    return min(MOST_TIE_NAT, max(LEAST_TIE_NAT, TIE_MOVES * (pin.noise_nat or 0.0)))


def _diverged(
    pin: Pin, closest: PinnedOutput, observed: ObservedAnswer, index: int
) -> PinJudgement:
    """Judges the first difference. Another answer does not show how far the pinned one has shifted:
    that takes scoring it.
    """
    expected = closest.tokens[index] if index < len(closest.tokens) else None
    got = observed.tokens[index] if index < len(observed.tokens) else None
    where = f"token {index + 1}"
    if expected is None or got is None:
        longer = "continues after" if expected is None else "ends before"
        return PinJudgement(
            Verdict.FAIL,
            f"the answer {longer} the pinned one ({where}): {shown(observed.text)}",
            index,
        )
    words = f"expected {expected!r}, got {got.token!r} at {where}"
    limit = tie_gap_nat(pin)
    unlikely = _not_most_likely(closest, index, got, limit)
    if unlikely is not None:
        return PinJudgement(Verdict.FAIL, f"{words}, {unlikely}", index)
    alternative = got.top.get(expected)
    if alternative is None or got.logprob is None:
        return PinJudgement(
            Verdict.FAIL, f"{words}; the pinned token is no longer among the most likely", index
        )
    gap, then = got.logprob - alternative, _gap_when_pinned(closest, index, got.token)
    gaps = f"{words}, {abs(gap):.3f} nat apart" + (
        "" if then is None else f" ({abs(then):.3f} {_way(gap, then)} way when pinned)"
    )
    if abs(gap) <= limit or (then is not None and abs(then) <= limit and 0 <= gap <= MOST_TIE_NAT):
        ended = _other_end(pin.outputs, observed)
        # the text may be as good, but not if it was cut off or calls a tool
        if ended is not None:
            return PinJudgement(Verdict.FAIL, f"{ended}; {gaps}", index)
        return PinJudgement(Verdict.NEAR_TIE, f"{gaps}: a near tie", index)
    return PinJudgement(Verdict.FAIL, gaps, index)


def _not_most_likely(
    output: PinnedOutput, index: int, got: TokenLogprob, limit: float
) -> str | None:
    """Returns the failure if another token was clearly more likely than the one that the server
    chose. At temperature 0 it chooses the most likely one whatever the weights, so sampling is at
    fault. None if the same is true of the pinned token (a probe with penalties).
    """
    lost = nat_behind(got)
    if lost is None or lost <= limit:
        return None
    tops = output.tops[index] if index < len(output.tops) else {}
    pinned_lost = nat_behind(TokenLogprob(output.tokens[index], output.logprobs[index], tops))
    if pinned_lost is not None and pinned_lost > limit:
        return None
    best = max(got.top, key=lambda token: got.top[token])
    return (
        f"{lost:.3f} nat less likely than {best!r}: the server did not choose the most likely "
        "token (check its temperature, penalties, generation_config and any proxy that rewrites "
        "requests)"
    )


def nat_behind(token: TokenLogprob) -> float | None:
    """Returns how much more likely the best alternative was than the chosen token, in nat: at most
    0 for the most likely token; None if unknown.
    """
    return (
        None if token.logprob is None or not token.top else max(token.top.values()) - token.logprob
    )


def _way(gap: float, then: float) -> str:
    """Says whether the gap changed its sign. Both are positive if the new token is more likely now,
    and the pinned one was when pinned.
    """
    return "the other" if (gap >= 0) == (then >= 0) else "the same"


def _gap_when_pinned(output: PinnedOutput, index: int, token: str) -> float | None:
    """Returns how much more likely the pinned token was than this one when pinned; None if not
    recorded.
    """
    before = output.tops[index].get(token) if index < len(output.tops) else None
    chosen = output.logprobs[index]
    return None if before is None or chosen is None else chosen - before
