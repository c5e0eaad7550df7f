"""`review`: what a person said of a sample, beside what the gate said."""

from __future__ import annotations

import argparse
import getpass

from monitor.cli.common import CommandError, config_arguments, database_of, json_argument, now_utc, print_json


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("sample", type=int, metavar="SAMPLE", help="the id that `history` prints")
    parser.add_argument("--verdict", required=True, choices=["right", "wrong", "corrected"], help="what a person thinks of the answer")
    parser.add_argument("--minutes", type=float, metavar="N", help="how long the review took")
    parser.add_argument("--note", metavar="TEXT", help="a remark")
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Record it."""
    from monitor.store import pins, queries  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.store.database import open_writer  # noqa: PLC0415
    from monitor.store.writer import Writer  # noqa: PLC0415

    if args.minutes is not None and args.minutes < 0:
        raise CommandError("--minutes must not be negative")
    review = pins.Review(args.sample, now_utc(), getpass.getuser(), args.verdict, args.minutes, args.note)
    writer = Writer(open_writer(database_of(args)), patient=False)
    try:
        if writer.do(lambda connection: queries.sample(connection, args.sample)) is None:
            raise CommandError(f"there is no sample {args.sample}; `vllm-canary history` lists them")
        writer.do(lambda connection: pins.add_review(connection, review))
    finally:
        writer.close()
    if args.json:
        print_json({"reviews": [{"sample": args.sample, "verdict": args.verdict, "minutes": args.minutes, "note": args.note}]})
    else:
        print(f"sample {args.sample}: {args.verdict}")
    return 0
