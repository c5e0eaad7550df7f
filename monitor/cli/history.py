"""`history`: samples, the newest last, as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import json
import sys

from monitor.cli.common import (
    check_names,
    config_arguments,
    database_of,
    filter_arguments,
    json_argument,
    moment,
    now_utc,
    print_json,
    row_number,
)
from monitor.model import Outcome, Sample


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    config_arguments(parser)
    filter_arguments(parser)
    parser.add_argument("--outcome", choices=[o.value for o in Outcome], help="only this outcome")
    parser.add_argument(
        "--limit",
        type=row_number,
        default=20,
        metavar="N",
        help="the newest N (default 20; 0 for all)",
    )
    parser.add_argument(
        "--format",
        choices=["table", "csv", "jsonl"],
        default="table",
        help="how to print (default table)",
    )
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print what the filters leave."""
    from monitor.store.database import reading  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.store.queries import SampleFilter, samples  # noqa: PLC0415

    now = now_utc()
    wanted = SampleFilter(
        since=moment(args.since, now),
        until=moment(args.until, now),
        target=args.target,
        probe=args.probe,
        traffic_class=args.traffic_class,
        outcome=args.outcome,
    )
    with reading(database_of(args)) as connection:
        check_names(connection, args)
        found = samples(connection, wanted, limit=args.limit or None)
    _print(found, "json" if args.json else args.format)
    return 0


def _print(found: list[Sample], form: str) -> None:
    if form == "table":
        _table(found)
        return
    from monitor.show.records import csv_text, sample_record  # noqa: PLC0415

    records = [sample_record(sample) for sample in found]
    if form == "json":
        print_json({"samples": records})
    elif form == "csv":
        sys.stdout.write(csv_text(records))
    else:
        sys.stdout.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _table(found: list[Sample]) -> None:
    from monitor.show.terminal import console, local_time, milliseconds, number, table  # noqa: PLC0415

    with_gpu = any(sample.gpu_uuid is not None for sample in found)
    headings = [
        "id",
        "time",
        "target",
        "probe",
        "class",
        "phase",
        "outcome",
        "verdict",
        "TTFT ms",
        "tokens/s",
        "queue ms",
        "waiting",
    ]
    rows = [
        [
            s.id,
            local_time(s.started_at),
            s.target,
            s.probe,
            s.traffic_class,
            s.phase.value,
            s.outcome.value,
            s.verdict.value,
            milliseconds(s.ttft_ms),
            number(s.decode_tok_s, 1),
            milliseconds(s.queue_ms),
            number(s.waiting),
            *(
                [number(s.gpu_temp_c), number(s.sm_clock_mhz), number(s.power_w)]
                if with_gpu
                else []
            ),
        ]
        for s in found
    ]
    if not found:
        console().print("no samples")
        return
    console().print(
        table([*headings, *(["GPU °C", "SM MHz", "power W"] if with_gpu else [])], rows)
    )
