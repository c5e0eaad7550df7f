"""`pin`: record from the live server what its answers are, with a reason and an expiry."""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from monitor.cli.common import (
    CommandError,
    chosen_probes,
    chosen_targets,
    config_arguments,
    json_argument,
    load_context,
    now_utc,
    print_json,
)
from monitor.errors import UNMEASURED
from monitor.model import ObservedAnswer, Outcome, Pin, Probe, Sample

LEASE_WAIT_S = 60.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("probes", nargs="*", metavar="PROBE", help="which probes (default: all that ask for log-probabilities)")
    parser.add_argument("--reason", help="why these answers are right; asked for, and kept with the pin")
    parser.add_argument("--expires", default="30d", metavar="TIME", help="how long the pin holds (default 30d, spread by up to a tenth)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="how often each probe is asked (default 5)")
    parser.add_argument("--under-load", action="store_true", help="keep two long requests beside every second repeat, so that ties show")
    parser.add_argument("--dry-run", action="store_true", help="show what would be accepted, record nothing")
    config_arguments(parser, url=True)
    parser.add_argument("--target", metavar="NAME", help="only this target")
    json_argument(parser)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was seen of one probe: samples and answers, and the pin made of them (None: not enough to pin)."""

    probe: str
    samples: tuple[Sample, ...]
    pin: Pin | None
    note: str


def run(args: argparse.Namespace) -> int:
    """Ask, show, record."""
    from monitor.config.values import parse_duration  # noqa: PLC0415 - --help needs none of this

    if not (args.reason or "").strip():
        raise CommandError('a pin needs a reason: --reason "checked by hand after the upgrade to 0.32"')
    if args.repeats < 1:
        raise CommandError("--repeats must be at least 1")
    try:
        life = timedelta(seconds=parse_duration(args.expires))
    except ValueError as error:
        raise CommandError(f"--expires {error}") from None
    settings = load_context(args)
    probes = [p for p in chosen_probes(settings, args.probes) if p.sampling.get("logprobs")]
    if not probes:
        raise CommandError("no probe to pin: a pinned probe asks for log-probabilities (`logprobs: 5` under sampling)")
    recorded = asyncio.run(_record_all(settings, chosen_targets(settings, args.target), probes, args, life))
    _print(recorded, args)
    return 0 if all(r.pin is not None for r in recorded) else UNMEASURED


async def _record_all(
    settings: Any, targets: Sequence[Any], probes: Sequence[Probe], args: argparse.Namespace, life: timedelta
) -> list[Recorded]:
    from monitor.daemon.oneshot import watching  # noqa: PLC0415

    recorded: list[Recorded] = []
    for target in targets:
        async with watching(settings, target, probes, LEASE_WAIT_S) as watch:
            recorded += [await _record(watch, probe, args, life) for probe in probes]
    return recorded


async def _record(watch: Any, probe: Probe, args: argparse.Namespace, life: timedelta) -> Recorded:
    from monitor.daemon.oneshot import beside_load  # noqa: PLC0415
    from monitor.daemon.watch import Skipped  # noqa: PLC0415
    from monitor.measure.answer import observed  # noqa: PLC0415
    from monitor.show.terminal import progress_console  # noqa: PLC0415

    shown = progress_console()
    samples: list[Sample] = []
    answers: list[ObservedAnswer] = []
    for number in range(args.repeats):
        if shown is not None:
            shown.print(f"{watch.settings.name}: {probe.name} {number + 1}/{args.repeats} …", style="dim")
        async with beside_load(watch, 2 if args.under_load and number % 2 else 0):
            done = await watch.run(probe)
        if isinstance(done, Skipped):
            return Recorded(probe.name, tuple(samples), None, f"skipped: {done.reason}")
        measured, _stored = done
        samples.append(measured.sample)
        if measured.sample.outcome is not Outcome.OK:
            return Recorded(probe.name, tuple(samples), None, f"not pinned: {measured.detail or measured.sample.outcome.value}")
        answers.append(observed(measured.answer))
    pin = await _pin(watch, probe, answers, samples, args, life)
    told = "" if len(pin.outputs) == 1 else f"{len(pin.outputs)} different answers are accepted"
    return Recorded(probe.name, tuple(samples), pin, told)


async def _pin(
    watch: Any, probe: Probe, answers: Sequence[ObservedAnswer], samples: Sequence[Sample], args: argparse.Namespace, life: timedelta
) -> Pin:
    from monitor.judge.pinning import expiry, noise_of, outputs_of  # noqa: PLC0415

    now: datetime = now_utc()
    outputs = outputs_of(answers)
    warm = samples[1:] or samples  # the first may have been cold
    pin = Pin(
        id=0,
        target=watch.settings.name,
        probe=probe.name,
        revision=watch.revision_digest(probe),
        fingerprint=watch.fingerprint_digest(),
        reason=args.reason.strip(),
        author=getpass.getuser(),
        created_at=now,
        expires_at=expiry(probe.name, now, life),
        outputs=outputs,
        prompt_tokens=answers[0].prompt_tokens,
        noise_nat=noise_of(answers, outputs),
        ttft_ms=tuple(s.ttft_ms for s in warm if s.ttft_ms is not None),
        decode_tok_s=tuple(s.decode_tok_s for s in warm if s.decode_tok_s is not None),
    )
    if not args.dry_run:
        await watch.store_pin(pin)
    return pin


def _print(recorded: Sequence[Recorded], args: argparse.Namespace) -> None:
    from monitor.show.records import pin_record  # noqa: PLC0415

    if args.json:
        pins = [{"probe": r.probe, "note": r.note, "pin": None if r.pin is None else pin_record(r.pin)} for r in recorded]
        print_json({"pins": pins})
        return
    from monitor.show.terminal import console, number, printable, table  # noqa: PLC0415

    out = console()
    rows = [
        [r.probe, "–" if r.pin is None else len(r.pin.outputs), number(r.pin.noise_nat if r.pin else None, 4), r.note or "pinned"]
        for r in recorded
    ]
    out.print(table(["probe", "answers count", "noise nat", "detail"], rows))
    for r in recorded:
        if r.pin is not None and len(r.pin.outputs) > 1:
            out.print(f"\n{r.probe} was answered in {len(r.pin.outputs)} ways; all are accepted:", style="bold")
            for output in r.pin.outputs:
                out.print(f"  {output.count}×  {printable(output.text)}", markup=False)
    if args.dry_run:
        out.print("\nNothing was recorded (--dry-run).", style="yellow")
