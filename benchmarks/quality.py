"""False alarms of the quality gate on greedy answers that flip without a fault, and its delay on
real faults.

    .venv/bin/python benchmarks/quality.py [--quick]

About a minute; part of `make proof`; writes its section of docs/quality-measured.md. The answers
are from a real server (benchmarks/data/gb10_greedy_agreement.csv), judged by the daemon's code:
monitor/judge/quality/pinning.py makes the pins, pinned.py the verdicts, flips.py and
`too_few_passes` the alarms. The data have no log-probabilities, so every flip counts as a failure:
near ties, which the product recognises by them, are not distinguished here.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from statistics import fmean

from common import HERE, Section, machine
from proofpage import QUALITY, stamp, write_section

from monitor.judge.quality.flips import ALARM_NAT, FAILING_RATE, FLIP_RATE, Flips
from monitor.judge.quality.pinned import judge_pinned
from monitor.judge.quality.pinning import outputs_of
from monitor.judge.quality.verdicts import too_few_passes
from monitor.model import ObservedAnswer, Pin, Verdict

DATA = HERE / "data" / "gb10_greedy_agreement.csv"
PROBES, ROUNDS = 12, 96 * 30  # every 15 minutes for 30 days
REPEATS, REQUIRE = 3, 2  # a probe's defaults
PINNING = 5  # repeats of `vllm-canary pin`
EACH_FLIPS = 0.024  # the mean disagreement of two passes over the 600 items
WARM_ROUNDS = 40
ALLOWED_FALSE, ALLOWED_ROUNDS = 0.05, {0.10: 10, 0.50: 2}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Answers = tuple[str, ...]


def items() -> list[Answers]:
    """The six answers to each item."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [tuple(row[1:]) for row in list(csv.reader(file))[1:]]


def fails(pinned: Sequence[str], answer: str) -> bool:
    """Whether an answer fails against a pin made of other answers, by the product's verdict."""
    outputs = outputs_of([ObservedAnswer(text, finish_reason="stop") for text in pinned])
    pin = Pin(
        id=0,
        target="t",
        probe="p",
        revision="r",
        fingerprint=None,
        reason="benchmark",
        author="",
        created_at=NOW,
        expires_at=NOW + timedelta(days=30),
        outputs=outputs,
        prompt_tokens=None,
        noise_nat=None,
    )
    return judge_pinned(pin, ObservedAnswer(answer, finish_reason="stop")).verdict is Verdict.FAIL


def flips_after(data: Sequence[Answers], pinned: int) -> float:
    """The share of answers that fail without a fault when `pinned` passes make the pin and another
    one is judged, over all such choices.
    """
    varying = [answers for answers in data if len(set(answers)) > 1]  # the others never fail
    places = range(len(data[0]))
    shares = [
        fmean(fails([answers[i] for i in chosen], answers[judged]) for answers in varying)
        for chosen in combinations(places, pinned)
        for judged in set(places) - set(chosen)
    ]
    return fmean(shares) * len(varying) / len(data)


# ---- rules: from each probe's probability of failure to the rounds in which an alarm begins


Rule = Callable[[random.Random, Sequence[float], int], Iterator[int]]


def failing(
    rng: random.Random, chances: Sequence[float], rounds: int
) -> Iterator[tuple[int, list[int]]]:
    """The rounds with failures, and the probes that failed in each. The other rounds, by far the
    most, are skipped.
    """
    none = math.prod(1 - chance for chance in chances)
    at = -1
    while none < 1:
        at += 1 + (0 if none == 0 else int(math.log(1 - rng.random()) / math.log(none)))
        if at >= rounds:
            return
        failed: list[int] = []
        while not failed:  # the round was drawn as one with a failure
            failed = [
                probe for probe, chance in enumerate(chances) if chance and rng.random() < chance
            ]
        yield at, failed


def any_failure(rng: random.Random, chances: Sequence[float], rounds: int) -> Iterator[int]:
    """Any failure is an alarm."""
    yield from (at for at, _ in failing(rng, chances, rounds))


def each_alone(rng: random.Random, chances: Sequence[float], rounds: int) -> Iterator[int]:
    """An alarm when two of a probe's last three runs failed."""
    last: dict[int, list[int]] = {}
    for at, failed in failing(rng, chances, rounds):
        for probe in failed:
            before = [run for run in last.get(probe, []) if run > at - REPEATS]
            if too_few_passes([True] * (len(before) + 1), REPEATS, REQUIRE) and not too_few_passes(
                [True] * len(before), REPEATS, REQUIRE
            ):
                yield at
            last[probe] = [*before, at]


def together(rng: random.Random, chances: Sequence[float], rounds: int) -> Iterator[int]:
    """The daemon's CUSUM over all probes."""
    state, place, size = Flips(), 0, len(chances)
    for at, failed in failing(rng, chances, rounds):
        for probe in failed:
            here = at * size + probe
            if here > place:
                state = state.passed(here - place)
            alarmed, place = state.alarmed, here + 1
            state = state.failed(str(probe))
            if state.alarmed and not alarmed:
                yield at


RULES: dict[str, Rule] = {
    "one answer pinned, any other is an alarm": any_failure,
    "each probe alone: 2 of its last 3 runs fail": each_alone,
    "**all probes together: the CUSUM of the daemon**": together,
}


# ---- false alarms


def false_alarms(
    rule: Rule, batteries: Sequence[Sequence[float]], seed: int, rounds: int = ROUNDS
) -> tuple[float, float]:
    """False alarms in 30 days: the mean over batteries and its standard error."""
    rng = random.Random(seed)
    counts = [sum(1 for _ in rule(rng, chances, rounds)) for chances in batteries]
    return fmean(counts), math.sqrt(max(1, sum(counts))) / len(counts)


def replayed(data: Sequence[Answers], repeats: int, count: int, seed: int) -> list[list[float]]:
    """Probabilities of failure in sets of 12 items, pinned by answers drawn from their six."""
    rng = random.Random(seed)
    batteries = []
    for _ in range(count):
        chosen = rng.sample(list(data), PROBES)
        pins = [(answers, [rng.choice(answers) for _ in range(repeats)]) for answers in chosen]
        batteries.append(
            [
                fmean(fails(pinned, a) for a in answers) if len(set(answers)) > 1 else 0.0
                for answers, pinned in pins
            ]
        )
    return batteries


# ---- delay


def delays(
    rule: Rule, chances: Sequence[float], flips: float, count: int, seed: int
) -> tuple[int, int] | None:
    """Rounds from the start of a fault to the alarm: median and 90th percentile. None where half of
    the faults are not detected within 400 rounds.
    """
    rng = random.Random(seed)
    healthy = [flips] * PROBES
    both = [1 - (1 - chance) * (1 - flips) for chance in chances]
    found = sorted(_delay(rule, rng, healthy, both) for _ in range(count))
    middle, late = found[count // 2], found[count * 9 // 10]
    return None if middle >= 400 else (middle, late)


def _delay(rule: Rule, rng: random.Random, healthy: Sequence[float], both: Sequence[float]) -> int:
    """The delay of one fault after WARM_ROUNDS healthy rounds; earlier alarms are closed."""
    if rule is not together:
        return next((at + 1 for at in rule(rng, both, 400)), 400)
    state = Flips()
    for at in range(-WARM_ROUNDS, 400):
        for probe, chance in enumerate(healthy if at < 0 else both):
            state = state.failed(str(probe)) if rng.random() < chance else state.passed()
            if state.alarmed and at >= 0:
                return at + 1
        if state.alarmed:
            state = Flips()
    return 400


@dataclass(frozen=True, slots=True)
class Measured:
    """The two tables, and whether the limits are met."""

    false: Section
    late: Section
    met: bool


def measure(quick: bool) -> Measured:
    """Measures both tables."""
    data, months = items(), 100 if quick else 2500
    after = {n: flips_after(data, n) for n in (1, 3, PINNING)}
    kinds = {
        f"each answer flips with {EACH_FLIPS:.1%}": [[EACH_FLIPS] * PROBES] * months,
        "the 600 items, one answer pinned": replayed(data, 1, months // 5, seed=1),
        f"the 600 items, pinned with {PINNING} repeats": replayed(
            data, PINNING, months // 2, seed=2
        ),
    }
    rows, met = [], True
    for name, rule in RULES.items():
        cells = [name]
        for number, batteries in enumerate(kinds.values()):
            few = batteries if rule is together else batteries[: max(20, months // 10)]
            mean, error = false_alarms(rule, few, seed=10 + number)
            met &= rule is not together or number == 1 or mean <= ALLOWED_FALSE
            cells.append(f"{mean:,.0f}" if mean >= 20 else f"{mean:.3f} ± {error:.3f}")
        rows.append(tuple(cells))
    minute = false_alarms(
        together, kinds[list(kinds)[-1]][: months // 10], seed=20, rounds=ROUNDS * 15
    )
    shares = ", ".join(f"{after[n]:.1%} pinned with {n}" for n in after)
    false = Section(
        "False alarms in 30 days",
        f"{PROBES} probes every 15 minutes. Share of answers that flip without a fault, measured "
        f"by pinning the items in some passes and judging another: {shares}.",
        ("rule", *kinds),
        rows,
        [
            (
                f"With probes every minute, pinned with {PINNING} repeats, the CUSUM has "
                f"{minute[0]:.3f} ± {minute[1]:.3f} false alarms in 30 days."
            )
        ],
    )
    late, in_time = _late(after[PINNING], 200 if quick else 2000)
    return Measured(false, late, met and in_time)


def _late(flips: float, count: int) -> tuple[Section, bool]:
    """The table of delays, for faults of all probes and for faults of some."""
    faults = {
        f"each answer fails with {share:.0%}": [share] * PROBES
        for share in (0.05, 0.10, 0.25, 0.50)
    }
    faults |= {
        f"{n} of {PROBES} probes always fail": [1.0] * n + [0.0] * (PROBES - n)
        for n in (1, 2, 3, 6)
    }
    rows, met = [], True
    for name, chances in faults.items():
        found = {
            rule: delays(rule, chances, flips, count, seed=30) for rule in (each_alone, together)
        }
        limit = ALLOWED_ROUNDS.get(chances[0]) if len(set(chances)) == 1 else None
        pooled = found[together]
        met &= limit is None or (pooled is not None and pooled[0] <= limit)
        rows.append(
            (
                name,
                *("never" if f is None else f"{f[0]} ({f[1]})" for f in found.values()),
                "" if limit is None else f"≤ {limit}",
            )
        )
    text = (
        f"In rounds of {PROBES} probes: median (90th percentile). Answers also flip without a "
        f"fault with {flips:.1%}."
    )
    return Section(
        "Delay", text, ("fault", "each probe alone", "all together (CUSUM)", "limit"), rows
    ), met


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description="false alarms and delay of the quality gate")
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the runs; writes nothing"
    )
    quick = parser.parse_args().quick
    found = measure(quick)
    head = (
        f"Written by `.venv/bin/python benchmarks/quality.py` (`make proof`): {stamp()}; "
        f"{machine()}.\n"
        f"The CUSUM: {FAILING_RATE} against {FLIP_RATE}, alarm at {ALARM_NAT} nat.\n"
    )
    text = "\n".join(
        [
            head,
            found.false.markdown().replace("## ", "### "),
            found.late.markdown().replace("## ", "### "),
        ]
    )
    print(text)
    if not quick:
        write_section("flips", text.splitlines(), QUALITY)
    print("limits met" if found.met else "limits NOT met")
    return 0 if found.met else 1


if __name__ == "__main__":
    sys.exit(main())
