"""`pin`: records the live server's answers as pins, with a reason and an expiry.

Every probe is run first; differing answers are shown before anything is recorded; an answer that
the probe itself calls wrong is never pinned.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta

from monitor.cli.common import CommandError, print_json
from monitor.cli.configured import chosen_probes, chosen_targets, settings_of
from monitor.cli.pin_recording import Plan, Recorded, Recording
from monitor.config.settings import Settings
from monitor.config.target import TargetSettings
from monitor.config.values import parse_duration
from monitor.daemon.identity import Keeps
from monitor.daemon.oneshot import watching
from monitor.errors import REGRESSION, UNMEASURED
from monitor.model import Probe
from monitor.show.records import pin_record
from monitor.show.terminal import UNKNOWN, console, number, table
from monitor.text import printable

LEASE_WAIT_S = 60.0
HEADINGS = ("id", "target", "probe", "answers count", "noise nat", "detail")


def run(args: Namespace) -> int:
    """Runs the probes, shows what differs, records."""
    plan, settings = _plan(args), settings_of(args)
    probes = [p for p in chosen_probes(settings, args.probes) if p.sampling.get("logprobs")]
    if not probes:
        raise CommandError(
            "no probe to pin: a pinned probe requests log-probabilities (`logprobs: 5` under "
            "sampling)"
        )
    targets = chosen_targets(settings, args.target)
    recorded = asyncio.run(_record_all(settings, targets, probes, plan, quiet=args.json))
    if args.json:
        print_json({"pins": [_record(one) for one in recorded]})
    else:
        _print(recorded, plan)
    if any(one.wrong for one in recorded):
        return REGRESSION
    return 0 if all(one.pin is not None for one in recorded) else UNMEASURED


def _plan(args: Namespace) -> Plan:
    """The options, checked. Raises CommandError."""
    reason = (args.reason or "").strip()
    if not reason:
        raise CommandError(
            'a pin needs a reason: --reason "checked by hand after the upgrade to 0.32"'
        )
    if args.repeats < 1:
        raise CommandError("--repeats must be at least 1")
    try:
        life = timedelta(seconds=parse_duration(args.expires))
    except ValueError as error:
        raise CommandError(f"--expires {error}") from None
    return Plan(
        reason=reason,
        life=life,
        repeats=args.repeats,
        under_load=args.under_load,
        dry_run=args.dry_run,
    )


async def _record_all(
    settings: Settings,
    targets: Sequence[TargetSettings],
    probes: Sequence[Probe],
    plan: Plan,
    quiet: bool,
) -> list[Recorded]:
    keeps = Keeps.NOTHING if plan.dry_run else Keeps.UNWATCHED
    recorded: list[Recorded] = []
    for target in targets:
        async with watching(settings, target, probes, LEASE_WAIT_S, keeps) as watch:
            recording = Recording(watch, plan)
            await recording.refuse_unseen_change()
            found = [await recording.observe(probe) for probe in probes]
            if not quiet:
                _print_differences(found)
            recorded += found if plan.dry_run else [await recording.store(one) for one in found]
    return recorded


def _print_differences(recorded: Sequence[Recorded]) -> None:
    """Prints what is about to be accepted, for probes whose repeats had different answers."""
    out = console()
    for one in recorded:
        if one.pin is not None and len(one.pin.outputs) > 1:
            count = len(one.pin.outputs)
            out.print(f"{one.probe} got {count} different answers; all are accepted:", style="bold")
            for output in one.pin.outputs:
                out.print(f"  {output.count}×  {printable(output.text)}", markup=False)
            out.print()


def _record(one: Recorded) -> dict[str, object]:
    return {
        "target": one.target,
        "probe": one.probe,
        "note": one.note,
        "pin": None if one.pin is None else pin_record(one.pin),
    }


def _print(recorded: Sequence[Recorded], plan: Plan) -> None:
    out = console()
    out.print(table(HEADINGS, [_cells(one, plan) for one in recorded]))
    if plan.dry_run:
        out.print("\nNo pin was recorded (--dry-run).", style="yellow")


def _cells(one: Recorded, plan: Plan) -> list[object]:
    pin = one.pin
    return [
        pin.id if pin is not None and pin.id else UNKNOWN,
        one.target,
        one.probe,
        UNKNOWN if pin is None else len(pin.outputs),
        number(None if pin is None else pin.noise_nat, 4),
        one.note or ("would be pinned" if plan.dry_run else "pinned"),
    ]
