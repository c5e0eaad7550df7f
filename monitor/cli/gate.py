"""`gate`: checks a candidate server against production's pins, before a cut-over or a rollback, by
hand or in a deployment script.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.text import Text

from monitor.cli.common import CommandError, print_json
from monitor.cli.configured import chosen_probes, known_target, settings_of
from monitor.cli.gate_server import Candidate, JudgedRun, Production, read_production
from monitor.config.places import find_config
from monitor.config.settings import Settings, settings_for_url
from monitor.config.target import TargetSettings
from monitor.errors import REGRESSION, UNMEASURED
from monitor.judge.quality.candidate import ProbeResult, conclude, judge_candidate
from monitor.judge.quality.candidate_speed import judge_decoding, steadiest
from monitor.judge.quality.shift import ShiftResult, judge_shift
from monitor.measure.server import api
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.client import client_of
from monitor.model import Change, Probe
from monitor.show.terminal import UNKNOWN, console, milliseconds, number, table

QUALITY = ("probe", "pass", "near tie", "fail", "production pass")
SPEED = ("TTFT ms", "production TTFT ms", "tokens/s", "production tokens/s")
#: What the candidate shares with production; its address is its own.
SHARED = ("api_key_env", "api_key_file", "headers", "ca_file")

Runs = Mapping[str, Sequence[JudgedRun]]


@dataclass(frozen=True, slots=True)
class GateResult:
    """The whole verdict, as `--json` prints it. `regressed` None: too little could be measured or
    judged. `notes`: sentences about the whole: failures over all probes, why the model shift or the
    decode rate was not tested, stale pins.
    """

    candidate: str
    against: str
    regressed: bool | None
    probes: Sequence[ProbeResult]
    differences: Sequence[Change]
    shift: ShiftResult
    notes: Sequence[str]


def run(args: Namespace) -> int:
    """Measures and judges the candidate; the exit code is the verdict."""
    if args.rounds < 1:
        raise CommandError("--rounds must be at least 1")
    result = asyncio.run(_gate(_settings(args), args))
    if args.json:
        print_json({"gate": asdict(result)})
    else:
        _print(result)
    return UNMEASURED if result.regressed is None else REGRESSION if result.regressed else 0


def _settings(args: Namespace) -> Settings:
    """The configuration with the target; without one, the bundled probes and the history of `--url`
    commands.
    """
    if find_config(args.config) is None:
        return settings_for_url(args.candidate, args.db)
    settings = settings_of(args)
    known_target(settings, args.against)
    return settings


async def _gate(settings: Settings, args: Namespace) -> GateResult:
    production = read_production(settings.database, args.against)
    probes = _selected(chosen_probes(settings), production)
    own = settings.target(args.against)
    target = _candidate_target(args.candidate, own)
    async with client_of(target) as http:
        model = None if own is None else own.model
        model = model or api.the_one_model(target.url, await api.models(http))
        page = MetricsPage(http, target.metrics_page)
        candidate = Candidate(target, http, page, model, production)
        runs = await candidate.judged(probes, await candidate.measured(probes, args.rounds))
        differences = await candidate.differences()
    return _result(args, probes, runs, production, differences)


def _selected(configured: Sequence[Probe], production: Production) -> list[Probe]:
    """The probes that have pins, and the one whose decode rate is steadiest: answers of a fixed
    length are seldom pinned, because a model that may not stop rambles. Raises CommandError.
    """
    against = production.target
    if not production.pins:
        raise CommandError(
            f"{against} has no pins to judge against; `vllm-canary pin --target {against} "
            '--reason "…"` records some'
        )
    pinned = [p for p in configured if production.has_pin(p.name)]
    if not pinned:
        names = ", ".join(sorted({pin.probe for pin in production.pins}))
        raise CommandError(f"none of the probes that {against} has pins for is configured: {names}")
    best = steadiest(configured, production.samples)
    return pinned if best is None or best in pinned else [*pinned, best]


def _candidate_target(url: str, own: TargetSettings | None) -> TargetSettings:
    """The candidate as a target, with production's key, headers and certificates."""
    target = settings_for_url(url, None).targets[0]
    if own is None:
        return target
    return target.model_copy(update={name: getattr(own, name) for name in SHARED})


def _result(
    args: Namespace,
    probes: Sequence[Probe],
    runs: Runs,
    production: Production,
    differences: Sequence[Change],
) -> GateResult:
    """The whole verdict: a regression of one probe, or a shift of the model over all of them, is
    one of the whole.
    """
    rounds = {name: [one for one, _ in judged] for name, judged in runs.items()}
    results = [
        judge_candidate(
            probe,
            rounds[probe.name],
            production.samples,
            speed_only=not production.has_pin(probe.name),
        )
        for probe in probes
    ]
    shift = _shift(runs)
    samples = {name: [one.sample for one in judged] for name, judged in rounds.items()}
    decoding = judge_decoding(samples, production.samples)
    whole = conclude(results, shift, args.rounds, decoding)
    stale = sorted(name for name, judged in rounds.items() if any(one.stale for one in judged))
    return GateResult(
        candidate=args.candidate,
        against=args.against,
        regressed=whole.regressed,
        probes=results,
        differences=differences,
        shift=shift,
        notes=[*whole.notes, *_stale_note(args.against, stale)],
    )


def _shift(runs: Runs) -> ShiftResult:
    shifts: dict[str, list[float]] = {}
    noise: dict[str, float | None] = {}
    repeats: dict[str, int] = {}
    for name, judged in runs.items():
        for one, pin in judged:
            moved = one.judgement.logprob_shift
            if moved is not None and pin is not None:
                shifts.setdefault(name, []).append(moved)
                noise[name], repeats[name] = pin.noise_nat, pin.repeats
    return judge_shift(shifts, noise, repeats)


def _stale_note(against: str, names: Sequence[str]) -> list[str]:
    """A warning if pins may no longer match production itself."""
    if not names:
        return []
    return [
        f"the pins of {', '.join(names)} are stale: {against} has changed since they were recorded "
        f'and may itself answer differently; `vllm-canary pin --target {against} --reason "…"` '
        "records new ones"
    ]


def _print(result: GateResult) -> None:
    out = console()
    rows = [_cells(probe) for probe in result.probes]
    out.print(table([*QUALITY, *SPEED, "detail"], rows))
    for change in result.differences:
        out.print(f"differs: {change.field}: {change.before} → {change.after}", markup=False)
    if result.shift.shifted:
        moved = ", ".join(result.shift.moved)
        effect = f"{result.shift.effect_nat or 0:.3f} nat"
        out.print(
            f"log-probabilities of the pinned answers shifted by {effect}: {moved}", markup=False
        )
    for note in result.notes:
        out.print(note, style="yellow", markup=False)
    _print_verdict(out, result)


def _cells(r: ProbeResult) -> list[str]:
    return [
        r.probe,
        *_verdicts(r),
        milliseconds(r.ttft_ms),
        milliseconds(r.ttft_ms_against),
        number(r.decode_tok_s, 1),
        number(r.decode_tok_s_against, 1),
        r.reason or ("has no pin: judged by speed only" if r.speed_only else ""),
    ]


def _verdicts(r: ProbeResult) -> list[str]:
    """Counts; unknown, not zero, for answers without a pin."""
    if r.speed_only:
        return [UNKNOWN, UNKNOWN, str(r.failed), UNKNOWN]
    return [str(r.passed), str(r.near_ties), str(r.failed), f"{r.passed_against} of {r.of_against}"]


def _print_verdict(out: Console, result: GateResult) -> None:
    verdict, style = {
        None: ("could not be measured or judged", "yellow"),
        True: ("regression", "bold red"),
        False: ("good", "green"),
    }[result.regressed]
    out.print(Text(f"{result.candidate} against {result.against}: {verdict}", style))
