"""`probe`: one round of canaries now, stored like the daemon's."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from monitor.cli.common import print_json
from monitor.cli.configured import chosen_probes, chosen_targets, settings_of
from monitor.config.problems import ConfigError
from monitor.config.settings import Settings
from monitor.config.target import TargetSettings
from monitor.daemon.gpus import GpuWatches
from monitor.daemon.identity import Keeps
from monitor.daemon.lanes import lease_name, leased
from monitor.daemon.target import Skipped
from monitor.daemon.watch import TargetWatch
from monitor.errors import REGRESSION, UNMEASURED, USAGE
from monitor.measure.canary import Measurement
from monitor.measure.server.api import ServerUnreachableError
from monitor.model import REGRESSIONS, Outcome, Probe, Sample, Verdict
from monitor.show.records import sample_record
from monitor.show.terminal import console, milliseconds, number, progress_console, table
from monitor.store.database import open_writer
from monitor.store.writer import Writer

LEASE_WAIT_S = 60.0
WRONG_KEY_OR_MODEL = frozenset({401, 403, 404})
HEADINGS = (
    *("id", "target", "probe", "class", "phase", "outcome", "verdict"),
    *("TTFT ms", "tokens/s", "queue ms", "detail"),
)


def run(args: Namespace) -> int:
    """Measures and prints; the exit code is the worst outcome."""
    settings = settings_of(args)
    probes = chosen_probes(settings, args.probes)
    measured = asyncio.run(_rounds(settings, chosen_targets(settings, args.target), probes))
    if args.json:
        print_json({"samples": [{**sample_record(m.sample), "detail": m.detail} for m in measured]})
    else:
        console().print(table(HEADINGS, [_cells(m.sample, m.detail) for m in measured]))
    return exit_code([m.sample for m in measured], [m.http_status for m in measured])


def exit_code(samples: Sequence[Sample], statuses: Sequence[int | None] = ()) -> int:
    """1 beats 3: a regression outweighs what could not be measured. 2 for a wrong API key or model,
    which the user must correct.
    """
    if any(s.verdict is Verdict.FAIL or s.outcome in REGRESSIONS for s in samples):
        return REGRESSION
    if set(statuses) & WRONG_KEY_OR_MODEL:
        return USAGE
    return 0 if samples and all(s.outcome is Outcome.OK for s in samples) else UNMEASURED


async def _rounds(
    settings: Settings, targets: Sequence[TargetSettings], probes: Sequence[Probe]
) -> list[Measurement]:
    writer = Writer(open_writer(settings.database), patient=False)
    gpus = GpuWatches([target.watches_gpus for target in targets])
    gpus.start()
    try:
        await gpus.first_reading()
        results: list[Measurement] = []
        for target in targets:
            watch = TargetWatch(
                target, probes, writer, gpus.of(target.watches_gpus), keeps=Keeps.UNWATCHED
            )
            try:
                await watch.load()
                await _refuse_misfits(watch, probes, Path(settings.probes))
                results += await _round(watch, probes, writer)
            finally:
                await watch.close()
        return results
    finally:
        gpus.stop()
        await asyncio.to_thread(writer.close)


async def _refuse_misfits(watch: TargetWatch, probes: Sequence[Probe], directory: Path) -> None:
    """Raises ConfigError for a probe that does not fit the context: its file is wrong, not the
    server.
    """
    # An unreachable server is reported by the canaries, and stored.
    with suppress(ServerUnreachableError):
        problems = await watch.misfits(probes, directory)
        if problems:
            raise ConfigError(problems)


async def _round(watch: TargetWatch, probes: Sequence[Probe], writer: Writer) -> list[Measurement]:
    results: list[Measurement] = []
    shown = progress_console()
    async with leased(writer, lease_name(watch.settings.name, capped=True), LEASE_WAIT_S):
        for probe in probes:
            if shown is not None:
                shown.print(f"{watch.settings.name}: {probe.name} …", style="dim")
            done = await watch.run_all(probe)
            if isinstance(done, Skipped):
                print_skipped(done.reason, probe.name)
                continue
            for measured, stored in done:
                number = await asyncio.wrap_future(stored)
                results.append(replace(measured, sample=replace(measured.sample, id=number)))
    return results


def print_skipped(reason: str, probe: str) -> None:
    """Reports a canary that was not sent, on standard error: JSON on standard output stays one
    object.
    """
    print(f"{probe} was skipped: {reason}", file=sys.stderr)


def _cells(s: Sample, detail: str | None) -> list[object]:
    return [
        s.id,
        s.target,
        s.probe,
        s.traffic_class,
        s.phase.value,
        s.outcome.value,
        s.verdict.value,
        milliseconds(s.ttft_ms),
        number(s.decode_tok_s, 1),
        milliseconds(s.queue_ms),
        detail or "",
    ]
