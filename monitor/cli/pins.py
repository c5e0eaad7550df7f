"""`pins`: lists pins with age, reason, expiry and state; shows, compares and exports them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean

from monitor.cli.common import CommandError, database_of, now_utc, print_json
from monitor.cli.configured import chosen_probes, settings_of
from monitor.config.places import find_config
from monitor.errors import UNMEASURED
from monitor.model import Pin
from monitor.show.records import pin_record
from monitor.show.terminal import UNKNOWN, console, table
from monitor.store import fingerprints, pins, queries
from monitor.store.database import reading
from monitor.store.pinfile import to_yaml
from monitor.text import printable

#: Revision of each configured probe; None where the text depends on the server.
Revisions = Mapping[str, str | None]
HEADINGS = (
    *("id", "target", "probe", "state", "age", "expires"),
    *("answers count", "by", "reason detail"),
)
RETIRED_IN_JSON = "ended"  # a contract: the name from before it was called retired


def show_list(args: Namespace) -> int:
    """Lists pins."""
    with reading(database_of(args)) as connection:
        found = pins.find(connection, retired=args.all)
        digests = {
            row.name: one.digest
            for row in queries.targets(connection)
            if (one := fingerprints.current(connection, row.id)) is not None
        }
    now, revisions = now_utc(), revisions_of(args)
    states = [(p, state_of(p, digests.get(p.target), now, revisions)) for p in found]
    if args.json:
        print_json({"pins": [_record(pin, state) for pin, state in states]})
        return 0
    rows = [_cells(pin, state, now) for pin, state in states]
    none = 'no pins; `vllm-canary pin --reason "…"` records some'
    console().print(table(HEADINGS, rows) if rows else none)
    return 0


def _record(pin: Pin, state: str) -> dict[str, object]:
    return {**pin_record(pin), "state": RETIRED_IN_JSON if state == "retired" else state}


def _cells(pin: Pin, state: str, now: datetime) -> list[object]:
    return [
        pin.id,
        pin.target,
        pin.probe,
        state,
        f"{(now - pin.created_at).days} d",
        f"{pin.expires_at:%Y-%m-%d}",
        len(pin.outputs),
        pin.author,
        pin.reason,
    ]


def state_of(
    pin: Pin, digest: str | None, now: datetime, revisions: Revisions | None = None
) -> str:
    """Holds, other text (its probe has changed, so it judges nothing), stale (what is served has
    changed since), expired or retired.

    `digest`: identity of what is served now; `revisions` None: no configuration to compare with.
    """
    if pin.retired_at is not None:
        return "retired"
    if revisions is not None and not fits_text(pin, revisions):
        return "other text"
    if pin.fingerprint is not None and digest is not None and pin.fingerprint != digest:
        return "stale"
    return "expired" if pin.expires_at <= now else "holds"


def fits_text(pin: Pin, revisions: Revisions) -> bool:
    """Whether the probe still exists as it was pinned."""
    return pin.probe in revisions and revisions[pin.probe] in {pin.revision, None}


def revisions_of(args: Namespace) -> Revisions | None:
    """The configured probes' revisions; None without a configuration. Raises ConfigError."""
    if args.db is not None or find_config(args.config) is None:
        return None
    return {
        p.name: None if p.context_share is not None else p.revision
        for p in chosen_probes(settings_of(args))
    }


def show_one(args: Namespace) -> int:
    """Shows one pin with its accepted answers."""
    pin = pin_of(args, args.pin)
    record = pin_record(pin)
    if args.json:
        print_json({"pins": [record]})
        return 0
    out = console()
    rows = [[name, value] for name, value in record.items() if name != "outputs"]
    out.print(table(["field", "value"], rows))
    for output in pin.outputs:
        end = output.finish_reason or UNKNOWN
        out.print(f"\n{output.count}× {end}, {len(output.tokens)} tokens:", style="bold")
        out.print(printable(output.text), markup=False)
    return 0


def pin_of(args: Namespace, number: int) -> Pin:
    """The pin of this number, retired ones included. Raises CommandError."""
    with reading(database_of(args)) as connection:
        pin = pins.get(connection, number)
    if pin is None:
        raise CommandError(f"there is no pin {number}; `vllm-canary pins --all` lists them")
    return pin


@dataclass(frozen=True, slots=True)
class Difference:
    """Two pins of one probe compared by their answers. `stayed`: shift of the mean log-probability
    by text, in nat; None where unknown.
    """

    probe: str
    gone: Sequence[str]
    new: Sequence[str]
    stayed: Mapping[str, float | None]
    prompt_tokens: tuple[int | None, int | None]


def show_difference(args: Namespace) -> int:
    """Compares two pins of one probe."""
    found = _difference(pin_of(args, args.pin), pin_of(args, args.other))
    if args.json:
        stayed = [{"text": text, "logprob_shift": shift} for text, shift in found.stayed.items()]
        print_json(
            {
                "differences": [
                    {
                        "probe": found.probe,
                        "gone": found.gone,
                        "new": found.new,
                        "stayed": stayed,
                        "prompt_tokens": found.prompt_tokens,
                    }
                ]
            }
        )
    else:
        _print_difference(found)
    return 0


def _difference(first: Pin, second: Pin) -> Difference:
    if first.probe != second.probe:
        raise CommandError(
            f"pin {first.id} belongs to {first.probe} and pin {second.id} to {second.probe}; "
            "compare pins of one probe"
        )
    before, after = {o.text: o for o in first.outputs}, {o.text: o for o in second.outputs}
    return Difference(
        probe=first.probe,
        gone=sorted(before.keys() - after.keys()),
        new=sorted(after.keys() - before.keys()),
        stayed={
            text: _shift(before[text].logprobs, after[text].logprobs)
            for text in sorted(before.keys() & after.keys())
        },
        prompt_tokens=(first.prompt_tokens, second.prompt_tokens),
    )


def _shift(before: Sequence[float | None], after: Sequence[float | None]) -> float | None:
    """Mean log-probability after minus before, over the tokens of one answer."""
    known = [b - a for a, b in zip(before, after, strict=False) if a is not None and b is not None]
    return fmean(known) if known else None


def _print_difference(found: Difference) -> None:
    for text in found.gone:
        print(f"- {printable(text)}")
    for text in found.new:
        print(f"+ {printable(text)}")
    for text, shift in found.stayed.items():
        change = UNKNOWN if shift is None else f"{shift:+.4f} nat"
        print(f"= {printable(text)}   (log-probabilities {change})")
    before, after = found.prompt_tokens
    if before != after:
        print(f"prompt tokens: {before} → {after}")


def export(args: Namespace) -> int:
    """Writes the active pins as YAML."""
    with reading(database_of(args)) as connection:
        found = pins.find(connection)
    text = to_yaml(found)
    if args.file is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(args.file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{args.file} cannot be written: {error.strerror}", code=UNMEASURED
        ) from None
    if args.json:
        print_json({"file": str(Path(args.file)), "exported": [pin.id for pin in found]})
    else:
        print(f"{len(found)} pins written to {args.file}")
    return 0
