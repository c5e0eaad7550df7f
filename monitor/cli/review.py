"""`review`: a person's verdict on a sample, stored next to the gate's."""

from __future__ import annotations

import getpass
import math
from argparse import Namespace

from monitor.cli.common import CommandError, database_of, now_utc, print_json
from monitor.cli.writing import write_once
from monitor.store import pins, queries
from monitor.store.database import reading


def run(args: Namespace) -> int:
    """Stores the verdict."""
    # Negated, so that NaN is refused too.
    if args.minutes is not None and not 0 <= args.minutes < math.inf:
        raise CommandError("--minutes must be zero or more, for example --minutes 3")
    review = pins.Review(
        sample_id=args.sample,
        at=now_utc(),
        author=getpass.getuser(),
        verdict=args.verdict,
        minutes=args.minutes,
        note=args.note,
    )
    database = database_of(args)
    with reading(database) as connection:
        if queries.sample(connection, args.sample) is None:
            raise CommandError(
                f"there is no sample {args.sample}; `vllm-canary history` lists them"
            )
    write_once(database, lambda connection: pins.add_review(connection, review))
    if args.json:
        given = {name: getattr(args, name) for name in ("sample", "verdict", "minutes", "note")}
        print_json({"reviews": [given]})
    else:
        print(f"sample {args.sample}: {args.verdict}")
    return 0
