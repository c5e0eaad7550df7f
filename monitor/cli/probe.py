"""`probe`: one round of canaries now, stored like any other."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from monitor.cli.common import (
    chosen_probes,
    chosen_targets,
    config_arguments,
    json_argument,
    load_context,
    print_json,
)
from monitor.errors import REGRESSION, UNMEASURED, USAGE
from monitor.model import REGRESSIONS, Outcome, Probe, Sample, Verdict

LEASE_WAIT_S = 60.0
WRONG_KEY_OR_MODEL = frozenset({401, 403, 404})


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("probes", nargs="*", metavar="PROBE", help="which probes (default: all)")
    config_arguments(parser, url=True)
    parser.add_argument("--target", metavar="NAME", help="only this target")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print, and tell by the exit code."""
    settings = load_context(args)
    probes = chosen_probes(settings, args.probes)
    measured = asyncio.run(_rounds(settings, chosen_targets(settings, args.target), probes))
    if args.json:
        from monitor.show.records import sample_record  # noqa: PLC0415

        print_json({"samples": [{**sample_record(m.sample), "detail": m.detail} for m in measured]})
    else:
        _table(measured)
    return exit_code([m.sample for m in measured], [m.http_status for m in measured])


def exit_code(samples: Sequence[Sample], statuses: Sequence[int | None] = ()) -> int:
    """1 beats 3: a regression that was found outweighs what could not be measured; a wrong key or
    model is the user's to mend.
    """
    if any(s.verdict is Verdict.FAIL or s.outcome in REGRESSIONS for s in samples):
        return REGRESSION
    if set(statuses) & WRONG_KEY_OR_MODEL:
        return USAGE
    return 0 if samples and all(s.outcome is Outcome.OK for s in samples) else UNMEASURED


async def _rounds(settings: Any, targets: Sequence[Any], probes: Sequence[Probe]) -> list[Any]:
    from monitor.daemon.gpus import GpuWatches  # noqa: PLC0415 - --help needs none of this
    from monitor.daemon.identity import Keeps  # noqa: PLC0415
    from monitor.daemon.watch import TargetWatch  # noqa: PLC0415
    from monitor.store.database import open_writer  # noqa: PLC0415
    from monitor.store.writer import Writer  # noqa: PLC0415

    writer = Writer(open_writer(settings.database), patient=False)
    gpu = GpuWatches([target.watches_gpus for target in targets])
    gpu.start()
    try:
        await gpu.first_look()
        results: list[Any] = []
        for target in targets:
            watch = TargetWatch(
                target, probes, writer, gpu.of(target.watches_gpus), keeps=Keeps.UNWATCHED
            )
            try:
                await watch.load()
                await _refuse_misfits(watch, probes, Path(settings.probes))
                results += await _round(watch, probes, writer)
            finally:
                await watch.close()
        return results
    finally:
        gpu.stop()
        await asyncio.to_thread(writer.close)


async def _refuse_misfits(watch: Any, probes: Sequence[Probe], directory: Path) -> None:
    """A probe that the context cannot hold is a mistake in its file, not a failure of the server.
    Raises ConfigError.
    """
    from monitor.config.problems import ConfigError  # noqa: PLC0415
    from monitor.measure.server.api import ServerUnreachableError  # noqa: PLC0415

    with suppress(ServerUnreachableError):  # the canaries themselves will say so, and it is stored
        problems = await watch.misfits(probes, directory)
        if problems:
            raise ConfigError(problems)


async def _round(watch: Any, probes: Sequence[Probe], writer: Any) -> list[Any]:
    from monitor.daemon.lanes import lease_name, leased  # noqa: PLC0415
    from monitor.daemon.target import Skipped  # noqa: PLC0415
    from monitor.show.terminal import progress_console  # noqa: PLC0415

    results: list[Any] = []
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
                results.append(
                    replace(
                        measured,
                        sample=replace(measured.sample, id=await asyncio.wrap_future(stored)),
                    )
                )
    return results


def print_skipped(reason: str, probe: str) -> None:
    """A canary that was not sent is said on standard error, so that JSON on standard output stays
    one object.
    """
    print(f"{probe} was skipped: {reason}", file=sys.stderr)


def _table(measured: Sequence[Any]) -> None:
    from monitor.show.terminal import console, milliseconds, number, table  # noqa: PLC0415

    headings = [
        "id",
        "target",
        "probe",
        "class",
        "phase",
        "outcome",
        "verdict",
        "TTFT ms",
        "tokens/s",
        "queue ms",
        "detail",
    ]
    rows = [
        [
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
            m.detail or "",
        ]
        for m in measured
        for s in [m.sample]
    ]
    console().print(table(headings, rows))
