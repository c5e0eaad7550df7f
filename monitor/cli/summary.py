"""`summary`: p50 and p95 by class and phase, with intervals; canaries without a first token rank
above every measured one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from monitor.cli.common import (
    check_names,
    config_arguments,
    database_of,
    filter_arguments,
    json_argument,
    moment,
    now_utc,
    print_json,
)
from monitor.judge.percentiles import Group, summarise
from monitor.judge.quality.usable import Key, Usable, refusal_phrases, usable


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    config_arguments(parser)
    filter_arguments(parser, since="24h")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print one row a class and phase."""
    from monitor.store import pins  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.store.database import reading  # noqa: PLC0415
    from monitor.store.queries import SampleFilter, samples  # noqa: PLC0415

    now = now_utc()
    since, until = moment(args.since, now), moment(args.until, now)
    wanted = SampleFilter(
        since=since,
        until=until,
        target=args.target,
        probe=args.probe,
        traffic_class=args.traffic_class,
    )
    with reading(database_of(args)) as connection:
        check_names(connection, args)
        found = samples(connection, wanted)
        earlier = (
            []
            if since is None
            else samples(
                connection, replace(wanted, since=since - ((until or now) - since), until=since)
            )
        )
        phrases = {
            probe: refusal_phrases(expect)
            for probe, expect in pins.expectations(connection).items()
        }
        said = pins.reviews_since(connection, since)
    groups, answers = summarise(found), usable(found, earlier, phrases)
    if args.json:
        of = {s.id: (s.target, s.traffic_class, s.phase.value) for s in found}
        reviews = {key: [r for r in said if of.get(r.sample_id) == key] for key in set(of.values())}
        print_json(
            {
                "summaries": [
                    _record(g, answers.get(_key(g)), reviews.get(_key(g), [])) for g in groups
                ]
            }
        )
    else:
        _table(groups, answers, args.since)
    return 0


def _key(group: Group) -> Key:
    return (group.target, group.traffic_class, group.phase)


def _record(group: Group, answers: Usable | None, reviews: Sequence[Any]) -> dict[str, Any]:
    """`retry_or_abstain`: how often a person would have to ask again or gets nothing; `reviews`:
    what people said and how long it took.
    """
    values: dict[str, Any] = asdict(group)
    values["retry_or_abstain"] = None if answers is None else asdict(answers)
    minutes = [r.minutes for r in reviews if r.minutes is not None]
    verdicts = {
        verdict: sum(r.verdict == verdict for r in reviews)
        for verdict in ("right", "wrong", "corrected")
    }
    values["reviews"] = {**verdicts, "minutes": sum(minutes) if minutes else None}
    values["class"] = values.pop("traffic_class")
    first = ("target", "class", "phase", "count", "censored", "unavailable")
    return {
        **{name: values[name] for name in first},
        **{k: v for k, v in values.items() if k not in first},
    }


def _retry_text(answers: Usable | None) -> str | None:
    """`3 of 120 (2.5 %, before 0.4 %)`, with the word where it rises."""
    if answers is None:
        return None
    before = "" if answers.before is None else f", before {answers.before:.1%}"
    rising = " rising" if answers.rising else ""
    return (
        f"{answers.abstained + answers.retried} of {answers.count} "
        f"({answers.rate:.1%}{before}){rising}"
    )


def _table(groups: list[Group], answers: Mapping[Key, Usable], since: str) -> None:
    from monitor.show.terminal import console, percentile_text, table  # noqa: PLC0415

    timing = ["TTFT p50 ms", "TTFT p95 ms", "ITL p95 ms", "decode p50 tokens/s"]
    headings = ["target", "class", "phase", "count", "no first token", *timing, "retry or abstain"]
    rows = [
        [
            g.target,
            g.traffic_class,
            g.phase,
            g.count,
            g.censored + g.unavailable,
            percentile_text(g.ttft_ms["p50"], g.count),
            percentile_text(g.ttft_ms["p95"], g.count),
            _or_unknown(g.itl_p95_ms["p50"]),
            _or_unknown(g.decode_tok_s["p50"]),
            _retry_text(answers.get(_key(g))),
        ]
        for g in groups
    ]
    out = console()
    if not groups:
        out.print(f"no samples since {since}")
        return
    out.print(table(headings, rows))
    out.print(
        (
            "\nBeside times: 95 % bounds from order statistics; … where there are too few samples "
            "for one (a p95 needs 59)."
        ),
        style="dim",
    )
    out.print(
        (
            "Retry or abstain: no finished answer, a wrong one, or a refusal; before: the span of "
            "time of the same length."
        ),
        style="dim",
    )


def _or_unknown(value: Any) -> str:
    from monitor.show.terminal import percentile_text  # noqa: PLC0415

    return percentile_text(value, 0 if value.value is None else 1)
