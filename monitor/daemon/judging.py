"""Asks the judges every few seconds and hands what they find to the incidents, one transaction a target."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from sqlalchemy import Connection

from monitor.alert import incidents
from monitor.config.cron import intervals_of
from monitor.config.settings import TargetSettings
from monitor.daemon.driftincidents import BY_DIGEST, judge_drift
from monitor.daemon.watch import TargetWatch
from monitor.judge import cards, gate
from monitor.judge.changes import config_change_over
from monitor.judge.liveness import judge_hung, judge_no_samples, judge_server_down, judge_unmeasured
from monitor.model import Contact, Finding, Incident, Kind, Outcome, Probe, Sample
from monitor.store import fingerprints, queries
from monitor.store.queries import SampleFilter
from monitor.store.times import from_us

LOOK_BACK = timedelta(hours=1)
ANSWERS_LOOK_BACK = timedelta(hours=24)
ANSWERS_LIMIT = 400
JUDGED = (Kind.SERVER_DOWN, Kind.HUNG, Kind.NO_SAMPLES, Kind.UNKNOWN_LASTING)
NOBODY_ANSWERED = frozenset({Outcome.REFUSED, Outcome.TIMEOUT})


def schedule_of(probes: Sequence[Probe]) -> dict[str, float | str | None]:
    """When each probe runs: seconds between runs, or a cron line."""
    return {probe.name: probe.every_s if probe.cron is None else probe.cron for probe in probes}


def contacts_of(samples: Sequence[Sample], readings: Sequence[tuple[datetime, str]], same_address: bool = True) -> list[Contact]:
    """Every attempt to reach the server, oldest first: by canary and by metrics page.

    A page that is slow is given up after a second and proves nothing. One at another address than the API (`same_address` false) speaks
    for itself only.
    """
    by_canary = [Contact(_contact_at(s), s.outcome not in NOBODY_ANSWERED, f"a canary was {s.outcome.value}") for s in samples]
    heard = [(at, state) for at, state in readings if state != "timeout" and same_address]
    by_page = [Contact(at, state != "refused", f"the metrics page was {state}") for at, state in heard]
    return sorted([*by_canary, *by_page], key=lambda contact: contact.at)


def same_place(settings: TargetSettings) -> bool:
    """Whether API and metrics page are at one address: a refusal of the one is then a refusal of the other."""
    return urlsplit(settings.url).netloc == urlsplit(settings.metrics_page).netloc


def _contact_at(sample: Sample) -> datetime:
    """When the canary proved what it proved. A stream that broke shows a server that was there at its first token, not at its end."""
    broke = sample.outcome in {Outcome.STREAM_ERROR, Outcome.TRUNCATED}
    return sample.started_at + timedelta(milliseconds=(sample.ttft_ms if broke else sample.e2e_ms) or 0.0)


def judge_target(
    connection: Connection, watch: TargetWatch, watching_since: datetime, now: datetime, channels: Sequence[str]
) -> list[Incident]:
    """Judge one target now; returns what is open afterwards."""
    name = watch.settings.name
    wanted = SampleFilter(since=now - LOOK_BACK, target=name)
    samples = [s for s in queries.samples(connection, wanted, limit=200) if s.outcome is not Outcome.CANCELLED]
    readings = [(from_us(row.at_us), row.state) for row in queries.readings(connection, watch.target_id, now - LOOK_BACK / 10)]
    contacts = [c for c in contacts_of(samples, readings, same_place(watch.settings)) if c.at >= watching_since]
    down = judge_server_down(name, contacts)
    hung = None if down is not None else judge_hung(name, samples)
    last = {s.probe: s.started_at for s in queries.last_sample_of_each_probe(connection, name)}
    stretch = watch.state.leave.stretch(time.monotonic())
    waiting = watch.lanes_in_flight()  # a canary that is out, cold or behind a queue, is no silence: its lane waits with it
    if stretch != 1:
        watch.expected_since = now  # when it is used again, its probes have their full time before silence is said
    expected_since = max(watching_since, watch.expected_since or watching_since)
    counted_from = {probe: max(at, expected_since) for probe, at in last.items()}
    schedule = schedule_of([probe for probe in watch.probes if probe.capped not in waiting])
    expected = intervals_of(schedule, counted_from, expected_since)
    intervals = {} if stretch is None else {probe: stretch * every for probe, every in expected.items()}
    silent = judge_no_samples(name, intervals, last, expected_since, now)
    unmeasured = judge_unmeasured(name, samples, queries.newest_details(connection, name, now - LOOK_BACK))
    findings: list[Finding] = [f for f in (down, hung, *silent, *unmeasured) if f is not None]

    def is_over(incident: Incident) -> bool:
        if incident.kind is Kind.SERVER_DOWN:
            return any(contact.answered for contact in contacts)
        if incident.kind in {Kind.NO_SAMPLES, Kind.UNKNOWN_LASTING} and incident.subject not in {probe.name for probe in watch.probes}:
            return True  # the configuration has the probe no more
        if incident.kind is Kind.NO_SAMPLES:
            return last.get(incident.subject, incident.opened_at) > incident.opened_at
        return True

    incidents.reconcile(connection, name, JUDGED, findings, now, channels, is_over)
    _judge_cards(connection, watch, now, channels)
    _judge_answers(connection, watch, now, channels)
    judge_drift(connection, watch, now, channels)
    _close_config_changes(connection, watch, now, channels)
    return incidents.open_incidents(connection, name)


DEPARTED_AFTER = timedelta(minutes=1)  # readings come every 15 s
DEPARTED = "no daemon watches this target any more: the configuration has it no longer"


def close_departed(connection: Connection, own: Collection[str], now: datetime, channels: Sequence[str]) -> None:
    """Close what is open on targets that left the configuration. One that another daemon on this database still reads is its own."""
    gone = set(queries.unread_since(connection, now - DEPARTED_AFTER)) - set(own)
    for incident in incidents.open_incidents(connection):
        if incident.target in gone:
            incidents.close(connection, incident, now, DEPARTED, channels)


def _judge_cards(connection: Connection, watch: TargetWatch, now: datetime, channels: Sequence[str]) -> None:
    name, view = watch.settings.name, watch.cards.view()
    for incident in incidents.open_incidents(connection, name, cards.KINDS):
        if not watch.cards.watches(incident.subject):
            incidents.close(connection, incident, now, "the configuration has the card watched for this target no more", channels)
    if view is None:
        return
    open_now = incidents.open_incidents(connection, name, cards.KINDS)
    events = queries.gpu_events(connection, view.known, now - cards.XID_LASTS)
    incidents.reconcile(connection, name, cards.KINDS, cards.judge_cards(name, view, events, open_now, now), now, channels)


def _judge_answers(connection: Connection, watch: TargetWatch, now: datetime, channels: Sequence[str]) -> None:
    """What the verdicts add up to; looked at only when there are new ones, since rare probes need a long look back."""
    name = watch.settings.name
    incidents.reconcile(connection, name, [Kind.PIN_EXPIRED], gate.judge_pin_expiry(name, watch.pins, now), now, channels)
    if watch.samples_judged == watch.samples_stored:
        return
    watch.samples_judged = watch.samples_stored
    samples = queries.samples(connection, SampleFilter(since=now - ANSWERS_LOOK_BACK, target=name), limit=ANSWERS_LIMIT)
    reasons = queries.newest_details(connection, name, now - ANSWERS_LOOK_BACK)
    by_id = {pin.id: pin for pin in watch.pins}
    few = (gate.judge_near_ties(name, samples), gate.judge_model_shift(name, samples, by_id))
    findings = [*gate.judge_quality(name, watch.probes, samples, reasons), *(f for f in few if f is not None)]
    incidents.reconcile(connection, name, [Kind.QUALITY, Kind.NEAR_TIES], findings, now, channels)


def _close_config_changes(connection: Connection, watch: TargetWatch, now: datetime, channels: Sequence[str]) -> None:
    name = watch.settings.name
    current = fingerprints.current(connection, watch.target_id)
    for incident in incidents.open_incidents(connection, name, [Kind.CONFIG_CHANGE]):
        if current is None or incident.evidence.get("felt") or incident.subject == BY_DIGEST:
            continue  # slower since then: not over, however warm the answers
        since = queries.samples(connection, SampleFilter(since=incident.opened_at, target=name), limit=ANSWERS_LIMIT)
        reason = config_change_over(incident, current.digest, watch.probes, since, now)
        if reason is not None:
            incidents.close(connection, incident, now, reason, channels)
