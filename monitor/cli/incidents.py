"""`incidents`: the list of incidents, and one incident with its evidence and history."""

from __future__ import annotations

from argparse import Namespace

from sqlalchemy import Connection

from monitor.alert import incidents
from monitor.cli.common import database_of, moment, now_utc, print_json
from monitor.show.findings import GpuName, GpuNames, short_model
from monitor.show.incidents import print_incident, print_incidents
from monitor.show.records import incident_record, plain
from monitor.store import fingerprints
from monitor.store.database import reading


def show_list(args: Namespace) -> int:
    """Lists open and recent incidents."""
    with reading(database_of(args)) as connection:
        found = incidents.recent(connection, moment(args.since, now_utc()), args.target, None)
        names = _gpu_names(connection)
    if args.json:
        print_json({"incidents": [incident_record(incident) for incident in found]})
    else:
        print_incidents(found, names)
    return 0


def show_one(args: Namespace) -> int:
    """Shows one incident with its evidence and history."""
    with reading(database_of(args)) as connection:
        incident = incidents.get(connection, args.incident)
        events = incidents.events(connection, args.incident)
        names = _gpu_names(connection)
    if args.json:
        history = [{k: plain(v) for k, v in event.items()} for event in events]
        print_json({"incidents": [incident_record(incident) | {"events": history}]})
    else:
        print_incident(incident, events, names)
    return 0


def _gpu_names(connection: Connection) -> GpuNames:
    """Returns the models of the GPUs; their index may have changed since the incident."""
    models = fingerprints.gpu_models(connection)
    return GpuNames({uuid: GpuName(model=short_model(name)) for uuid, name in models.items()})
