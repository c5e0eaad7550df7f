"""`summary`: p50 and p95 by class and phase, with confidence intervals. Canaries without a first
token rank above every measured one.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from monitor.cli.common import database_of, moment, now_utc, print_json
from monitor.cli.known import check_names
from monitor.judge.percentiles import Group, Percentile, summarise
from monitor.judge.quality.usable import Key, Usable, refusal_phrases, usable
from monitor.model import Sample
from monitor.show.terminal import console, percentile_text, table
from monitor.store import pins
from monitor.store.database import reading
from monitor.store.queries import SampleFilter, samples

HEADINGS = (
    *("target", "class", "phase", "count", "no first token"),
    *("TTFT p50 ms", "TTFT p95 ms", "ITL p95 ms", "decode p50 tokens/s", "retry or abstain"),
)
FOOTNOTES = (
    "In parentheses: 95 % bounds from order statistics; … if there are too few samples for one (a "
    "p95 needs 59).",
    "Retry or abstain: no finished answer, a wrong one, or a refusal; before: the preceding period "
    "of the same length.",
)


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One class in one phase. `answers` None: no answer to count."""

    group: Group
    answers: Usable | None
    reviews: Sequence[pins.Review]


def run(args: Namespace) -> int:
    """Prints one row per class and phase."""
    rows = _read(args)
    if args.json:
        print_json({"summaries": [_record(row) for row in rows]})
    else:
        _print(rows, args.since)
    return 0


def _read(args: Namespace) -> list[SummaryRow]:
    now = now_utc()
    wanted = SampleFilter(
        since=moment(args.since, now),
        until=moment(args.until, now),
        target=args.target,
        probe=args.probe,
        traffic_class=args.traffic_class,
    )
    preceding = _preceding(wanted, wanted.until or now)
    with reading(database_of(args)) as connection:
        check_names(connection, args)
        found = samples(connection, wanted)
        earlier = [] if preceding is None else samples(connection, preceding)
        expectations = pins.expectations(connection)
        reviews = _by_key(pins.reviews_since(connection, wanted.since), found)
    phrases = {probe: refusal_phrases(expect) for probe, expect in expectations.items()}
    answers = usable(found, earlier, phrases)
    return [
        SummaryRow(group, answers.get(_key(group)), reviews.get(_key(group), []))
        for group in summarise(found)
    ]


def _preceding(wanted: SampleFilter, until: datetime) -> SampleFilter | None:
    """The period of the same length just before; None if the period has no start."""
    if wanted.since is None:
        return None
    length = until - wanted.since
    return replace(wanted, since=wanted.since - length, until=wanted.since)


def _by_key(
    reviews: Sequence[pins.Review], found: Sequence[Sample]
) -> Mapping[Key, list[pins.Review]]:
    keys = {s.id: (s.target, s.traffic_class, s.phase.value) for s in found}
    result = defaultdict[Key, list[pins.Review]](list)
    for review in reviews:
        if review.sample_id in keys:
            result[keys[review.sample_id]].append(review)
    return result


def _key(group: Group) -> Key:
    return (group.target, group.traffic_class, group.phase)


def _record(row: SummaryRow) -> dict[str, object]:
    """`retry_or_abstain`: how often a person must ask again or gets nothing; `reviews`: people's
    verdicts, and how long they took.
    """
    values: dict[str, object] = asdict(row.group)
    values["class"] = values.pop("traffic_class")
    values["retry_or_abstain"] = None if row.answers is None else asdict(row.answers)
    minutes = [r.minutes for r in row.reviews if r.minutes is not None]
    verdicts = {
        verdict: sum(r.verdict == verdict for r in row.reviews)
        for verdict in ("right", "wrong", "corrected")
    }
    values["reviews"] = {**verdicts, "minutes": sum(minutes) if minutes else None}
    first = ("target", "class", "phase", "count", "censored", "unavailable")
    return {name: values[name] for name in first} | values


def _print(rows: Sequence[SummaryRow], since: str) -> None:
    out = console()
    if not rows:
        out.print(f"no samples since {since}")
        return
    out.print(table(HEADINGS, [_cells(row) for row in rows]))
    out.print("\n" + "\n".join(FOOTNOTES), style="dim")


def _cells(row: SummaryRow) -> list[object]:
    g = row.group
    return [
        g.target,
        g.traffic_class,
        g.phase,
        g.count,
        g.censored + g.unavailable,
        percentile_text(g.ttft_ms["p50"], g.count),
        percentile_text(g.ttft_ms["p95"], g.count),
        _or_unknown(g.itl_p95_ms["p50"]),
        _or_unknown(g.decode_tok_s["p50"]),
        _retry_text(row.answers),
    ]


def _retry_text(answers: Usable | None) -> str | None:
    """`3 of 120 (2.5 %, before 0.4 %)`, and `rising` if it rises."""
    if answers is None:
        return None
    before = "" if answers.before is None else f", before {answers.before:.1%}"
    rising = " rising" if answers.rising else ""
    return (
        f"{answers.abstained + answers.retried} of {answers.count} "
        f"({answers.rate:.1%}{before}){rising}"
    )


def _or_unknown(value: Percentile) -> str:
    return percentile_text(value, 0 if value.value is None else 1)
