"""Asks the judges every few seconds and hands what they find to the incidents, one transaction a
target.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from monitor.alert import incidents
from monitor.config.cron import intervals_of
from monitor.config.target import TargetSettings
from monitor.daemon.driftincidents import BY_DIGEST, judge_drift
from monitor.daemon.watch import TargetWatch
from monitor.judge import gpu_faults as gpus
from monitor.judge.availability import (
    LASTING_RUNS,
    judge_hung,
    judge_no_samples,
    judge_server_down,
    judge_unmeasured,
)
from monitor.judge.identity import config_change_resolved
from monitor.judge.quality.answers import LastAnswers
from monitor.judge.quality.gate import with_second_runs
from monitor.judge.quality.pinning import judge_pin_expiry
from monitor.judge.quality.unjudged import judge_unjudged
from monitor.judge.quality.verdicts import JUDGED as JUDGED_VERDICTS
from monitor.model import Contact, Finding, Incident, Kind, Outcome, Probe, Sample
from monitor.store import fingerprints, pins, queries
from monitor.store.queries import SampleFilter
from monitor.store.times import from_us

LOOK_BACK = timedelta(hours=1)
ANSWERS_LOOK_BACK = timedelta(hours=24)
ANSWERS_LIMIT = 400
# of a probe that runs rarely: enough for its own rule and for the model shift, which asks for runs
# on an idle server
EARLIER_RUNS = 10
JUDGED = (Kind.SERVER_DOWN, Kind.HUNG, Kind.NO_SAMPLES, Kind.UNKNOWN_LASTING)
NOBODY_ANSWERED = frozenset({Outcome.REFUSED, Outcome.TIMEOUT})


def schedule_of(probes: Sequence[Probe]) -> dict[str, float | str | None]:
    """When each probe runs: seconds between runs, or a cron line."""
    return {probe.name: probe.every_s if probe.cron is None else probe.cron for probe in probes}


def contacts_of(
    samples: Sequence[Sample], readings: Sequence[tuple[datetime, str]], same_address: bool = True
) -> list[Contact]:
    """Every attempt to reach the server, oldest first: by canary and by metrics page.

    A page that is slow is given up after a second and proves nothing. One at another address than
    the API (`same_address` false) speaks for itself only.
    """
    by_canary = [
        Contact(_contact_at(s), s.outcome not in NOBODY_ANSWERED, f"a canary was {s.outcome.value}")
        for s in samples
    ]
    heard = [(at, state) for at, state in readings if state != "timeout" and same_address]
    by_page = [
        Contact(at, state != "refused", f"the metrics page was {state}") for at, state in heard
    ]
    return sorted([*by_canary, *by_page], key=lambda contact: contact.at)


def same_place(settings: TargetSettings) -> bool:
    """Whether API and metrics page are at one address: a refusal of the one is then a refusal of
    the other.
    """
    return urlsplit(settings.url).netloc == urlsplit(settings.metrics_page).netloc


def _contact_at(sample: Sample) -> datetime:
    """When the canary proved what it proved. A stream that broke shows a server that was there at
    its first token, not at its end.
    """
    broke = sample.outcome in {Outcome.STREAM_ERROR, Outcome.TRUNCATED}
    return sample.started_at + timedelta(
        milliseconds=(sample.ttft_ms if broke else sample.e2e_ms) or 0.0
    )


def judge_target(
    connection: Connection,
    watch: TargetWatch,
    watching_since: datetime,
    now: datetime,
    channels: Sequence[str],
) -> list[Incident]:
    """Judge one target now; returns what is open afterwards."""
    name = watch.settings.name
    wanted = SampleFilter(since=now - LOOK_BACK, target=name)
    samples = [
        s
        for s in queries.samples(connection, wanted, limit=200)
        if s.outcome is not Outcome.CANCELLED
    ]
    readings = [
        (from_us(row.at_us), row.state)
        for row in queries.readings(connection, watch.target_id, now - LOOK_BACK / 10)
    ]
    contacts = [
        c
        for c in contacts_of(samples, readings, same_place(watch.settings))
        if c.at >= watching_since
    ]
    down = judge_server_down(name, contacts)
    hung = None if down is not None else judge_hung(name, samples)
    last = {s.probe: s.started_at for s in queries.last_sample_of_each_probe(connection, name)}
    expected_since, intervals = _expected(watch, last, watching_since, now)
    silent = judge_no_samples(name, intervals, last, expected_since, now)
    unmeasured = judge_unmeasured(
        name, samples, queries.newest_details(connection, name, now - LOOK_BACK)
    )
    unjudged = judge_unjudged(
        name,
        watch.probes,
        [*_rare_runs(connection, watch, samples, now), *samples],
        partial(_told, connection),
    )
    findings: list[Finding] = [
        f for f in (down, hung, *silent, *unmeasured, *unjudged) if f is not None
    ]

    def is_over(incident: Incident) -> bool:
        if incident.kind is Kind.SERVER_DOWN:
            return any(contact.answered for contact in contacts)
        if incident.kind in {Kind.NO_SAMPLES, Kind.UNKNOWN_LASTING} and incident.subject not in {
            probe.name for probe in watch.probes
        }:
            return True  # the configuration has the probe no more
        if incident.kind is Kind.NO_SAMPLES:
            return last.get(incident.subject, incident.opened_at) > incident.opened_at
        return True

    incidents.reconcile(connection, name, JUDGED, findings, now, channels, is_over)
    _judge_gpus(connection, watch, now, channels)
    _judge_answers(connection, watch, now, channels)
    judge_drift(connection, watch, now, channels)
    _close_config_changes(connection, watch, now, channels)
    return incidents.open_incidents(connection, name)


DEPARTED_AFTER = timedelta(minutes=1)  # readings come every 15 s
DEPARTED = "no daemon watches this target any more: the configuration has it no longer"


def close_departed(
    connection: Connection, own: Collection[str], now: datetime, channels: Sequence[str]
) -> None:
    """Close what is open on targets that left the configuration. One that another daemon on this
    database still reads is its own.
    """
    gone = set(queries.unread_since(connection, now - DEPARTED_AFTER)) - set(own)
    for incident in incidents.open_incidents(connection):
        if incident.target in gone:
            incidents.close(connection, incident, now, DEPARTED, channels)


def _expected(
    watch: TargetWatch, last: Mapping[str, datetime], watching_since: datetime, now: datetime
) -> tuple[datetime, dict[str, timedelta]]:
    """Since when samples are expected, and how often of each probe; of none while the target is
    left alone or its lane waits.
    """
    stretch = watch.state.leave.stretch(time.monotonic())
    waiting = (
        watch.lanes_in_flight()
    )  # a canary that is out, cold or behind a queue, is no silence: its lane waits with it
    if stretch != 1:
        watch.expected_since = (
            now  # when it is used again, its probes have their full time before silence is said
        )
    expected_since = max(watching_since, watch.expected_since or watching_since)
    counted_from = {probe: max(at, expected_since) for probe, at in last.items()}
    schedule = schedule_of([probe for probe in watch.probes if probe.capped not in waiting])
    expected = intervals_of(schedule, counted_from, expected_since)
    intervals = (
        {} if stretch is None else {probe: stretch * every for probe, every in expected.items()}
    )
    return expected_since, intervals


def _rare_runs(
    connection: Connection, watch: TargetWatch, recent: Sequence[Sample], now: datetime
) -> list[Sample]:
    """Earlier runs of probes that wait for a pin and run too rarely for the last hour to tell of
    it.
    """
    counts = Counter(sample.probe for sample in recent)
    rare = [
        probe.name for probe in watch.probes if probe.pinned and counts[probe.name] < LASTING_RUNS
    ]
    wanted = [
        SampleFilter(until=now - LOOK_BACK, target=watch.settings.name, probe=name) for name in rare
    ]
    return [
        sample for one in wanted for sample in queries.samples(connection, one, limit=LASTING_RUNS)
    ]


def _judge_gpus(
    connection: Connection, watch: TargetWatch, now: datetime, channels: Sequence[str]
) -> None:
    name, view = watch.settings.name, watch.gpus.view()
    for incident in incidents.open_incidents(connection, name, gpus.KINDS):
        if not watch.gpus.watches(incident.subject):
            incidents.close(
                connection,
                incident,
                now,
                "the configuration has the GPU watched for this target no more",
                channels,
            )
    if view is None:
        return
    open_now = incidents.open_incidents(connection, name, gpus.KINDS)
    events = queries.gpu_events(connection, view.known, now - gpus.XID_LASTS)
    incidents.reconcile(
        connection,
        name,
        gpus.KINDS,
        gpus.judge_gpus(name, view, events, open_now, now),
        now,
        channels,
    )


@dataclass(slots=True)
class _TakenUp:
    """A target's last answers, and the number of the last sample that is in them."""

    answers: LastAnswers[Sample]
    after: int = 0


#: What each watch's answers add up to so far; taken from the history once, and then kept up with
#: new rows.
_TAKEN_UP: WeakKeyDictionary[TargetWatch, _TakenUp] = WeakKeyDictionary()


def _judge_answers(
    connection: Connection, watch: TargetWatch, now: datetime, channels: Sequence[str]
) -> None:
    """What the verdicts add up to; looked at only when there are new ones."""
    name = watch.settings.name
    _adopt_pins(connection, watch, now)
    sent = [
        replace(probe, revision=watch.revision_digest(probe)) for probe in watch.probes
    ]  # as fitted to this server's context
    expired = judge_pin_expiry(name, sent, watch.pins, watch.fingerprint_digest(), now)
    incidents.reconcile(connection, name, [Kind.PIN_EXPIRED], expired, now, channels)
    if watch.samples_judged == watch.samples_stored:
        return
    watch.samples_judged = watch.samples_stored
    taken = _take_up(connection, watch, now)
    found = taken.findings(
        lambda sample: sample, {pin.id: pin for pin in watch.pins}, partial(_told, connection)
    )
    incidents.reconcile(connection, name, [Kind.QUALITY, Kind.NEAR_TIES], found, now, channels)


def _adopt_pins(connection: Connection, watch: TargetWatch, now: datetime) -> None:
    """Pins that were taken before anybody knew what is served belong to the identity that was read
    first.
    """
    if watch.fingerprint_digest() is None or all(pin.fingerprint is not None for pin in watch.pins):
        return
    if pins.adopt(connection, watch.target_id, now):
        watch.pins = pins.find(connection, watch.settings.name)


def _take_up(connection: Connection, watch: TargetWatch, now: datetime) -> LastAnswers[Sample]:
    """The target's last answers with those that are new since the last time."""
    taken = _TAKEN_UP.get(watch)
    if taken is None:
        taken = _TAKEN_UP[watch] = _TakenUp(_from_history(connection, watch, now))
    else:
        for sample in queries.samples_after(connection, watch.target_id, taken.after):
            taken.answers.add(sample)
    taken.after = queries.newest_id(connection)
    return taken.answers


def _from_history(connection: Connection, watch: TargetWatch, now: datetime) -> LastAnswers[Sample]:
    """The newest answers of all probes; and of a probe that has few among them the last ones
    before, since it runs rarely.
    """
    probes = {probe.name: probe for probe in with_second_runs(watch.probes)}
    wanted = SampleFilter(since=now - ANSWERS_LOOK_BACK, target=watch.settings.name)
    newest = queries.samples(connection, wanted, limit=ANSWERS_LIMIT)
    before = newest[0].started_at if newest else now
    counts = Counter(sample.probe for sample in newest if sample.verdict in JUDGED_VERDICTS)
    earlier: list[Sample] = []
    for name, probe in probes.items():
        missing = max(probe.repeats, EARLIER_RUNS) - counts[name]
        if missing > 0 and (probe.expect or probe.pinned):
            earlier += queries.last_judged(connection, watch.target_id, name, before, missing)
    answers: LastAnswers[Sample] = LastAnswers(watch.settings.name, probes.get)
    for sample in sorted(earlier, key=lambda sample: sample.started_at):
        answers.add(sample, earlier=True)
    for sample in newest:
        answers.add(sample)
    return answers


def _told(connection: Connection, sample: Sample) -> str | None:
    """The sentence about this very sample: the probe's newest one may be about something else."""
    return None if sample.id is None else queries.detail(connection, sample.id)


def _close_config_changes(
    connection: Connection, watch: TargetWatch, now: datetime, channels: Sequence[str]
) -> None:
    name = watch.settings.name
    current = fingerprints.current(connection, watch.target_id)
    for incident in incidents.open_incidents(connection, name, [Kind.CONFIG_CHANGE]):
        if current is None or incident.evidence.get("felt") or incident.subject == BY_DIGEST:
            continue  # slower since then: not over, however warm the answers
        since = queries.samples(
            connection, SampleFilter(since=incident.opened_at, target=name), limit=ANSWERS_LIMIT
        )
        reason = config_change_resolved(incident, current.digest, watch.probes, since, now)
        if reason is not None:
            incidents.close(connection, incident, now, reason, channels)
