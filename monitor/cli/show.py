"""`show SAMPLE`: one sample with every field, the sentence about its failure, and the answer."""

from __future__ import annotations

import argparse

from monitor.cli.common import CommandError, config_arguments, database_of, json_argument, print_json, row_number


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("sample", type=row_number, metavar="SAMPLE", help="the id that `history` prints")
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print one sample."""
    from monitor.show.records import sample_record  # noqa: PLC0415 - --help needs none of this
    from monitor.store.database import reading  # noqa: PLC0415
    from monitor.store.queries import sample  # noqa: PLC0415

    with reading(database_of(args)) as connection:
        found = sample(connection, args.sample)
    if found is None:
        raise CommandError(f"there is no sample {args.sample}; `vllm-canary history` lists them")
    one, detail = found
    record = sample_record(one)
    if args.json:
        print_json({"samples": [{**record, "detail": detail}]})
        return 0
    from monitor.show.terminal import UNKNOWN, console, printable, table  # noqa: PLC0415

    rows = [[name, UNKNOWN if value is None else value] for name, value in record.items() if name != "output"]
    if detail is not None:
        rows.append(["detail", detail])
    out = console()
    out.print(table(["field", "value"], rows))
    out.print("\nanswer:", style="bold")
    out.print(UNKNOWN if one.output is None else printable(one.output), markup=False)
    return 0
