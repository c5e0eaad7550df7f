"""`fingerprint`: reads the identity of what is served, field by field. Nothing is stored."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from monitor.cli.common import print_json
from monitor.cli.configured import chosen_targets, settings_of
from monitor.config.target import TargetSettings
from monitor.daemon.gpus import GpuWatches, TargetGpus
from monitor.errors import UserError
from monitor.judge.identity import digest
from monitor.measure.server import api
from monitor.measure.server.identity import Sources, read_identity
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.client import client_of
from monitor.model import Fingerprint, FingerprintField
from monitor.show.terminal import UNKNOWN, console, table
from monitor.store import fingerprints, queries
from monitor.store.database import reading


def run(args: Namespace) -> int:
    """Reads and prints."""
    settings = settings_of(args)
    found = asyncio.run(_read_all(chosen_targets(settings, args.target), settings.database))
    if args.json:
        print_json({"fingerprints": [_record(one) for one in found]})
    else:
        for one in found:
            _print(one)
    return 0


async def _read_all(targets: Sequence[TargetSettings], database: str) -> list[Fingerprint]:
    watches = GpuWatches([target.watches_gpus for target in targets])
    watches.start()
    try:
        await watches.first_reading()
        return [await _read(t, watches.of(t.watches_gpus), database) for t in targets]
    finally:
        watches.stop()


async def _read(target: TargetSettings, gpus: TargetGpus, database: str) -> Fingerprint:
    async with client_of(target) as http:
        model = target.model or api.the_one_model(target.url, await api.models(http))
        page = await MetricsPage(http, target.metrics_page).read()
        identity, reason = gpus.identity()
        sources = Sources(
            settings=target,
            http=http,
            model=model,
            gpu=identity,
            gpu_reason=reason,
            system_fingerprint=_last_system_fingerprint(database, target.name),
        )
        return await read_identity(sources, page)


def _last_system_fingerprint(database: str, target: str) -> str | None:
    """The last one in the history: it comes only with answers, and this command requests none."""
    try:
        with reading(database) as connection:
            row = queries.target(connection, target)
            stored = None if row is None else fingerprints.current(connection, row.id)
    except UserError:  # no history yet
        return None
    value = None if stored is None else stored.fields["system_fingerprint"].value
    return value if isinstance(value, str) else None


def _record(one: Fingerprint) -> dict[str, object]:
    return {
        "target": one.target,
        "digest": digest(one.fields),
        "fields": [asdict(field) for field in one.fields.values()],
    }


def _print(one: Fingerprint) -> None:
    out = console()
    out.print(f"{one.target}  digest {digest(one.fields)}", style="bold")
    rows = [[f.name, f.role, _value(f), _source(f)] for f in one.fields.values()]
    out.print(table(["field", "role", "value", "read from"], rows))


def _value(field: FingerprintField) -> str:
    if field.value is None:
        return UNKNOWN
    return (
        field.value if isinstance(field.value, str) else json.dumps(field.value, ensure_ascii=False)
    )


def _source(field: FingerprintField) -> str:
    return field.source or (f"unknown: {field.reason}" if field.reason else "")
