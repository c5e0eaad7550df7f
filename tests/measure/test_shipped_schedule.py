"""What the shipped probes cost: a day of the default schedule within the default budget, whatever
the model says.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from monitor.config.places import shipped_probes_dir
from monitor.config.probes import load_probes
from monitor.config.settings import Settings
from monitor.config.target import DEFAULT_TOKEN_BUDGET
from monitor.daemon.budget import RESERVE, TokenLedger, hourly_cost
from monitor.model import Probe

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONTEXT = 131_072  # of the common open models; a shorter one makes the long prompts shorter
#: Common tokenizers make a token of 4 to 5 letters of English; a chat template adds some to each
#: message and to the whole.
LETTERS_A_TOKEN, TOKENS_A_MESSAGE, TOKENS_OF_TEMPLATE = 3.5, 8, 24


def shipped() -> tuple[Probe, ...]:
    settings = Settings.model_validate(
        {"targets": [{"name": "local", "url": "http://127.0.0.1:8000"}]}
    )
    return load_probes(shipped_probes_dir(), settings)


def prompt_tokens(probe: Probe) -> int:
    """A prompt's length, rather too long than too short."""
    messages = probe.messages or ()
    told = (
        round(sum(len(m["content"]) for m in messages) / LETTERS_A_TOKEN)
        + TOKENS_A_MESSAGE * len(messages)
        + TOKENS_OF_TEMPLATE
    )
    return (
        told
        if probe.context_share is None
        else max(told, min(int(probe.context_share * CONTEXT), probe.context_at_most))
    )


def test_an_hour_of_the_shipped_schedule_with_the_longest_answers_leaves_the_reserve() -> None:
    costs = {probe.name: hourly_cost(probe, prompt_tokens(probe)) for probe in shipped()}
    assert None not in costs.values()
    assert sum(cost or 0.0 for cost in costs.values()) <= DEFAULT_TOKEN_BUDGET * (1 - RESERVE), (
        costs
    )


def test_no_run_of_a_day_is_skipped_for_the_budget() -> None:
    ledger = TokenLedger(DEFAULT_TOKEN_BUDGET, ())
    runs = sorted(
        (NOON + timedelta(seconds=number * (probe.every_s or 0.0)), probe.name, probe)
        for probe in shipped()
        for number in range(int(86_400 / (probe.every_s or 86_400)))
    )
    for at, _, probe in runs:
        for _ in range(2 if probe.same_salt_twice else 1):
            assert ledger.allows(probe, at), f"{probe.name} after {at - NOON}"
            ledger.note(probe, at, prompt_tokens(probe), probe.max_tokens)


@pytest.mark.parametrize(
    "name", ["smooth-stream", "prefix-pair", "long-context", "chat-uncapped", "decode-fixed"]
)
def test_the_probes_that_measure_one_thing_are_there_with_their_reason(name: str) -> None:
    probe = next(probe for probe in shipped() if probe.name == name)
    assert probe.reason
    fixed = {"smooth-stream": 256, "decode-fixed": 128}.get(name)
    # always the same number of tokens, or gaps and rates would depend on what the model says
    if fixed is not None:
        assert (probe.max_tokens, probe.sampling["min_tokens"], probe.sampling["ignore_eos"]) == (
            fixed,
            fixed,
            True,
        )
    assert probe.same_salt_twice is (name == "prefix-pair")
    assert probe.capped is (name != "chat-uncapped")
