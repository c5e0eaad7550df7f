"""`review`: what a person said of a sample, beside what the gate said."""

from __future__ import annotations

import argparse
import getpass

from monitor.cli.common import (
    CommandError,
    config_arguments,
    database_of,
    json_argument,
    now_utc,
    print_json,
    row_number,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "sample", type=row_number, metavar="SAMPLE", help="the id that `history` prints"
    )
    parser.add_argument(
        "--verdict",
        required=True,
        choices=["right", "wrong", "corrected"],
        help="what a person thinks of the answer",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="how long the review took")
    parser.add_argument("--note", metavar="TEXT", help="a remark")
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Record it."""
    from monitor.store import pins, queries  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.store.database import open_writer, reading  # noqa: PLC0415
    from monitor.store.writer import Writer  # noqa: PLC0415

    if args.minutes is not None and not 0 <= args.minutes < float(
        "inf"
    ):  # also false for what is no number
        raise CommandError("--minutes must be a time, not negative; for example --minutes 3")
    review = pins.Review(
        args.sample, now_utc(), getpass.getuser(), args.verdict, args.minutes, args.note
    )
    with reading(database_of(args)) as connection:
        if queries.sample(connection, args.sample) is None:
            raise CommandError(
                f"there is no sample {args.sample}; `vllm-canary history` lists them"
            )
    writer = Writer(open_writer(database_of(args)), patient=False)
    try:
        writer.do(lambda connection: pins.add_review(connection, review))
    finally:
        writer.close()
    if args.json:
        print_json(
            {
                "reviews": [
                    {
                        "sample": args.sample,
                        "verdict": args.verdict,
                        "minutes": args.minutes,
                        "note": args.note,
                    }
                ]
            }
        )
    else:
        print(f"sample {args.sample}: {args.verdict}")
    return 0
