"""`gate`: judge a server that is not yet live by production's pins; for a cut-over, a rollback, a
deployment script.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from monitor.cli.common import (
    CommandError,
    chosen_probes,
    config_arguments,
    json_argument,
    load_context,
    now_utc,
    print_json,
)
from monitor.errors import REGRESSION, UNMEASURED
from monitor.model import Change, Phase, Pin, Probe, Sample, Verdict

LOOK_BACK = timedelta(hours=24)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--url", dest="candidate", metavar="URL", required=True, help="the server to judge"
    )
    parser.add_argument("--against", metavar="TARGET", required=True, help="whose pins to judge by")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="how often each probe is asked (default 3)",
    )
    config_arguments(parser)
    json_argument(parser)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The whole verdict, as `--json` prints it. `regressed` None: too little could be measured or
    judged. `notes`: sentences about the whole: failures over all probes, why the model shift or the
    decode rate was not tested, pins that are stale.
    """

    candidate: str
    against: str
    regressed: bool | None
    probes: list[Any]  # ProbeResult
    differences: list[Change]
    shift: Any  # ShiftResult
    notes: list[str]


def run(args: argparse.Namespace) -> int:
    """Measure the candidate, judge, print, and tell by the exit code."""
    if args.rounds < 1:
        raise CommandError("--rounds must be at least 1")
    settings = _settings(args)
    result = asyncio.run(_gate(settings, args))
    if args.json:
        print_json({"gate": asdict(result)})
    else:
        _print(result)
    return UNMEASURED if result.regressed is None else REGRESSION if result.regressed else 0


def _settings(args: argparse.Namespace) -> Any:
    """The configuration with the target; where there is none, the shipped probes and the history
    that `--url` commands keep.
    """
    from monitor.config.places import find_config  # noqa: PLC0415 - --help needs none of this
    from monitor.config.settings import settings_for_url  # noqa: PLC0415

    if find_config(args.config) is None:
        return settings_for_url(args.candidate, args.db)
    settings = load_context(args)
    if settings.target(args.against) is None:
        raise CommandError(
            f"there is no target {args.against!r}; the configuration has: "
            f"{', '.join(t.name for t in settings.targets)}"
        )
    return settings


async def _gate(settings: Any, args: argparse.Namespace) -> GateResult:
    from monitor.measure.server import api  # noqa: PLC0415
    from monitor.measure.server.metrics_page import MetricsPage  # noqa: PLC0415
    from monitor.measure.stream.client import client_of  # noqa: PLC0415

    known = _production(settings.database, args.against)
    if not known.pins:
        raise CommandError(
            f"{args.against} has no pins to judge by; `vllm-canary pin --target {args.against} "
            '--reason "…"` records some'
        )
    own, candidate = settings.target(args.against), _candidate(settings, args)
    probes = _asked(chosen_probes(settings, []), known)
    if not probes:
        raise CommandError(
            f"none of the probes that {args.against} has pins for is configured any more: "
            f"{_names(known.pins)}"
        )
    async with client_of(candidate) as http:
        model = (own.model if own is not None else None) or api.the_one_model(
            candidate.url, await api.models(http)
        )
        page = MetricsPage(http, candidate.metrics_page)
        measured = await _rounds(candidate.name, http, page, model, probes, args.rounds)
        rounds = await _judged(http, model, probes, measured, known)
        differences = await _differences(candidate, http, model, page, known.fields)
    return _result(args, probes, rounds, known, differences)


def _asked(configured: Sequence[Probe], known: _Production) -> list[Probe]:
    """The probes that have pins, and the one that tells decode rates best: answers of a fixed
    length are seldom pinned, since the end that they forbid makes them ramble. None at all without
    a pin.
    """
    from monitor.judge.quality.candidate_speed import steadiest  # noqa: PLC0415

    pinned = [p for p in configured if known.has_pin(p.name)]
    best = steadiest(configured, known.samples)
    return [*pinned, best] if pinned and best is not None and best not in pinned else pinned


def _names(pins: Sequence[Pin]) -> str:
    return ", ".join(sorted({pin.probe for pin in pins}))


def _candidate(settings: Any, args: argparse.Namespace) -> Any:
    """The candidate as a target: production's key, headers and certificates, another address."""
    from monitor.config.settings import settings_for_url  # noqa: PLC0415

    candidate, own = (
        settings_for_url(args.candidate, None).targets[0],
        settings.target(args.against),
    )
    shared = ("api_key_env", "api_key_file", "headers", "ca_file")
    return (
        candidate
        if own is None
        else candidate.model_copy(update={name: getattr(own, name) for name in shared})
    )


@dataclass(frozen=True, slots=True)
class _Production:
    pins: list[Pin]
    digest: str | None
    fields: Mapping[str, Any]
    samples: list[Sample]

    def has_pin(self, probe: str) -> bool:
        """Whether any of its pins is of that probe, of whatever revision."""
        return any(pin.probe == probe for pin in self.pins)


def _production(database: str, target: str) -> _Production:
    from monitor.store import fingerprints, pins, queries  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    with reading(database) as connection:
        row = queries.target(connection, target)
        if row is None:
            known = ", ".join(r.name for r in queries.targets(connection)) or "none yet"
            raise CommandError(f"the history knows no target {target!r}; it has: {known}")
        stored = fingerprints.current(connection, row.id)
        wanted = queries.SampleFilter(since=now_utc() - LOOK_BACK, target=target, outcome="ok")
        samples = queries.samples(connection, wanted)
        found = pins.find(connection, target)
    return _Production(
        found,
        None if stored is None else stored.digest,
        {} if stored is None else stored.fields,
        samples,
    )


async def _rounds(
    name: str, http: Any, page: Any, model: str | None, probes: Sequence[Probe], rounds: int
) -> dict[str, list[tuple[Any, Probe]]]:
    """Every probe once before the count, so that no answer is cold, then `rounds` times."""
    from monitor.measure.canary import Canary  # noqa: PLC0415
    from monitor.measure.server.preflight import Preflight  # noqa: PLC0415
    from monitor.show.terminal import progress_console  # noqa: PLC0415

    flight = Preflight(name, http, page, model)
    await flight.learn_context()
    canary = Canary(name, http, page, model)
    shown = progress_console()
    results: dict[str, list[tuple[Any, Probe]]] = {probe.name: [] for probe in probes}
    for number in range(rounds + 1):
        for probe in probes:
            if shown is not None:
                shown.print(f"round {number}/{rounds}: {probe.name} …", style="dim")
            sent = await flight.fitted(probe)
            measured = await canary.measure(
                sent, Phase.COLD if number == 0 else Phase.WARM, await page.read(), None
            )
            if number > 0:
                results[probe.name].append((measured, sent))
    return results


async def _differences(
    candidate: Any, http: Any, model: str | None, page: Any, known: Mapping[str, Any]
) -> list[Change]:
    """Root fields that differ, where both sides are known; where a server listens is no
    difference.
    """
    from monitor.judge.identity import compare  # noqa: PLC0415
    from monitor.measure.server.identity import Sources, read_identity  # noqa: PLC0415

    seen = await read_identity(
        Sources(candidate, http, model, None, "not read by gate", None), await page.read()
    )
    return list(compare(known, seen.fields).roots)


async def _judged(
    http: Any,
    model: str | None,
    probes: Sequence[Probe],
    measured: Mapping[str, list[tuple[Any, Probe]]],
    known: _Production,
) -> dict[str, list[tuple[Any, Pin | None]]]:
    """Every run with its verdict and the pin it was judged by. Where another answer came, the
    candidate scores the pinned one.
    """
    from monitor.daemon.scoring import scored_shift  # noqa: PLC0415
    from monitor.judge.quality.candidate import Round  # noqa: PLC0415
    from monitor.judge.quality.gate import judge_gate, pin_for  # noqa: PLC0415
    from monitor.judge.quality.pinned import PinJudgement  # noqa: PLC0415
    from monitor.measure.stream.answer import observed  # noqa: PLC0415

    unpinned = PinJudgement(
        Verdict.UNPINNED, "its text is not the one that was pinned; pin it anew"
    )
    rounds: dict[str, list[tuple[Any, Pin | None]]] = {probe.name: [] for probe in probes}
    for name, runs in measured.items():
        for one, sent in runs:
            pin, stale = pin_for(known.pins, sent, known.digest)
            judgement = (
                unpinned
                if pin is None
                else judge_gate(sent, one.sample.outcome, observed(one.answer), pin)
            )
            if pin is not None and judgement.first_divergence is not None:
                judgement = replace(
                    judgement,
                    logprob_shift=(await scored_shift(http, sent, model, pin.outputs[0]))[0],
                )
            rounds[name].append((Round(one.sample, judgement, one.detail, stale), pin))
    return rounds


def _result(
    args: argparse.Namespace,
    probes: Sequence[Probe],
    rounds: Mapping[str, list[tuple[Any, Pin | None]]],
    known: _Production,
    differences: list[Change],
) -> GateResult:
    """What it adds up to: a regression of one probe, or a shift of the model over all of them, is
    one of the whole.
    """
    from monitor.judge.quality.candidate import conclude, judge_candidate  # noqa: PLC0415
    from monitor.judge.quality.candidate_speed import judge_decoding  # noqa: PLC0415
    from monitor.judge.quality.shift import judge_shift  # noqa: PLC0415

    results = [
        judge_candidate(
            p,
            [one for one, _ in rounds[p.name]],
            known.samples,
            speed_only=not known.has_pin(p.name),
        )
        for p in probes
    ]
    moved = [
        (name, one.judgement.logprob_shift, pin)
        for name, runs in rounds.items()
        for one, pin in runs
    ]
    shifts: dict[str, list[float]] = {}
    noise: dict[str, float | None] = {}
    repeats: dict[str, int] = {}
    for name, shift_nat, pin in moved:
        if shift_nat is not None and pin is not None:
            shifts.setdefault(name, []).append(shift_nat)
            noise[name], repeats[name] = pin.noise_nat, pin.repeats
    shift = judge_shift(shifts, noise, repeats)
    decoding = judge_decoding(
        {name: [one.sample for one, _ in runs] for name, runs in rounds.items()}, known.samples
    )
    whole = conclude(results, shift, args.rounds, decoding)
    notes = [*whole.notes, *_stale(args.against, rounds)]
    return GateResult(
        args.candidate, args.against, whole.regressed, results, differences, shift, notes
    )


def _stale(against: str, rounds: Mapping[str, list[tuple[Any, Pin | None]]]) -> list[str]:
    """Pins that are no reference for production itself any more must not judge a candidate without
    a word.
    """
    names = sorted({name for name, runs in rounds.items() for one, _ in runs if one.stale})
    if not names:
        return []
    told = (
        f"the pins of {', '.join(names)} are stale: {against} has changed since they were "
        "taken, and may answer otherwise itself"
    )
    return [f'{told}; `vllm-canary pin --target {against} --reason "…"` pins it as it is now']


def _verdicts(r: Any) -> list[str]:
    """Answers that no pin was asked about have none, which is not zero; what broke counts all the
    same.
    """
    if r.speed_only:
        return ["–", "–", str(r.failed), "–"]
    return [str(r.passed), str(r.near_ties), str(r.failed), f"{r.passed_against} of {r.of_against}"]


def _print(result: GateResult) -> None:
    from rich.text import Text  # noqa: PLC0415

    from monitor.show.terminal import console, milliseconds, number, table  # noqa: PLC0415

    out = console()
    quality = ["probe", "pass", "near tie", "fail", "production pass"]
    speed = ["TTFT ms", "production TTFT ms", "tokens/s", "production tokens/s"]
    rows = [
        [
            r.probe,
            *_verdicts(r),
            milliseconds(r.ttft_ms),
            milliseconds(r.ttft_ms_against),
            number(r.decode_tok_s, 1),
            number(r.decode_tok_s_against, 1),
            r.reason or ("asked for its speed alone" if r.speed_only else ""),
        ]
        for r in result.probes
    ]
    out.print(table([*quality, *speed, "detail"], rows))
    for change in result.differences:
        out.print(f"differs: {change.field}: {change.before} → {change.after}", markup=False)
    if result.shift.shifted:
        moved = ", ".join(result.shift.moved)
        effect = f"{result.shift.effect_nat or 0:.3f} nat"
        out.print(
            f"the log-probabilities of the pinned answers moved by {effect}: {moved}", markup=False
        )
    for note in result.notes:
        out.print(note, style="yellow", markup=False)
    unclear = ("could not be measured or judged", "yellow")
    told, style = {None: unclear, True: ("regression", "bold red"), False: ("good", "green")}[
        result.regressed
    ]
    out.print(Text(f"{result.candidate} against {result.against}: {told}", style))
