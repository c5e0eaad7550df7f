"""`check`: reports on one screen what can be reached and measured, what is missing, and what it is
needed for.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from monitor.cli.common import CommandError, print_json
from monitor.cli.configured import chosen_probes, settings_of
from monitor.config.settings import ChannelSettings, Settings
from monitor.config.target import TargetSettings
from monitor.daemon.gpus import GpuWatches
from monitor.errors import UNMEASURED, USAGE, UserError
from monitor.measure.gpu.dcgm import missing_evidence
from monitor.measure.gpu.report import gpu_report
from monitor.measure.gpu.watch import GpuWatch
from monitor.measure.server import api
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.server.preflight import Check, Preflight
from monitor.measure.stream.client import ConnectionSetupError, client_of
from monitor.model import Probe
from monitor.show.terminal import console, table
from monitor.store.database import DatabaseError, is_sqlite, open_reader, shown, sqlite_path

NO_GPUS = Check(
    "GPU",
    "unknown",
    "no GPU is watched",
    "temperatures and clocks stay unknown; set `gpus:` to UUIDs if the server's GPUs are in this "
    "machine, or to {dcgm: URL}",
)
NO_CHANNELS = Check(
    "alerts",
    "unknown",
    "no notification channel is configured",
    "incidents are recorded, but no notifications are sent; add a channel under `channels:`",
)


def run(args: Namespace) -> int:
    """Checks everything once; stores nothing."""
    if args.gpu_report is not None:
        checks, code = _gpu_report(Path(args.gpu_report))
    else:
        settings = settings_of(args)
        checks, code = asyncio.run(_check_all(settings, chosen_probes(settings)))
    if args.json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        rows = [[c.state, c.name, c.detail + (f"\n→ {c.mend}" if c.mend else "")] for c in checks]
        console().print(table(["state", "what", "detail"], rows))
    return code


def _gpu_report(path: Path) -> tuple[list[Check], int]:
    """Writes what this machine's GPUs can report; needs no configuration and no server."""
    report = gpu_report()
    try:
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written: {error.strerror}; name a file in a writable directory"
        ) from None
    written = f"{path} written, {len(report['gpus'])} GPUs; {report['privacy']}"
    if report["error"] is None:
        return [Check("GPU report", "good", written)], 0
    return [Check("GPU report", "unknown", written, report["error"])], UNMEASURED


async def _check_all(settings: Settings, probes: Sequence[Probe]) -> tuple[list[Check], int]:
    counts = f"targets: {len(settings.targets)}, probes: {len(probes)}, from {settings.probes}"
    database, code = _database(settings.database)
    checks = [Check("configuration", "good", counts), database, *await _gpus(settings)]
    for target in settings.targets:
        found, target_code = await _target(target, probes, Path(settings.probes))
        checks += found
        code = USAGE if USAGE in {code, target_code} else max(code, target_code)
    channels = [_channel(channel) for channel in settings.channels] or [NO_CHANNELS]
    if any(check.state == "bad" for check in channels):
        code = USAGE
    return checks + channels, code


def _database(database: str) -> tuple[Check, int]:
    if is_sqlite(database) and not sqlite_path(database).exists():
        return _new_database(sqlite_path(database), shown(database))
    try:
        open_reader(database).dispose()
    except DatabaseError as error:
        return Check("database", "bad", str(error), None), error.exit_code
    return Check("database", "good", shown(database)), 0


def _new_database(path: Path, name: str) -> tuple[Check, int]:
    """Whether a database that does not exist yet can be created."""
    folder = next((p for p in path.parents if p.exists()), Path("/"))
    if os.access(folder, os.W_OK):
        return Check("database", "good", f"{name} will be created"), 0
    why = f"{name} cannot be created: {folder} is not writable"
    return Check("database", "bad", why, "choose another `database:`"), UNMEASURED


async def _gpus(settings: Settings) -> list[Check]:
    watches = GpuWatches([target.watches_gpus for target in settings.targets])
    watches.start()
    await watches.first_reading()
    found = [_gpu_watch(watch) for watch in watches.all()]
    watches.stop()
    return [check for check in found if check is not None] or [NO_GPUS]


def _gpu_watch(watch: GpuWatch) -> Check | None:
    """What one watch can read; None if it is switched off."""
    state, identity = watch.state(), watch.identity()
    if state.status == "off":
        return None
    if identity is None or state.status != "ok":
        needed_for = "without it, overheating cannot be distinguished from other causes"
        return Check("GPU", "unknown", state.reason or "not read yet", needed_for)
    gpus = ", ".join(gpu.name or gpu.uuid for gpu in identity.gpus)
    readings = watch.before(time.monotonic_ns()).values()
    missing = next((text for text in map(missing_evidence, readings) if text is not None), None)
    detail = f"{gpus}; driver {identity.driver_version or 'unknown'}"
    return Check("GPU", "good" if missing is None else "unknown", detail, missing)


async def _target(
    target: TargetSettings, probes: Sequence[Probe], directory: Path
) -> tuple[list[Check], int]:
    try:
        http = client_of(target)
    except ConnectionSetupError as error:
        return [Check(f"{target.name}: connection", "bad", str(error))], USAGE
    async with http:
        flight = Preflight(target.name, http, MetricsPage(http, target.metrics_page), target.model)
        return flight.checks, await _server(flight, target, probes, directory)


async def _server(
    flight: Preflight, target: TargetSettings, probes: Sequence[Probe], directory: Path
) -> int:
    """Notes its findings in `flight`; returns the exit code."""
    try:
        served = await api.models(flight.http)
        flight.model = target.model or api.the_one_model(target.url, served)
    except UserError as error:
        advice = "start it, or correct `url:`" if error.exit_code == UNMEASURED else None
        flight.say("server", "bad", str(error), advice)
        return error.exit_code
    await flight.server(served)
    page = await flight.metrics()
    await flight.probe_lengths(probes, directory)
    if _is_bad(flight, "model"):
        return USAGE
    await flight.answer_details(probes[0], page)
    return USAGE if flight.misfits else UNMEASURED if _is_bad(flight, "answer") else 0


def _is_bad(flight: Preflight, what: str) -> bool:
    return any(c.state == "bad" and c.name.endswith(f": {what}") for c in flight.checks)


def _channel(channel: ChannelSettings) -> Check:
    name = f"channel {channel.name}"
    try:
        channel.address()
    except ValueError as error:
        return Check(name, "bad", str(error), "nothing is delivered until this is corrected")
    return Check(name, "good", f"{channel.kind}; `vllm-canary alerts test` tries it")
