"""`history`: samples, oldest first, as a table, CSV or JSON."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from monitor.cli.common import database_of, moment, now_utc, print_json
from monitor.cli.known import check_names
from monitor.model import Sample
from monitor.show.records import csv_text, sample_record
from monitor.show.terminal import console, local_time, milliseconds, number, table
from monitor.store.database import reading
from monitor.store.queries import SampleFilter, samples

HEADINGS = (
    *("id", "time", "target", "probe", "class", "phase", "outcome", "verdict"),
    *("TTFT ms", "tokens/s", "queue ms", "waiting"),
)
GPU_HEADINGS = ("GPU °C", "SM MHz", "power W")


def run(args: Namespace) -> int:
    """Prints the samples that pass the filters."""
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


def _print(found: Sequence[Sample], form: str) -> None:
    if form == "table":
        _table(found)
        return
    records = [sample_record(sample) for sample in found]
    if form == "json":
        print_json({"samples": records})
    elif form == "csv":
        sys.stdout.write(csv_text(records))
    else:
        sys.stdout.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _table(found: Sequence[Sample]) -> None:
    if not found:
        console().print("no samples")
        return
    with_gpu = any(sample.gpu_uuid is not None for sample in found)
    headings = [*HEADINGS, *(GPU_HEADINGS if with_gpu else ())]
    rows = [[*_cells(s), *(_gpu_cells(s) if with_gpu else ())] for s in found]
    console().print(table(headings, rows))


def _cells(s: Sample) -> list[object]:
    return [
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
    ]


def _gpu_cells(s: Sample) -> list[object]:
    return [number(s.gpu_temp_c), number(s.sm_clock_mhz), number(s.power_w)]
