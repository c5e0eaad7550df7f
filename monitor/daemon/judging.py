"""Asks the judges of a target every few seconds and makes its incidents agree with them, in one
transaction.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection

from monitor.alert.incidents import IncidentLog
from monitor.config.cron import intervals_of
from monitor.daemon.driftincidents import BY_DIGEST, assess_drift
from monitor.daemon.watch import TargetWatch
from monitor.judge import gpu_faults
from monitor.judge.evaluator.assessment import Assessment
from monitor.judge.evaluator.evaluator import Evaluator
from monitor.judge.identity import config_change_resolved
from monitor.judge.quality.pinning import judge_pin_expiry
from monitor.model import Incident, Kind, Probe, Sample, from_us, to_us
from monitor.show.findings import GpuName, GpuNames, paragraph, short_model
from monitor.store import fingerprints, pins, queries
from monitor.store.queries import SampleFilter

CHANGE_RUNS = 400  # runs since a configuration change that are read to see whether it is settled
DEPARTED_AFTER = timedelta(minutes=1)  # readings come every 15 s
DEPARTED = "no daemon watches this target any longer: it was removed from the configuration"
UNWATCHED_GPU = "the configuration no longer assigns the GPU to this target"


def schedule_of(probes: Sequence[Probe]) -> dict[str, float | str | None]:
    """Returns when each probe runs: seconds between runs, or a cron line."""
    return {probe.name: probe.every_s if probe.cron is None else probe.cron for probe in probes}


def judge_target(
    connection: Connection,
    watch: TargetWatch,
    watching_since: datetime,
    now: datetime,
    channels: Sequence[str],
) -> list[Incident]:
    """Judges one target now; returns what is open afterwards."""
    text = partial(paragraph, names=_gpu_names(watch))
    log = IncidentLog(connection, now, channels, watch.settings.name, text)
    for assessment in _assessments(log, watch, watching_since):
        log.reconcile(assessment)
    _close_config_changes(log, watch)
    return log.open()


def _gpu_names(watch: TargetWatch) -> GpuNames:
    found, _ = watch.gpus.identity()
    gpus = () if found is None else found.gpus
    return GpuNames({gpu.uuid: GpuName(gpu.index, short_model(gpu.name)) for gpu in gpus})


def _assessments(
    log: IncidentLog, watch: TargetWatch, watching_since: datetime
) -> Iterator[Assessment]:
    """Yields the current findings, judge by judge: those that a replay has too, and those that
    need what only the daemon knows.
    """
    _adopt_pins(log, watch)
    evaluator = watch.feed.take_up(log.connection, watch.target_id, watch.pins, log.now)
    _expect(evaluator, watch, watching_since, log.now)

    def tell(sample: Sample) -> str | None:
        return queries.detail(log.connection, watch.target_id, sample.probe, sample.started_at)

    yield from evaluator.findings(to_us(log.now), tell)
    yield from assess_gpus(log, watch)
    yield _assess_pins(log, watch)
    yield from assess_drift(log, watch)


def close_departed(
    connection: Connection, own: Collection[str], now: datetime, channels: Sequence[str]
) -> None:
    """Closes what is open on targets that left the configuration, except those that another daemon
    on this database still reads.
    """
    log = IncidentLog(connection, now, channels)
    gone = set(queries.unread_since(connection, now - DEPARTED_AFTER)) - set(own)
    for incident in log.open():
        if incident.target in gone:
            log.close(incident, DEPARTED)


def _expect(
    evaluator: Evaluator, watch: TargetWatch, watching_since: datetime, now: datetime
) -> None:
    """Tells the judge of silence which samples are due: none while the target is left idle, and
    none of a lane that has a canary in flight, cold or behind a queue.
    """
    every = watch.state.idle.interval_factor(time.monotonic())
    if every != 1:
        # once the target is used again, its probes have their full time before silence is reported
        watch.expected_since = now
    since = max(watching_since, watch.expected_since or watching_since)
    last = {p: max(from_us(us), since) for p, us in evaluator.availability.last_us.items()}
    in_flight = watch.lanes_in_flight()
    schedule = schedule_of([probe for probe in watch.probes if probe.capped not in in_flight])
    intervals = {} if every is None else intervals_of(schedule, last, since)
    evaluator.availability.watch_from(to_us(watching_since))
    evaluator.availability.expect(
        to_us(since), {name: interval * (every or 1) for name, interval in intervals.items()}
    )


def assess_gpus(log: IncidentLog, watch: TargetWatch) -> Iterator[Assessment]:
    """Yields the faults of the GPUs, unless none is watched now. GPUs that no longer belong to the
    target have their incidents closed first.
    """
    for incident in log.open(gpu_faults.KINDS):
        if not watch.gpus.watches(incident.subject):
            log.close(incident, UNWATCHED_GPU)
    view = watch.gpus.view()
    if view is None:
        return
    events = queries.gpu_events(log.connection, view.known, log.now - gpu_faults.XID_LASTS)
    open_now = log.open(gpu_faults.KINDS)
    found = gpu_faults.judge_gpus(watch.settings.name, view, events, open_now, log.now)
    yield Assessment(gpu_faults.KINDS, found)


def _assess_pins(log: IncidentLog, watch: TargetWatch) -> Assessment:
    # as fitted to this server's context
    sent = [replace(probe, revision=watch.revision_digest(probe)) for probe in watch.probes]
    name, digest = watch.settings.name, watch.fingerprint_digest()
    expired = judge_pin_expiry(name, sent, watch.pins, digest, log.now)
    return Assessment([Kind.PIN_EXPIRED], expired)


def _adopt_pins(log: IncidentLog, watch: TargetWatch) -> None:
    """Files pins that were recorded before any identity was known under the first one."""
    if watch.fingerprint_digest() is None or all(pin.fingerprint is not None for pin in watch.pins):
        return
    if pins.adopt(log.connection, watch.target_id, log.now):
        watch.pins = pins.find(log.connection, watch.settings.name)


def _close_config_changes(log: IncidentLog, watch: TargetWatch) -> None:
    name = watch.settings.name
    current = fingerprints.current(log.connection, watch.target_id)
    for incident in log.open([Kind.CONFIG_CHANGE]):
        if current is None or incident.evidence.get("felt") or incident.subject == BY_DIGEST:
            continue  # slower since then: not resolved, however warm the answers
        wanted = SampleFilter(since=incident.opened_at, target=name)
        since = queries.samples(log.connection, wanted, limit=CHANGE_RUNS)
        reason = config_change_resolved(incident, current.digest, watch.probes, since, log.now)
        if reason is not None:
            log.close(incident, reason)
