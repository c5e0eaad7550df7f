"""The six ways in which an answer goes wrong most often, each with the one line that a person reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from monitor.judge.gate import judge_gate
from monitor.model import Expectation, ObservedAnswer, Outcome, Pin, PinnedOutput, Probe, TokenLogprob, Verdict

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
    text: str, *expect: Expectation, finish_reason: str = "stop", pin: Pin | None = None, tokens: int = 0
) -> tuple[Verdict, str | None]:
    """The verdict and its reason. `tokens`: so many times the text as one token each."""
    spelled = tuple(TokenLogprob(text[:1], -0.1) for _ in range(tokens))
    probe = Probe("invoice", "chat", "chat", (), None, 64, {}, 60.0, None, 2.0, 300.0, expect=expect, revision="r1")
    judged = judge_gate(probe, Outcome.OK, ObservedAnswer(text, spelled, (), finish_reason, 9), pin)
    return judged.verdict, judged.reason


@pytest.mark.parametrize(
    ("told_of", "reason"),
    [
        (told(INVOICE.replace("Acme", "Globex"), FIELDS), "vendor: expected Acme, got Globex"),
        (told(INVOICE.replace("250.0", '"250.0"'), FIELDS), "amount: expected the number 250, got the text 250.0"),
        (
            told(INVOICE[:32], FIELDS),
            'the JSON is cut off: Unterminated string starting at: line 1 column 29 (char 28): \'{"invoice": 1043, "vendor": "Acm\'',
        ),
        (told(INVOICE, Expectation(finish_reason="stop"), finish_reason="length"), "expected finish_reason stop, got length"),
        (
            told("I'm sorry, but I can't help with that.", Expectation(refusal=(), negate=True)),
            'expected no refusal, got "I\'m sorry, but I can\'t help with that."',
        ),
        (told("!" * 20, pin=PIN, tokens=20), "one token is repeated: '!'"),
        (told("Am\ufffd\ufffd\ufffdtlich", pin=PIN), "the answer holds runs of U+FFFD: bytes that are no text"),
        (told("  \n", pin=PIN), "the answer is empty"),
    ],
    ids=["wrong value", "wrong type", "truncated JSON", "truncated", "refusal", "one token for ever", "mojibake", "empty"],
)
def test_an_answer_that_went_wrong_fails_with_exactly_this_reason(told_of: tuple[Verdict, str | None], reason: str) -> None:
    assert told_of == (Verdict.FAIL, reason)


def test_the_right_answer_has_no_reason() -> None:
    assert told(INVOICE, FIELDS, Expectation(refusal=(), negate=True)) == (Verdict.PASS, None)
