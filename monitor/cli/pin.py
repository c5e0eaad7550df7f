"""`pin`: record from the live server what its answers are, with a reason and an expiry.

Every probe is asked first; what differs is shown before anything is recorded; an answer that the
probe itself calls wrong is never pinned.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from monitor.errors import REGRESSION, UNMEASURED
from monitor.model import REGRESSIONS, ObservedAnswer, Outcome, Pin, Probe, Sample

LEASE_WAIT_S = 60.0
NO_LOGPROBS = (
    "not pinned: the answer came without log-probabilities, and without them a near "
    "tie cannot be told from another answer"
)
NOT_READ = "what is served could not be read: the pin will be filed under what is read first"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "probes",
        nargs="*",
        metavar="PROBE",
        help="which probes (default: all that ask for log-probabilities)",
    )
    parser.add_argument(
        "--reason", help="why these answers are right; asked for, and kept with the pin"
    )
    parser.add_argument(
        "--expires",
        default="30d",
        metavar="TIME",
        help="how long the pin holds (default 30d, spread by up to a tenth)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        metavar="N",
        help="how often each probe is asked (default 5)",
    )
    parser.add_argument(
        "--under-load",
        action="store_true",
        help="keep two long requests beside every second repeat, so that ties show",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be accepted, record no pin"
    )
    config_arguments(parser, url=True)
    parser.add_argument("--target", metavar="NAME", help="only this target")
    json_argument(parser)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was seen of one probe: the pin made of it (None: not pinned), and a note that says why,
    or what is to be known of it.
    """

    target: str
    probe: str
    pin: Pin | None
    note: str
    wrong: bool = False  # an answer was there, and it is not one to pin


def run(args: argparse.Namespace) -> int:
    """Ask, show, record."""
    from monitor.config.values import parse_duration  # noqa: PLC0415 - --help needs none of this

    if not (args.reason or "").strip():
        raise CommandError(
            'a pin needs a reason: --reason "checked by hand after the upgrade to 0.32"'
        )
    if args.repeats < 1:
        raise CommandError("--repeats must be at least 1")
    try:
        life = timedelta(seconds=parse_duration(args.expires))
    except ValueError as error:
        raise CommandError(f"--expires {error}") from None
    settings = load_context(args)
    probes = [p for p in chosen_probes(settings, args.probes) if p.sampling.get("logprobs")]
    if not probes:
        raise CommandError(
            "no probe to pin: a pinned probe asks for log-probabilities (`logprobs: 5` under "
            "sampling)"
        )
    recorded = asyncio.run(
        _record_all(settings, chosen_targets(settings, args.target), probes, args, life)
    )
    _print(recorded, args)
    if any(r.wrong for r in recorded):
        return REGRESSION
    return 0 if all(r.pin is not None for r in recorded) else UNMEASURED


async def _record_all(
    settings: Any,
    targets: Sequence[Any],
    probes: Sequence[Probe],
    args: argparse.Namespace,
    life: timedelta,
) -> list[Recorded]:
    from monitor.daemon.identity import Keeps  # noqa: PLC0415
    from monitor.daemon.oneshot import watching  # noqa: PLC0415

    recorded: list[Recorded] = []
    for target in targets:
        async with watching(
            settings,
            target,
            probes,
            LEASE_WAIT_S,
            Keeps.NOTHING if args.dry_run else Keeps.UNWATCHED,
        ) as watch:
            await _refuse_unseen_change(watch)
            seen = [await _ask(watch, probe, args, life) for probe in probes]
            if not args.json:
                _show_differences(seen)
            recorded += seen if args.dry_run else [await _store(watch, one) for one in seen]
    return recorded


async def _refuse_unseen_change(watch: Any) -> None:
    """A pin is filed under what the history knows to be served. Where a daemon watches it is the
    daemon that notes a change, and before it has, the pin would be the wrong reference.
    """
    page = await watch.read_page()
    await watch.refresh_identity(page)
    unseen = await watch.identity.unseen(page)
    if not unseen:
        return
    told = ", ".join(f"{c.field} {c.before} → {c.after}" for c in unseen)
    why = (
        f"{watch.settings.name} is not what the history knows of it ({told}): pins would be "
        "filed under what was served before."
    )
    if await watch.identity.is_ours():
        raise CommandError(f"{why} It is still changing; pin again when it stands", code=UNMEASURED)
    raise CommandError(
        f"{why} The daemon that watches it notes such a change within minutes. `vllm-canary "
        "status` tells whether it runs: start it if it "
        "does not, then pin again",
        code=UNMEASURED,
    )


async def _ask(watch: Any, probe: Probe, args: argparse.Namespace, life: timedelta) -> Recorded:
    """The repeats of one probe. It ends at the first that brings no answer, or a wrong one."""
    from monitor.daemon.oneshot import beside_load  # noqa: PLC0415
    from monitor.daemon.target import Skipped  # noqa: PLC0415
    from monitor.judge.quality.pinning import unfit  # noqa: PLC0415
    from monitor.measure.stream.answer import observed  # noqa: PLC0415
    from monitor.show.terminal import progress_console  # noqa: PLC0415

    shown, name = progress_console(), watch.settings.name
    samples: list[Sample] = []
    answers: list[ObservedAnswer] = []
    for number in range(args.repeats):
        if shown is not None:
            shown.print(f"{name}: {probe.name} {number + 1}/{args.repeats} …", style="dim")
        async with beside_load(watch, 2 if args.under_load and number % 2 else 0):
            done = await watch.run(probe)
        if isinstance(done, Skipped):
            return Recorded(name, probe.name, None, f"skipped: {done.reason}")
        measured, _stored = done
        if measured.sample.outcome is not Outcome.OK:
            return Recorded(
                name,
                probe.name,
                None,
                f"not pinned: {measured.detail or measured.sample.outcome.value}",
                wrong=measured.sample.outcome in REGRESSIONS,
            )
        answer = observed(measured.answer)
        if (why := unfit(probe, answer)) is not None:
            return Recorded(name, probe.name, None, f"not pinned: {why}", wrong=True)
        if not answer.tokens:
            return Recorded(name, probe.name, None, NO_LOGPROBS)
        samples.append(measured.sample)
        answers.append(answer)
    return await _made(watch, probe, answers, samples, args, life)


async def _made(
    watch: Any,
    probe: Probe,
    answers: Sequence[ObservedAnswer],
    samples: Sequence[Sample],
    args: argparse.Namespace,
    life: timedelta,
) -> Recorded:
    """The pin, not yet stored. Its noise holds what scoring adds, so that a scored answer is
    measured by it too.
    """
    from monitor.daemon.scoring import scoring_noise  # noqa: PLC0415
    from monitor.judge.quality.pinning import doubts, expiry, noise_of, outputs_of  # noqa: PLC0415

    now: datetime = now_utc()
    outputs = outputs_of(answers)
    known = (
        noise_of(answers, outputs),
        await scoring_noise(watch.canary.http, probe, watch.canary.model, outputs),
    )
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
        noise_nat=max((nat for nat in known if nat is not None), default=None),
        ttft_ms=tuple(s.ttft_ms for s in warm if s.ttft_ms is not None),
        decode_tok_s=tuple(s.decode_tok_s for s in warm if s.decode_tok_s is not None),
    )
    told = [] if len(outputs) == 1 else [f"{len(outputs)} different answers"]
    told += doubts(answers, pin.noise_nat)
    told += [NOT_READ] if pin.fingerprint is None and not args.dry_run else []
    return Recorded(pin.target, probe.name, pin, "; ".join(told))


async def _store(watch: Any, one: Recorded) -> Recorded:
    """Record it; the pin whose place it takes is kept."""
    if one.pin is None:
        return one
    same = [
        p.id
        for p in watch.pins
        if p.probe == one.probe and p.fingerprint in {one.pin.fingerprint, None}
    ]
    stored = replace(one.pin, id=await watch.store_pin(one.pin))
    kept = [f"takes the place of pin {', '.join(map(str, same))}, which is kept"] if same else []
    return replace(one, pin=stored, note="; ".join(filter(None, [one.note, *kept])))


def _show_differences(recorded: Sequence[Recorded]) -> None:
    """What is about to be accepted, where the repeats were not answered alike."""
    from monitor.show.terminal import console, printable  # noqa: PLC0415

    out = console()
    for r in recorded:
        if r.pin is not None and len(r.pin.outputs) > 1:
            out.print(
                f"{r.probe} was answered in {len(r.pin.outputs)} ways; all are taken as right:",
                style="bold",
            )
            for output in r.pin.outputs:
                out.print(f"  {output.count}×  {printable(output.text)}", markup=False)
            out.print()


def _print(recorded: Sequence[Recorded], args: argparse.Namespace) -> None:
    from monitor.show.records import pin_record  # noqa: PLC0415

    if args.json:
        pins = [
            {
                "target": r.target,
                "probe": r.probe,
                "note": r.note,
                "pin": None if r.pin is None else pin_record(r.pin),
            }
            for r in recorded
        ]
        print_json({"pins": pins})
        return
    from monitor.show.terminal import console, number, table  # noqa: PLC0415

    out = console()
    rows = [
        [
            r.pin.id if r.pin is not None and r.pin.id else "–",
            r.target,
            r.probe,
            "–" if r.pin is None else len(r.pin.outputs),
            number(r.pin.noise_nat if r.pin else None, 4),
            r.note or ("would be pinned" if args.dry_run else "pinned"),
        ]
        for r in recorded
    ]
    out.print(table(["id", "target", "probe", "answers count", "noise nat", "detail"], rows))
    if args.dry_run:
        out.print("\nNo pin was recorded (--dry-run).", style="yellow")
