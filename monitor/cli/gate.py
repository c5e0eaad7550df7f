"""`gate`: judge a server that is not yet live by production's pins; for a cut-over, a rollback, a deployment script."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from statistics import median, quantiles
from typing import Any

from monitor.cli.common import CommandError, chosen_probes, config_arguments, json_argument, load_context, now_utc, print_json
from monitor.errors import REGRESSION, UNMEASURED
from monitor.model import REGRESSIONS, Change, Outcome, Phase, Pin, Probe, Sample, Verdict

SLOWER = 0.10  # a candidate this much slower than production's own last day is a regression
LEAST_BEFORE = 4  # fewer samples of production say too little to call anybody slower
LOOK_BACK = timedelta(hours=24)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--candidate", metavar="URL", help="the server to judge (--url means the same)")
    parser.add_argument("--against", metavar="TARGET", required=True, help="whose pins to judge by")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each probe is asked (default 3)")
    config_arguments(parser)
    parser.add_argument("--url", dest="candidate_url", help=argparse.SUPPRESS)
    json_argument(parser)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How the candidate did with one probe, beside production."""

    probe: str
    passed: int
    near_ties: int
    failed: int
    of: int
    reason: str | None
    ttft_ms: float | None
    ttft_ms_against: float | None
    decode_tok_s: float | None
    decode_tok_s_against: float | None
    regressed: bool


@dataclass(frozen=True, slots=True)
class GateResult:
    """The whole verdict. `regressed` None: too little could be measured."""

    candidate: str
    against: str
    regressed: bool | None
    probes: list[ProbeResult] = field(default_factory=list)
    differences: list[Change] = field(default_factory=list)
    shift: dict[str, Any] = field(default_factory=dict)


def run(args: argparse.Namespace) -> int:
    """Measure the candidate, judge, print, and tell by the exit code."""
    url = args.candidate or args.candidate_url
    if not url:
        raise CommandError("gate needs the candidate: --url http://127.0.0.1:8001")
    if args.rounds < 1:
        raise CommandError("--rounds must be at least 1")
    settings = load_context(args)
    if settings.target(args.against) is None:
        raise CommandError(f"there is no target {args.against!r}; the configuration has: {', '.join(t.name for t in settings.targets)}")
    result = asyncio.run(_gate(settings, url, args))
    if args.json:
        print_json({"gate": asdict(result)})
    else:
        _print(result)
    return UNMEASURED if result.regressed is None else REGRESSION if result.regressed else 0


async def _gate(settings: Any, url: str, args: argparse.Namespace) -> GateResult:
    from monitor.config.settings import settings_for_url  # noqa: PLC0415 - --help needs none of this
    from monitor.measure import api  # noqa: PLC0415
    from monitor.measure.scrape import MetricsPage  # noqa: PLC0415
    from monitor.measure.stream import client_of  # noqa: PLC0415

    known = _production(settings.database, args.against)
    if not known.pins:
        raise CommandError(f'{args.against} has no pins to judge by; `vllm-canary pin --target {args.against} --reason "…"` records some')
    own = settings.target(args.against)
    candidate = settings_for_url(url, None).targets[0].model_copy(
        update={"api_key_env": own.api_key_env, "api_key_file": own.api_key_file, "headers": own.headers, "ca_file": own.ca_file}
    )
    probes = [p for p in chosen_probes(settings, []) if any(pin.probe == p.name for pin in known.pins)]
    async with client_of(candidate) as http:
        model = own.model or api.the_one_model(candidate.url, await api.models(http))
        page = MetricsPage(http, candidate.metrics_page)
        measured = await _rounds(candidate.name, http, page, model, probes, args.rounds)
        differences = await _differences(candidate, http, model, page, known.fields)
    return _judged(url, args.against, probes, measured, known, differences)


@dataclass(frozen=True, slots=True)
class _Production:
    pins: list[Pin]
    digest: str | None
    fields: Mapping[str, Any]
    samples: list[Sample]


def _production(database: str, target: str) -> _Production:
    from monitor.store import fingerprints, pins, queries  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    with reading(database) as connection:
        row = queries.target(connection, target)
        stored = None if row is None else fingerprints.current(connection, row.id)
        wanted = queries.SampleFilter(since=now_utc() - LOOK_BACK, target=target, outcome="ok")
        samples = queries.samples(connection, wanted)
        found = pins.find(connection, target)
    return _Production(found, None if stored is None else stored.digest, {} if stored is None else stored.fields, samples)


async def _rounds(
    name: str, http: Any, page: Any, model: str | None, probes: Sequence[Probe], rounds: int
) -> dict[str, list[tuple[Any, Probe]]]:
    """Every probe once before the count, so that no answer is cold, then `rounds` times."""
    from monitor.measure.canary import Canary  # noqa: PLC0415
    from monitor.measure.preflight import Preflight  # noqa: PLC0415
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
            measured = await canary.measure(sent, Phase.COLD if number == 0 else Phase.WARM, await page.read(), None)
            if number > 0:
                results[probe.name].append((measured, sent))
    return results


async def _differences(candidate: Any, http: Any, model: str | None, page: Any, known: Mapping[str, Any]) -> list[Change]:
    """Root fields that differ, where both sides are known; where a server listens is no difference."""
    from monitor.judge.changes import compare  # noqa: PLC0415
    from monitor.measure.identity import Sources, read_identity  # noqa: PLC0415

    seen = await read_identity(Sources(candidate, http, model, None, "not read by gate", None), await page.read())
    return list(compare(known, seen.fields).roots)


def _judged(
    url: str,
    against: str,
    probes: Sequence[Probe],
    measured: Mapping[str, list[tuple[Any, Probe]]],
    known: _Production,
    differences: list[Change],
) -> GateResult:
    from monitor.judge.gate import judge_gate, pin_for  # noqa: PLC0415
    from monitor.judge.shift import judge_shift  # noqa: PLC0415
    from monitor.measure.answer import observed  # noqa: PLC0415

    results: list[ProbeResult] = []
    shifts: dict[str, list[float]] = {}
    noise: dict[str, float] = {}
    repeats: dict[str, int] = {}
    for probe in probes:
        judgements = []
        for one, sent in measured[probe.name]:
            pin, _ = pin_for(known.pins, sent, known.digest)
            judgement = judge_gate(sent, one.sample.outcome, observed(one.answer), pin)
            judgements.append(judgement)
            if pin is not None and judgement.verdict is Verdict.PASS and judgement.logprob_shift is not None:
                shifts.setdefault(probe.name, []).append(judgement.logprob_shift)
                noise[probe.name], repeats[probe.name] = pin.noise_nat or 0.0, pin.repeats
        results.append(_probe_result(probe, [m for m, _ in measured[probe.name]], judgements, known.samples))
    shift = judge_shift(shifts, noise, repeats)
    unmeasured = all(r.passed + r.failed + r.near_ties == 0 for r in results)
    regressed = any(r.regressed for r in results) or bool(shift.shifted)
    return GateResult(url, against, None if unmeasured and not regressed else regressed, results, differences, asdict(shift))


def _probe_result(probe: Probe, measured: Sequence[Any], judgements: Sequence[Any], production: Sequence[Sample]) -> ProbeResult:
    samples = [m.sample for m in measured]
    verdicts = [j.verdict for j in judgements]
    failed = verdicts.count(Verdict.FAIL) + sum(s.outcome in REGRESSIONS for s in samples if s.outcome is not Outcome.EMPTY)
    own = [s for s in production if s.probe == probe.name and s.phase is Phase.WARM]
    rates = [s.decode_tok_s for s in samples if s.decode_tok_s is not None]
    rates_before = [s.decode_tok_s for s in own if s.decode_tok_s is not None]
    rate, rate_before = _median(rates), _median(rates_before)
    slow = is_slower(rates, rates_before)
    allowed = max(0, len(samples) - max(1, round(len(samples) * probe.require / probe.repeats)))
    reason = next((j.reason for j in judgements if j.verdict is Verdict.FAIL), None)
    if reason is None and slow and rate is not None and rate_before is not None:
        reason = f"decode rate {rate:.1f} tokens/s, {against_text(rate, rate_before)} than production's"
    return ProbeResult(
        probe=probe.name,
        passed=verdicts.count(Verdict.PASS),
        near_ties=verdicts.count(Verdict.NEAR_TIE),
        failed=failed,
        of=len(samples),
        reason=reason,
        ttft_ms=_median([s.ttft_ms for s in samples]),
        ttft_ms_against=_median([s.ttft_ms for s in own]),
        decode_tok_s=rate,
        decode_tok_s_against=rate_before,
        regressed=failed > allowed or slow,
    )


def is_slower(rates: Sequence[float], before: Sequence[float]) -> bool:
    """Clearly slower: the median is a tenth below production's, and even the best round is below three quarters of production's own."""
    if not rates or len(before) < LEAST_BEFORE:
        return False
    return median(rates) < median(before) * (1 - SLOWER) and max(rates) < quantiles(before, n=4)[0]


def against_text(now: float, before: float) -> str:
    """`12 % less` or `3 % more`."""
    change = (now / before - 1) * 100
    return f"{abs(change):.0f} % {'less' if change < 0 else 'more'}"


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def _print(result: GateResult) -> None:
    from rich.text import Text  # noqa: PLC0415

    from monitor.show.terminal import console, milliseconds, number, table  # noqa: PLC0415

    out = console()
    headings = ["probe", "pass", "near tie", "fail", "TTFT ms", "production ms", "tokens/s", "production tokens/s", "detail"]
    rows = [
        [
            r.probe,
            r.passed,
            r.near_ties,
            r.failed,
            milliseconds(r.ttft_ms),
            milliseconds(r.ttft_ms_against),
            number(r.decode_tok_s, 1),
            number(r.decode_tok_s_against, 1),
            r.reason or "",
        ]
        for r in result.probes
    ]
    out.print(table(headings, rows))
    for change in result.differences:
        out.print(f"differs: {change.field}: {change.before} → {change.after}", markup=False)
    if result.shift.get("shifted"):
        moved = ", ".join(result.shift["moved"])
        effect = result.shift["effect_nat"]
        out.print(f"log-probabilities moved by {effect:.3f} nat although the answers read the same: {moved}", markup=False)
    told, style = {None: ("could not be measured", "yellow"), True: ("regression", "bold red"), False: ("good", "green")}[result.regressed]
    out.print(Text(f"{result.candidate} against {result.against}: {told}", style))
