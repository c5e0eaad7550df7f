"""`pins`: list them with age, reason, expiry and staleness; show, compare, export, import, end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean

from monitor.cli.common import (
    CommandError,
    chosen_probes,
    config_arguments,
    database_of,
    json_argument,
    load_context,
    now_utc,
    print_json,
    row_number,
)
from monitor.model import Pin


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options: without an action the list. They may stand before or after it."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, text: str, *numbers: tuple[str, str]) -> argparse.ArgumentParser:
        # What was not given after the action must not undo with a default what was given before it.
        added = actions.add_parser(name, help=text, argument_default=argparse.SUPPRESS)
        for number, meaning in numbers:
            added.add_argument(number, type=row_number, metavar=number.upper(), help=meaning)
        _common(added)
        return added

    listing = action("list", "the pins that hold (the default)")
    action("show", "one pin with its accepted answers", ("pin", "its number"))
    action(
        "diff",
        "compare two pins of a probe",
        ("pin", "the earlier one"),
        ("other", "the later one"),
    )
    export = action("export", "write all pins that hold as YAML")
    export.add_argument(
        "file",
        nargs="?",
        type=Path,
        default=None,
        metavar="FILE",
        help="where to (default: standard output)",
    )
    importing = action("import", "take up pins from a file that `export` wrote")
    importing.add_argument("file", type=Path, metavar="FILE", help="the file")
    forced = "also pins that expired, were ended here, or are older than the one that holds"
    importing.add_argument("--force", action="store_true", default=False, help=forced)
    action("expire", "end a pin; it is kept, and judges no more", ("pin", "its number"))
    _common(parser)
    for each in (listing, parser):
        each.add_argument("--all", action="store_true", help="those that ended too")


def _common(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    actions = {
        "list": _list,
        "show": _show,
        "diff": _diff,
        "export": _export,
        "import": _import,
        "expire": _expire,
    }
    return actions[args.action or "list"](args)


def _find(args: argparse.Namespace, retired: bool) -> tuple[list[Pin], dict[str, str | None]]:
    """Pins, and the digest that each target has now."""
    from monitor.store import fingerprints, pins, queries  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.store.database import reading  # noqa: PLC0415

    with reading(database_of(args)) as connection:
        found = pins.find(connection, retired=retired)
        now = {
            row.name: fingerprints.current(connection, row.id)
            for row in queries.targets(connection)
        }
    return found, {name: None if one is None else one.digest for name, one in now.items()}


def _one(args: argparse.Namespace, number: int) -> Pin:
    found, _ = _find(args, retired=True)
    pin = next((p for p in found if p.id == number), None)
    if pin is None:
        raise CommandError(f"there is no pin {number}; `vllm-canary pins --all` lists them")
    return pin


def state_of(
    pin: Pin, digest: str | None, now: datetime, texts: Mapping[str, str | None] | None = None
) -> str:
    """holds, other text (of its probe: it judges nothing), stale (what is served has changed
    since), expired or ended.

    `texts`: the revision of each probe as it is written now, None where it depends on the server;
    None as a whole: not known.
    """
    if pin.retired_at is not None:
        return "ended"
    if texts is not None and not fits_text(pin, texts):
        return "other text"
    if pin.fingerprint is not None and digest is not None and pin.fingerprint != digest:
        return "stale"
    return "expired" if pin.expires_at <= now else "holds"


def fits_text(pin: Pin, texts: Mapping[str, str | None]) -> bool:
    """Whether the probe is still there as it was pinned."""
    return pin.probe in texts and texts[pin.probe] in {pin.revision, None}


def _texts(args: argparse.Namespace) -> dict[str, str | None] | None:
    """The revision of each probe as it is written now; None where no configuration says it. Raises
    ConfigError.
    """
    from monitor.config.places import find_config  # noqa: PLC0415

    if args.db is not None or find_config(args.config) is None:
        return None
    probes = chosen_probes(load_context(args), [])
    return {
        p.name: None if p.context_share is not None else p.revision for p in probes
    }  # fitted to the server, so that it may differ


def _list(args: argparse.Namespace) -> int:
    from monitor.show.records import pin_record  # noqa: PLC0415

    found, digests = _find(args, args.all)
    now, texts = now_utc(), _texts(args)
    states = [state_of(p, digests.get(p.target), now, texts) for p in found]
    if args.json:
        print_json(
            {
                "pins": [
                    {**pin_record(p), "state": state}
                    for p, state in zip(found, states, strict=True)
                ]
            }
        )
        return 0
    from monitor.show.terminal import console, table  # noqa: PLC0415

    rows = [
        [
            p.id,
            p.target,
            p.probe,
            state,
            f"{(now - p.created_at).days} d",
            f"{p.expires_at:%Y-%m-%d}",
            len(p.outputs),
            p.author,
            p.reason,
        ]
        for p, state in zip(found, states, strict=True)
    ]
    headings = [
        "id",
        "target",
        "probe",
        "state",
        "age",
        "expires",
        "answers count",
        "by",
        "reason detail",
    ]
    console().print(
        table(headings, rows) if found else 'no pins; `vllm-canary pin --reason "…"` records some'
    )
    return 0


def _show(args: argparse.Namespace) -> int:
    from monitor.show.records import pin_record  # noqa: PLC0415

    pin = _one(args, args.pin)
    record = pin_record(pin)
    if args.json:
        print_json({"pins": [record]})
        return 0
    from monitor.show.terminal import UNKNOWN, console, printable, table  # noqa: PLC0415

    out = console()
    plain = {k: v for k, v in record.items() if k != "outputs"}
    out.print(
        table(
            ["field", "value detail"], [[k, UNKNOWN if v is None else v] for k, v in plain.items()]
        )
    )
    for output in pin.outputs:
        out.print(
            f"\n{output.count}× {output.finish_reason or UNKNOWN}, {len(output.tokens)} tokens:",
            style="bold",
        )
        out.print(printable(output.text), markup=False)
    return 0


def _diff(args: argparse.Namespace) -> int:
    """Which answers came and went, and how far the log-probabilities of those that stayed moved."""
    first, second = _one(args, args.pin), _one(args, args.other)
    if first.probe != second.probe:
        raise CommandError(
            f"pin {first.id} is of {first.probe} and pin {second.id} of {second.probe}; "
            "compare pins of one probe"
        )
    before, after = {o.text: o for o in first.outputs}, {o.text: o for o in second.outputs}
    gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    stayed = {
        text: _moved(before[text].logprobs, after[text].logprobs)
        for text in sorted(before.keys() & after.keys())
    }
    if args.json:
        told = [{"text": text, "logprob_shift": shift} for text, shift in stayed.items()]
        lengths = [first.prompt_tokens, second.prompt_tokens]
        print_json(
            {
                "differences": [
                    {
                        "probe": first.probe,
                        "gone": gone,
                        "new": new,
                        "stayed": told,
                        "prompt_tokens": lengths,
                    }
                ]
            }
        )
        return 0
    from monitor.show.terminal import UNKNOWN, printable  # noqa: PLC0415

    for sign, texts in (("-", gone), ("+", new)):
        for text in texts:
            print(f"{sign} {printable(text)}")
    for text, shift in stayed.items():
        print(
            f"= {printable(text)}   (log-probabilities "
            f"{UNKNOWN if shift is None else f'{shift:+.4f} nat'})"
        )
    if first.prompt_tokens != second.prompt_tokens:
        print(f"prompt tokens: {first.prompt_tokens} → {second.prompt_tokens}")
    return 0


def _moved(before: Sequence[float | None], after: Sequence[float | None]) -> float | None:
    """Mean log-probability now minus then over the tokens of one answer."""
    known = [b - a for a, b in zip(before, after, strict=False) if a is not None and b is not None]
    return fmean(known) if known else None


def _export(args: argparse.Namespace) -> int:
    from monitor.store.pinfile import to_yaml  # noqa: PLC0415

    found, _ = _find(args, retired=False)
    text = to_yaml(found)
    if args.file is None:
        sys.stdout.write(text)
        return 0
    try:
        args.file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{args.file} cannot be written: {error.strerror}", code=3) from None
    if args.json:
        print_json({"file": str(args.file), "exported": [pin.id for pin in found]})
    else:
        print(f"{len(found)} pins in {args.file}")
    return 0


def _import(args: argparse.Namespace) -> int:
    from monitor.cli.pinimport import take_all  # noqa: PLC0415
    from monitor.store.pinfile import PinFileError, from_yaml  # noqa: PLC0415

    try:
        text = args.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{args.file} cannot be read: "
            f"{getattr(error, 'strerror', None) or 'it is no UTF-8 text'}"
        ) from None
    found, texts = from_yaml(text, str(args.file)), _texts(args)
    for pin in found:
        if texts is not None and not fits_text(pin, texts):
            raise PinFileError(
                f"there is no probe {pin.probe} of revision {pin.revision} any more: "
                f"{'its text has changed' if pin.probe in texts else 'it is not configured'}; "
                "nothing was imported"
            )
    _find(args, retired=True)  # a history that is not there is said, and not made
    taken = take_all(database_of(args), found, args.force)
    if args.json:
        print_json(
            {
                "imported": [one.number for one in taken],
                "ended": [number for one in taken for number in one.ended],
            }
        )
        return 0
    for one in taken:
        instead = (
            (
                f" in the place of pin {', '.join(map(str, one.ended))}, which is kept and "
                "judges no more"
            )
            if one.ended
            else ""
        )
        print(f"pin {one.number} of {one.pin.probe} on {one.pin.target}{instead}")
    print(f"{len(taken)} pins imported")
    return 0


def _expire(args: argparse.Namespace) -> int:
    from monitor.store import pins  # noqa: PLC0415
    from monitor.store.database import open_writer  # noqa: PLC0415
    from monitor.store.writer import Writer  # noqa: PLC0415

    if _one(args, args.pin).retired_at is not None:
        raise CommandError(f"pin {args.pin} has ended already")
    writer = Writer(open_writer(database_of(args)), patient=False)
    try:
        ended = writer.do(lambda connection: pins.retire(connection, args.pin, now_utc()))
    finally:
        writer.close()
    if not ended:
        raise CommandError(f"pin {args.pin} has just been ended by another process")
    if args.json:
        print_json({"ended": [args.pin]})
    else:
        print(f"pin {args.pin} has ended; it is kept, and judges no more")
    return 0
