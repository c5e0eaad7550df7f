"""`show`: one sample with all its fields, the detail of its failure, its answer and its pin."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from monitor.cli.common import CommandError, database_of, print_json
from monitor.model import Pin, PinnedOutput, Sample
from monitor.show.records import sample_record
from monitor.show.terminal import UNKNOWN, console, table
from monitor.store import pins
from monitor.store.database import reading
from monitor.store.queries import sample
from monitor.text import printable


@dataclass(frozen=True, slots=True)
class Stored:
    """A sample with what the history holds about it. `retry_of`: the near tie that it decides."""

    sample: Sample
    detail: str | None
    pin: Pin | None
    reviews: Sequence[pins.Review]
    retry_of: int | None


def run(args: Namespace) -> int:
    """Prints one sample."""
    stored = _read(database_of(args), args.sample)
    if args.json:
        print_json({"samples": [_record(stored)]})
    else:
        _print(stored)
    return 0


def _read(database: str, number: int) -> Stored:
    with reading(database) as connection:
        found = sample(connection, number)
        if found is None:
            raise CommandError(f"there is no sample {number}; `vllm-canary history` lists them")
        one, detail = found
        return Stored(
            sample=one,
            detail=detail,
            pin=None if one.pin is None else pins.get(connection, one.pin),
            reviews=pins.reviews_of(connection, number),
            retry_of=pins.retry_of(connection, number),
        )


def _record(stored: Stored) -> dict[str, object]:
    reviews = [
        {"verdict": r.verdict, "by": r.author, "minutes": r.minutes, "note": r.note}
        for r in stored.reviews
    ]
    return {
        **sample_record(stored.sample),
        "detail": stored.detail,
        "retry_of": stored.retry_of,
        "reviews": reviews,
    }


def _print(stored: Stored) -> None:
    out, one = console(), stored.sample
    out.print(table(["field", "value"], _rows(stored)))
    out.print("\nanswer:", style="bold")
    out.print(UNKNOWN if one.output is None else printable(one.output), markup=False)
    if stored.pin is not None:
        _print_pin(stored.pin, one.output, one.first_divergence)
    for review in stored.reviews:
        duration = "" if review.minutes is None else f", {review.minutes:g} min"
        out.print(
            f"\n{review.author}: {review.verdict}{duration}: {printable(review.note or '')}",
            markup=False,
        )


def _rows(stored: Stored) -> list[list[object]]:
    values: dict[str, object] = dict(sample_record(stored.sample))
    values.pop("output")
    place = stored.sample.first_divergence
    if place is not None:
        values["first_divergence"] = f"{place} (counted from 0: token {place + 1})"
    if stored.detail is not None:
        values["detail"] = stored.detail
    if stored.retry_of is not None:
        values["retry of"] = f"{stored.retry_of}, to decide its near tie"
    return [[name, value] for name, value in values.items()]


def _print_pin(pin: Pin, output: str | None, divergence: int | None) -> None:
    """The accepted answers. If the sample differs, the point of divergence is marked in the closest
    one, with which it was compared.
    """
    out = console()
    compared = None if divergence is None else closest(pin.outputs, output or "")
    for accepted in pin.outputs:
        out.print(f"\npinned ({pin.id}, {accepted.count}×):", style="bold")
        if divergence is None or accepted is not compared or not accepted.tokens:
            out.print(printable(accepted.text), markup=False)
            continue
        head, tail = "".join(accepted.tokens[:divergence]), "".join(accepted.tokens[divergence:])
        out.print(
            f"{printable(head)} ⟪differs from here, token {divergence + 1}⟫ {printable(tail)}",
            markup=False,
        )


def closest(outputs: Sequence[PinnedOutput], text: str) -> PinnedOutput:
    """The accepted answer that shares the longest prefix with a text; among equals the first, as in
    the judge. Compares texts, because a sample's tokens are not stored.
    """

    def shared(accepted: PinnedOutput) -> int:
        pairs = zip(accepted.text, text, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(outputs, key=shared)
