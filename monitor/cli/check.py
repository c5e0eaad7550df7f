"""`check`: one screen that says what can be reached and measured, what is missing, and what that
costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monitor.cli.common import (
    CommandError,
    chosen_probes,
    config_arguments,
    json_argument,
    load_context,
    print_json,
)
from monitor.errors import UNMEASURED, USAGE, UserError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    config_arguments(parser, url=True)
    parser.add_argument(
        "--gpu-report",
        metavar="FILE",
        help=(
            "only write what the GPUs here offer, as JSON that you can send to us: no names "
            "of hosts, users or processes, UUIDs hashed"
        ),
    )
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Look at everything once; nothing is stored."""
    if args.gpu_report is not None:
        return _gpu_report(Path(args.gpu_report), args.json)
    settings = load_context(args)
    probes = chosen_probes(settings, [])
    checks, code = asyncio.run(_check_all(settings, probes))
    if args.json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        _print(checks)
    return code


def _gpu_report(path: Path, as_json: bool) -> int:
    """No configuration and no server are needed for it."""
    from monitor.measure.gpu.report import gpu_report  # noqa: PLC0415 - --help needs none of this
    from monitor.measure.server.preflight import Check  # noqa: PLC0415

    report = gpu_report()
    try:
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written: {error.strerror}; name a file in a folder that is yours"
        ) from None
    told = f"{path} written, {len(report['gpus'])} GPUs; {report['privacy']}"
    check = (
        Check("GPU report", "good", told)
        if report["error"] is None
        else Check("GPU report", "unknown", told, report["error"])
    )
    if as_json:
        print_json({"checks": [asdict(check)]})
    else:
        _print([check])
    return 0 if report["error"] is None else UNMEASURED


async def _check_all(settings: Any, probes: Sequence[Any]) -> tuple[list[Any], int]:
    from monitor.measure.server.preflight import Check  # noqa: PLC0415 - --help needs none of this

    checks = [
        Check(
            "configuration",
            "good",
            f"targets: {len(settings.targets)}, probes: {len(probes)}, from {settings.probes}",
        )
    ]
    database, code = _database(settings.database)
    checks += [database, *await _gpu(settings)]
    for target in settings.targets:
        found, target_code = await _target(target, probes, Path(settings.probes))
        checks += found
        code = USAGE if USAGE in {code, target_code} else max(code, target_code)
    channels = _channels(settings.channels)
    if any(check.state == "bad" for check in channels):
        code = USAGE
    return checks + channels, code


def _database(database: str) -> tuple[Any, int]:
    from monitor.measure.server.preflight import Check  # noqa: PLC0415
    from monitor.store.database import DatabaseError, is_sqlite, open_reader, shown, sqlite_path  # noqa: PLC0415

    if is_sqlite(database) and not sqlite_path(database).exists():
        folder = next(
            (
                p
                for p in [sqlite_path(database).parent, *sqlite_path(database).parent.parents]
                if p.exists()
            ),
            Path("/"),
        )
        if os.access(folder, os.W_OK):
            return Check("database", "good", f"{shown(database)} will be made"), 0
        text = f"{shown(database)} cannot be made: {folder} is not writable"
        return Check("database", "bad", text, "choose another `database:`"), UNMEASURED
    try:
        open_reader(database).dispose()
    except DatabaseError as error:
        return Check("database", "bad", str(error), None), error.exit_code
    return Check("database", "good", shown(database)), 0


async def _gpu(settings: Any) -> list[Any]:
    from monitor.daemon.gpus import GpuWatches  # noqa: PLC0415

    watches = GpuWatches([target.watches_gpus for target in settings.targets])
    watches.start()
    await watches.first_look()
    found = [_gpus(watch) for watch in watches.all()]
    watches.stop()
    watched = [check for check in found if check is not None]
    return watched or [_no_gpus()]


def _no_gpus() -> Any:
    from monitor.measure.server.preflight import Check  # noqa: PLC0415

    mend = (
        "heat and clocks stay unknown; set `gpus:` to UUIDs where the server's GPUs are "
        "here, or to {dcgm: URL}"
    )
    return Check("GPU", "unknown", "no GPU is watched", mend)


def _gpus(watch: Any) -> Any | None:
    """What one watch sees; None for one that is switched off."""
    from monitor.measure.gpu.dcgm import missing_evidence  # noqa: PLC0415
    from monitor.measure.server.preflight import Check  # noqa: PLC0415

    state, identity = watch.state(), watch.identity()
    if state.status == "off":
        return None
    if identity is None or state.status != "ok":
        return Check(
            "GPU",
            "unknown",
            state.reason or "not read yet",
            "without it heat cannot be told from other causes",
        )
    gpus = ", ".join(gpu.name or gpu.uuid for gpu in identity.gpus)
    readings = watch.before(time.monotonic_ns())
    lacking = next(
        (text for reading in readings.values() if (text := missing_evidence(reading)) is not None),
        None,
    )
    detail = f"{gpus}; driver {identity.driver_version or 'unknown'}"
    return Check("GPU", "good" if lacking is None else "unknown", detail, lacking)


async def _target(target: Any, probes: Sequence[Any], probes_dir: Path) -> tuple[list[Any], int]:
    from monitor.measure.server import api  # noqa: PLC0415
    from monitor.measure.server.metrics_page import MetricsPage  # noqa: PLC0415
    from monitor.measure.server.preflight import Check, Preflight  # noqa: PLC0415
    from monitor.measure.stream.client import ConnectionSetupError, client_of  # noqa: PLC0415

    try:
        http = client_of(target)
    except ConnectionSetupError as error:
        return [Check(f"{target.name}: connection", "bad", str(error))], USAGE
    async with http:
        flight = Preflight(target.name, http, MetricsPage(http, target.metrics_page), target.model)
        try:
            gpus = await api.models(http)
            flight.model = target.model or api.the_one_model(target.url, gpus)
        except UserError as error:
            flight.say(
                "server",
                "bad",
                str(error),
                "start it, or mend `url:`" if error.exit_code == UNMEASURED else None,
            )
            return flight.checks, error.exit_code
        await flight.server(gpus)
        page = await flight.metrics()
        await flight.probe_lengths(probes, probes_dir)
        if any(c.state == "bad" and c.name.endswith(": model") for c in flight.checks):
            return flight.checks, USAGE
        await flight.answer_details(probes[0], page)
    unanswered = any(c.state == "bad" and c.name.endswith(": answer") for c in flight.checks)
    return flight.checks, USAGE if flight.misfits else UNMEASURED if unanswered else 0


def _channels(channels: Sequence[Any]) -> list[Any]:
    from monitor.measure.server.preflight import Check  # noqa: PLC0415

    if not channels:
        return [
            Check(
                "alerts",
                "unknown",
                "no channel is configured",
                "incidents are kept, but nobody is told; add one under `channels:`",
            )
        ]
    found = []
    for channel in channels:
        try:
            channel.address()
        except ValueError as error:
            found.append(
                Check(
                    f"channel {channel.name}",
                    "bad",
                    str(error),
                    "nothing can be delivered until then",
                )
            )
        else:
            found.append(
                Check(
                    f"channel {channel.name}",
                    "good",
                    f"{channel.kind}; `vllm-canary alerts test` tries it",
                )
            )
    return found


def _print(checks: Sequence[Any]) -> None:
    from monitor.show.terminal import console, table  # noqa: PLC0415

    rows = [[c.state, c.name, c.detail + (f"\n→ {c.mend}" if c.mend else "")] for c in checks]
    console().print(table(["state", "what", "detail"], rows))
