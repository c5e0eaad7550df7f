"""`fingerprint`: read what is being served now, field by field. Nothing is stored."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from monitor.cli.common import (
    chosen_targets,
    config_arguments,
    json_argument,
    load_context,
    print_json,
)
from monitor.errors import UserError
from monitor.judge.identity import digest
from monitor.model import Fingerprint


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    config_arguments(parser, url=True)
    parser.add_argument("--target", metavar="NAME", help="only this target")
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Read and print."""
    settings = load_context(args)
    found = asyncio.run(_read_all(chosen_targets(settings, args.target), settings.database))
    if args.json:
        print_json({"fingerprints": [_record(one) for one in found]})
    else:
        for one in found:
            _print(one)
    return 0


async def _read_all(targets: Sequence[Any], database: str) -> list[Fingerprint]:
    from monitor.daemon.gpus import GpuWatches  # noqa: PLC0415 - --help needs none of this

    gpu = GpuWatches([target.watches_gpus for target in targets])
    gpu.start()
    try:
        await gpu.first_look()
        return [await _read(target, gpu.of(target.watches_gpus), database) for target in targets]
    finally:
        gpu.stop()


async def _read(target: Any, gpus: Any, database: str) -> Fingerprint:
    from monitor.measure.server import api  # noqa: PLC0415
    from monitor.measure.server.identity import Sources, read_identity  # noqa: PLC0415
    from monitor.measure.server.metrics_page import MetricsPage  # noqa: PLC0415
    from monitor.measure.stream.client import client_of  # noqa: PLC0415

    async with client_of(target) as http:
        model = target.model or api.the_one_model(target.url, await api.models(http))
        page = await MetricsPage(http, target.metrics_page).read()
        gpu, reason = gpus.identity()
        known = _last_system_fingerprint(database, target.name)
        return await read_identity(Sources(target, http, model, gpu, reason, known), page)


def _last_system_fingerprint(database: str, target: str) -> str | None:
    """It comes with answers only, and this command sends none: the last one that was seen."""
    from monitor.store import fingerprints, queries  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    try:
        with reading(database) as connection:
            row = queries.target(connection, target)
            stored = None if row is None else fingerprints.current(connection, row.id)
    except UserError:  # no history yet
        return None
    value = None if stored is None else stored.fields["system_fingerprint"].value
    return value if isinstance(value, str) else None


def _record(one: Fingerprint) -> dict[str, Any]:
    return {
        "target": one.target,
        "digest": digest(one.fields),
        "fields": [asdict(field) for field in one.fields.values()],
    }


def _print(one: Fingerprint) -> None:
    import json  # noqa: PLC0415

    from monitor.show.terminal import UNKNOWN, console, table  # noqa: PLC0415

    def told(value: Any) -> str:
        return (
            UNKNOWN
            if value is None
            else value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)
        )

    rows = [
        [f.name, f.role, told(f.value), f.source or (f"unknown: {f.reason}" if f.reason else "")]
        for f in one.fields.values()
    ]
    out = console()
    out.print(f"{one.target}  digest {digest(one.fields)}", style="bold")
    out.print(table(["field", "role", "value detail", "read from detail"], rows))
