"""`show SAMPLE`: one sample with every field, the sentence about its failure, and the answer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import takewhile

from monitor.cli.common import (
    CommandError,
    config_arguments,
    database_of,
    json_argument,
    print_json,
    row_number,
)
from monitor.model import Pin, PinnedOutput


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "sample", type=row_number, metavar="SAMPLE", help="the id that `history` prints"
    )
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print one sample."""
    from monitor.show.records import sample_record  # noqa: PLC0415 - --help needs none of this
    from monitor.store import pins  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415
    from monitor.store.queries import sample  # noqa: PLC0415

    with reading(database_of(args)) as connection:
        found = sample(connection, args.sample)
        pin = None if found is None or found[0].pin is None else pins.get(connection, found[0].pin)
        reviews = [] if found is None else pins.reviews_of(connection, args.sample)
        decides = None if found is None else pins.retry_of(connection, args.sample)
    if found is None:
        raise CommandError(f"there is no sample {args.sample}; `vllm-canary history` lists them")
    one, detail = found
    record = sample_record(one)
    if args.json:
        said = [
            {"verdict": r.verdict, "by": r.author, "minutes": r.minutes, "note": r.note}
            for r in reviews
        ]
        print_json(
            {"samples": [{**record, "detail": detail, "retry_of": decides, "reviews": said}]}
        )
        return 0
    from monitor.show.terminal import UNKNOWN, console, printable, table  # noqa: PLC0415

    rows = [
        [name, UNKNOWN if value is None else value]
        for name, value in record.items()
        if name != "output"
    ]
    place = one.first_divergence
    if place is not None:
        rows = [
            [
                name,
                f"{place} (counted from 0: token {place + 1})"
                if name == "first_divergence"
                else value,
            ]
            for name, value in rows
        ]
    if detail is not None:
        rows.append(["detail", detail])
    if decides is not None:
        rows.append(["retry of", f"{decides}, whose near tie it decides"])
    out = console()
    out.print(table(["field", "value"], rows))
    out.print("\nanswer:", style="bold")
    out.print(UNKNOWN if one.output is None else printable(one.output), markup=False)
    if pin is not None:
        _print_pin(pin, one.output, one.first_divergence)
    for review in reviews:
        took = "" if review.minutes is None else f", {review.minutes:g} min"
        out.print(
            f"\n{review.author} says {review.verdict}{took}: {printable(review.note or '')}",
            markup=False,
        )
    return 0


def _print_pin(pin: Pin, output: str | None, divergence: int | None) -> None:
    """The accepted answers. Where the sample parted from them, the one that it was compared with is
    marked there: the closest.
    """
    from monitor.show.terminal import console, printable  # noqa: PLC0415

    out = console()
    compared = None if divergence is None else closest(pin.outputs, output or "")
    for accepted in pin.outputs:
        out.print(f"\npinned ({pin.id}, {accepted.count}×):", style="bold")
        if divergence is None or accepted is not compared or not accepted.tokens:
            out.print(printable(accepted.text), markup=False)
            continue
        head, tail = "".join(accepted.tokens[:divergence]), "".join(accepted.tokens[divergence:])
        out.print(
            f"{printable(head)} ⟪parts here, token {divergence + 1}⟫ {printable(tail)}",
            markup=False,
        )


def closest(outputs: Sequence[PinnedOutput], text: str) -> PinnedOutput:
    """The accepted answer that a text shares the longest beginning with; of equals the first, as
    the judge takes it. The tokens of a sample are not stored, so that its text has to tell.
    """

    def shared(accepted: PinnedOutput) -> int:
        return sum(
            1
            for _ in takewhile(
                lambda pair: pair[0] == pair[1], zip(accepted.text, text, strict=False)
            )
        )

    return max(outputs, key=shared)
