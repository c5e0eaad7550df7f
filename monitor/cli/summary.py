"""`summary`: p50 and p95 by class and phase, with intervals; canaries without a first token rank above every measured one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from monitor.cli.common import config_arguments, database_of, filter_arguments, json_argument, moment, now_utc, print_json
from monitor.judge.percentiles import Group, summarise


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    config_arguments(parser)
    filter_arguments(parser, since="24h")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print one row a class and phase."""
    from monitor.store.database import reading  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.store.queries import SampleFilter, samples  # noqa: PLC0415

    now = now_utc()
    since, until = moment(args.since, now), moment(args.until, now)
    wanted = SampleFilter(since=since, until=until, target=args.target, probe=args.probe, traffic_class=args.traffic_class)
    with reading(database_of(args)) as connection:
        groups = summarise(samples(connection, wanted))
    if args.json:
        print_json({"summaries": [_record(group) for group in groups]})
    else:
        _table(groups, args.since)
    return 0


def _record(group: Group) -> dict[str, Any]:
    values = asdict(group)
    values["class"] = values.pop("traffic_class")
    first = ("target", "class", "phase", "count", "censored", "unavailable")
    return {**{name: values[name] for name in first}, **{k: v for k, v in values.items() if k not in first}}


def _table(groups: list[Group], since: str) -> None:
    from monitor.show.terminal import console, percentile_text, table  # noqa: PLC0415

    headings = ["target", "class", "phase", "count", "no first token", "TTFT p50 ms", "TTFT p95 ms", "ITL p95 ms", "decode p50 tokens/s"]
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
        ]
        for g in groups
    ]
    out = console()
    if not groups:
        out.print(f"no samples since {since}")
        return
    out.print(table(headings, rows))
    out.print("\nIn brackets: 95 % bounds from order statistics; … where there are too few samples for one (a p95 needs 59).", style="dim")


def _or_unknown(value: Any) -> str:
    from monitor.show.terminal import percentile_text  # noqa: PLC0415

    return percentile_text(value, 0 if value.value is None else 1)
