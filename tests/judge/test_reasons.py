"""The six ways in which an answer goes wrong most often, each with the one line that a person
reads.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.judge.quality.gate import judge_gate
from monitor.model import (
    Expectation,
    ObservedAnswer,
    Outcome,
    Pin,
    PinnedOutput,
    Probe,
    TokenLogprob,
    Verdict,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
INVOICE = '{"invoice": 1043, "vendor": "Acme", "amount": 250.0}'
FIELDS = Expectation(json_fields={"invoice": 1043, "vendor": "Acme", "amount": 250})
PIN = Pin(
    1,
    "local",
    "invoice",
    "r1",
    None,
    "checked",
    "me",
    NOON,
    NOON + timedelta(days=30),
    (PinnedOutput(INVOICE, ("{", "…", "}"), (), (-0.1, -0.1, -0.1), "stop"),),
    9,
    0.0,
)


def told(
    text: str,
    *expect: Expectation,
    finish_reason: str = "stop",
    pin: Pin | None = None,
    tokens: int = 0,
) -> tuple[Verdict, str | None]:
    """The verdict and its reason. `tokens`: so many times the text as one token each."""
    spelled = tuple(TokenLogprob(text[:1], -0.1) for _ in range(tokens))
    probe = Probe(
        "invoice",
        "chat",
        "chat",
        (),
        None,
        64,
        {},
        60.0,
        None,
        2.0,
        300.0,
        expect=expect,
        revision="r1",
    )
    judged = judge_gate(probe, Outcome.OK, ObservedAnswer(text, spelled, (), finish_reason, 9), pin)
    return judged.verdict, judged.reason


@pytest.mark.parametrize(
    ("told_of", "reason"),
    [
        (told(INVOICE.replace("Acme", "Globex"), FIELDS), "vendor: expected Acme, got Globex"),
        (
            told(INVOICE.replace("250.0", '"250.0"'), FIELDS),
            "amount: expected the number 250, got the string 250.0",
        ),
        (
            told(INVOICE[:32], FIELDS),
            (
                "the JSON is cut off: Unterminated string starting at: line 1 column 29 (char 28): "
                '\'{"invoice": 1043, "vendor": "Acm\''
            ),
        ),
        (
            told(INVOICE, Expectation(finish_reason="stop"), finish_reason="length"),
            "expected finish_reason stop, got length",
        ),
        (
            told("I'm sorry, but I can't help with that.", Expectation(refusal=(), negate=True)),
            "expected no refusal, got \"I'm sorry, but I can't help with that.\"",
        ),
        (told("!" * 20, pin=PIN, tokens=20), "one token is repeated: '!'"),
        (
            told("Am\ufffd\ufffd\ufffdtlich", pin=PIN),
            "the answer contains runs of U+FFFD: bytes that are not text",
        ),
        (told("  \n", pin=PIN), "the answer is empty"),
    ],
    ids=[
        "wrong value",
        "wrong type",
        "truncated JSON",
        "truncated",
        "refusal",
        "one token for ever",
        "mojibake",
        "empty",
    ],
)
def test_an_answer_that_went_wrong_fails_with_exactly_this_reason(
    told_of: tuple[Verdict, str | None], reason: str
) -> None:
    assert told_of == (Verdict.FAIL, reason)


def test_the_right_answer_has_no_reason() -> None:
    assert told(INVOICE, FIELDS, Expectation(refusal=(), negate=True)) == (Verdict.PASS, None)


# ---- what is wrong without a pin too


def judged(
    text: str,
    *expect: Expectation,
    finish_reason: str = "stop",
    pin: Pin | None = None,
    **other: Any,
) -> tuple[Verdict, str | None]:
    """The verdict of a probe with these conditions; `sampling` is the probe's, the rest the
    answer's.
    """
    probe = Probe(
        "p",
        "chat",
        "chat",
        (),
        None,
        64,
        other.pop("sampling", {}),
        60.0,
        None,
        2.0,
        300.0,
        expect=expect,
        revision="r1",
    )
    found = judge_gate(
        probe,
        Outcome.OK,
        ObservedAnswer(text, finish_reason=finish_reason, prompt_tokens=9, **other),
        pin,
    )
    return found.verdict, found.reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"text": " \n "}, "the answer is empty"),
        ({"text": "", "finish_reason": "stop"}, "the answer is empty"),
        (
            {"text": "!" * 32, "tokens": (TokenLogprob("!", -0.1),) * 32},
            "one token is repeated: '!'",
        ),
        ({"text": "!" * 32, "token_ids": (7,) * 32}, "one token is repeated: id 7"),
        (
            {"text": "Paris\ufffd\ufffd\ufffd\ufffd"},
            "the answer contains runs of U+FFFD: bytes that are not text",
        ),
    ],
)
@pytest.mark.parametrize(
    "expect", [(), (Expectation(not_contains="Tokyo"),)], ids=["expects nothing", "condition holds"]
)
def test_a_broken_answer_fails_without_a_pin_too(
    answer: dict[str, Any], reason: str, expect: tuple[Expectation, ...]
) -> None:
    assert judged(answer["text"], *expect, **{k: v for k, v in answer.items() if k != "text"}) == (
        Verdict.FAIL,
        reason,
    )


def test_a_model_that_was_still_reasoning_has_not_failed_where_nothing_is_expected() -> None:
    assert judged("", finish_reason="length")[0] is Verdict.UNPINNED
    assert judged("", Expectation(contains="Paris"), finish_reason="length")[0] is Verdict.FAIL


def test_a_model_that_must_go_on_after_the_end_may_repeat_itself() -> None:
    endless = {"token_ids": (7,) * 32, "tokens": (TokenLogprob("!", -0.1),) * 32}
    assert judged("!" * 32, sampling={"ignore_eos": True}, **endless)[0] is Verdict.UNPINNED
    assert judged("a\ufffd\ufffd\ufffd", sampling={"ignore_eos": True})[0] is Verdict.FAIL


TIE = (TokenLogprob("{", -0.1), TokenLogprob("~", -0.1, {"…": -0.12}))


def test_a_near_tie_that_ended_otherwise_than_pinned_is_a_failure() -> None:
    assert judged("{~", pin=PIN, tokens=TIE)[0] is Verdict.NEAR_TIE
    words = (
        "finish_reason is length, pinned is stop; expected '…', got '~' at token 2, 0.020 nat apart"
    )
    assert judged("{~", pin=PIN, tokens=TIE, finish_reason="length") == (Verdict.FAIL, words)


def test_the_pinned_text_that_ended_otherwise_is_a_failure_without_log_probabilities_too() -> None:
    assert judged(INVOICE, pin=PIN)[0] is Verdict.PASS
    assert judged(INVOICE, pin=PIN, finish_reason="length") == (
        Verdict.FAIL,
        "finish_reason is length, pinned is stop",
    )


# ---- what a judge trips over


def test_what_a_judge_cannot_read_is_unknown_with_its_reason_and_never_raised() -> None:
    verdict, reason = judged('{"a": 1}', Expectation(json_schema={"$ref": "#/$defs/nope"}))
    assert verdict is Verdict.UNKNOWN
    assert (reason or "").startswith(
        "the answer could not be judged (_WrappedReferencingError: PointerToNowhere:"
    )
    odd = replace(PIN, outputs=(replace(PIN.outputs[0], logprobs=("-0.1",) * 3),))  # type: ignore[arg-type]
    tokens = tuple(TokenLogprob(token, -0.1) for token in PIN.outputs[0].tokens)
    verdict, reason = judged(INVOICE, pin=odd, tokens=tokens)
    assert verdict is Verdict.UNKNOWN
    assert (reason or "").startswith("the answer could not be judged (TypeError")


def test_a_reason_is_one_short_printable_line_whatever_the_model_wrote() -> None:
    tokens = (TokenLogprob("\x1b]0;owned\x07\n" + "x" * 100_000, -0.1),)
    for pin in (PIN, replace(PIN, outputs=(replace(PIN.outputs[0], text="\x1b[2J\n" * 1000),))):
        verdict, reason = judged("\x1b[2J\n" * 1000, pin=pin, tokens=tokens)
        assert verdict is Verdict.FAIL
        assert (reason or "").isprintable()
        assert len(reason or "") <= 400
