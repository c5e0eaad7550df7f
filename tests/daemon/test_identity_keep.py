"""A target's identity over many readings, in a real database: when an incident is opened, and when
it is closed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine

from monitor.alert import incidents
from monitor.alert.incidents import IncidentLog
from monitor.daemon.identity import IdentitySchedule, keep
from monitor.judge.identity import ROLLED_BACK
from monitor.model import (
    DERIVED_FIELDS,
    DIGEST_FIELDS,
    ROOT_FIELDS,
    SOFT_FIELDS,
    Change,
    Fingerprint,
    FingerprintField,
    Incident,
    Kind,
)
from monitor.store import fingerprints
from monitor.store.database import open_writer
from monitor.store.record import ensure_target

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
ROLES: Mapping[str, Any] = (
    dict.fromkeys(ROOT_FIELDS, "root")
    | dict.fromkeys(DERIVED_FIELDS, "derived")
    | dict.fromkeys(SOFT_FIELDS, "soft")
)
A = {"vllm_version": "0.32", "max_model_len": 4096}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = open_writer(str(tmp_path_factory.mktemp("history") / "history.db"))
    yield engine
    engine.dispose()


class History:
    """One target's readings, a minute apart, inside one transaction that is undone at the end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.target_id = ensure_target(connection, "local", "http://127.0.0.1:8000", NOON)
        self.now = NOON
        self.watched = True

    def reads(self, **values: Any) -> None:
        """A reading that knows these values and no other."""
        self.now += timedelta(minutes=1)
        fields = {
            name: FingerprintField(name, role, values.get(name)) for name, role in ROLES.items()
        }
        log = IncidentLog(self.connection, self.now, (), "local")
        seen = Fingerprint("local", self.now, fields)
        keep(log, self.target_id, seen, announce=self.watched)

    @property
    def known(self) -> dict[str, Any]:
        current = fingerprints.current(self.connection, self.target_id)
        assert current is not None
        return {
            name: field.value for name, field in current.fields.items() if field.value is not None
        }

    @property
    def identities(self) -> int:
        return len(fingerprints.all_of(self.connection, self.target_id))

    @property
    def all(self) -> list[Incident]:
        return incidents.recent(self.connection, None, "local", None)[::-1]

    @property
    def open(self) -> list[Incident]:
        return [incident for incident in self.all if incident.closed_at is None]


@pytest.fixture
def history(engine: Engine) -> Iterator[History]:
    with engine.connect() as connection:
        yield History(connection)
        connection.rollback()


FLEET = [f"target-{number}" for number in range(60)]


def read_in(rounds: IdentitySchedule, seconds: range) -> list[int]:
    """How many identities of the fleet are read in each second."""
    return [sum(rounds.due(name, float(second), None) for name in FLEET) for second in seconds]


def test_every_identity_is_read_at_the_start_and_then_once_in_each_interval() -> None:
    rounds = IdentitySchedule(FLEET, 180.0)
    counts = read_in(rounds, range(721))
    assert counts[0] == 60
    assert [sum(counts[after + 1 : after + 181]) for after in (0, 180, 360, 540)] == [60] * 4


def test_after_the_start_a_fleet_is_not_read_in_one_burst() -> None:
    assert max(read_in(IdentitySchedule(FLEET, 180.0), range(721))[1:]) == 1


def test_gpus_that_are_other_ones_are_a_reason_to_read_at_once() -> None:
    rounds = IdentitySchedule(["local"], 180.0)
    asked = [
        (0.0, "580"),
        (1.0, "580"),
        (2.0, "590"),
        (3.0, "590"),
        (181.0, "590"),
        (183.0, "590"),
    ]  # driver versions
    assert [rounds.due("local", now_s, driver) for now_s, driver in asked] == [
        True,
        False,
        True,
        False,
        False,
        True,
    ]


def test_the_first_reading_is_taken_as_it_is(history: History) -> None:
    history.reads(**A)
    assert (history.known, history.all) == (A, [])


def test_a_changed_root_opens_an_incident_with_before_and_after(history: History) -> None:
    history.reads(**A)
    history.reads(**A | {"max_model_len": 2048})
    (incident,) = history.open
    assert (incident.kind, incident.subject) == (Kind.CONFIG_CHANGE, "max_model_len")
    assert incident.changes == (Change("max_model_len", 4096, 2048),)
    assert history.identities == 2


def test_what_is_learnt_later_belongs_to_the_same_identity(history: History) -> None:
    history.reads(vllm_version="0.32")
    history.reads(**A, system_fingerprint="fp", driver_version="610")
    assert (history.identities, history.all) == (1, [])
    assert history.known["driver_version"] == "610"


def test_readings_in_which_everything_is_unknown_change_nothing(history: History) -> None:
    history.reads(**A)
    for _ in range(3):
        history.reads()
    history.reads(**A)
    assert (history.known, history.identities, history.all) == (A, 1, [])


def test_a_change_that_happened_while_the_field_could_not_be_read_is_still_seen(
    history: History,
) -> None:
    history.reads(**A)
    history.reads(vllm_version="0.32")
    history.reads(**A | {"max_model_len": 2048})
    assert [incident.subject for incident in history.open] == ["max_model_len"]


def test_a_rollback_beside_another_change_closes_the_one_and_opens_the_other(
    history: History,
) -> None:
    history.reads(**A, driver_version="550")
    history.reads(**A | {"max_model_len": 2048}, driver_version="550")
    history.reads(**A, driver_version="560")
    (closed, opened) = sorted(history.all, key=lambda incident: incident.id)
    assert (closed.subject, closed.close_reason) == ("max_model_len", ROLLED_BACK)
    assert (opened.subject, opened.closed_at) == ("driver_version", None)


def test_going_back_closes_the_incident_as_rolled_back_and_opens_none(history: History) -> None:
    history.reads(**A)
    history.reads(**A | {"max_model_len": 2048})
    history.reads(**A)
    (incident,) = history.all
    assert incident.close_reason == ROLLED_BACK
    assert (history.known, history.identities) == (A, 2)


def test_going_back_over_two_steps_closes_the_incident(history: History) -> None:
    for length in (4096, 2048, 1024):
        history.reads(**A | {"max_model_len": length})
    (incident,) = history.open
    assert incident.changes == (Change("max_model_len", 4096, 1024),)
    history.reads(**A)
    assert [incident.close_reason for incident in history.all] == [ROLLED_BACK]


def test_going_back_half_way_is_no_roll_back(history: History) -> None:
    for length in (4096, 2048, 1024, 2048):
        history.reads(**A | {"max_model_len": length})
    (incident,) = history.open
    assert incident.changes == (Change("max_model_len", 4096, 2048),)


def test_a_soft_field_that_moves_on_is_no_roll_back(history: History) -> None:
    for blocks in (1000, 800, 500):
        history.reads(**A, num_gpu_blocks=blocks)
    (incident,) = history.open
    assert incident.changes == (Change("num_gpu_blocks", 1000, 500),)


def test_a_soft_field_that_comes_back_is_one(history: History) -> None:
    for blocks in (1000, 800, 1000):
        history.reads(**A, num_gpu_blocks=blocks)
    assert [incident.close_reason for incident in history.all] == [ROLLED_BACK]


def test_two_changes_undone_one_after_the_other_are_both_closed(history: History) -> None:
    history.reads(**A)
    history.reads(**A | {"max_model_len": 2048})
    history.reads(**A | {"max_model_len": 2048, "vllm_version": "0.33"})
    history.reads(**A | {"vllm_version": "0.33"})
    history.reads(**A)
    assert history.known == A
    assert {incident.subject: incident.close_reason for incident in history.all} == {
        "max_model_len": ROLLED_BACK,
        "vllm_version": ROLLED_BACK,
    }


def test_a_change_of_two_fields_undone_one_by_one_is_closed(history: History) -> None:
    history.reads(**A)
    history.reads(vllm_version="0.33", max_model_len=2048)
    history.reads(vllm_version="0.32", max_model_len=2048)
    history.reads(**A)
    assert {incident.subject: incident.close_reason for incident in history.all}[
        "max_model_len,vllm_version"
    ] == ROLLED_BACK


def test_two_changes_undone_together_are_both_closed(history: History) -> None:
    history.reads(**A)
    history.reads(**A | {"max_model_len": 2048})
    history.reads(**A | {"max_model_len": 2048, "vllm_version": "0.33"})
    history.reads(**A)
    assert history.open == []


def test_a_derived_field_that_follows_a_root_later_opens_no_incident_of_its_own(
    history: History,
) -> None:
    history.reads(**A, system_fingerprint="old", num_gpu_blocks=1000)
    history.reads(
        **A | {"vllm_version": "0.33"}
    )  # the first canary of this start has not answered yet
    history.reads(**A | {"vllm_version": "0.33"}, system_fingerprint="new", num_gpu_blocks=2000)
    assert [incident.subject for incident in history.open] == ["vllm_version"]


def test_after_a_roll_back_what_follows_from_the_roots_is_known_again(history: History) -> None:
    history.reads(**A, system_fingerprint="old")
    history.reads(**A | {"vllm_version": "0.33"}, system_fingerprint="new")
    history.reads(**A)
    assert history.known["system_fingerprint"] == "old"
    history.reads(**A, system_fingerprint="old")
    assert history.open == []


def test_where_nobody_is_on_watch_a_change_is_another_identity_and_no_incident(
    history: History,
) -> None:
    history.watched = False
    for length in (4096, 2048, 4096):
        history.reads(max_model_len=length)
    assert (history.known, history.identities, history.all) == ({"max_model_len": 4096}, 2, [])


def test_an_identity_is_found_by_each_digest_that_it_had_while_less_of_it_was_known(
    history: History,
) -> None:
    def digest() -> str:
        found = fingerprints.current(history.connection, history.target_id)
        assert found is not None
        return found.digest

    seen = []
    for more in (
        {},
        {"driver_version": "610"},
        {"driver_version": "610", "system_fingerprint": "fp"},
    ):
        history.reads(**A, **more)
        history.reads(**A, **more)
        seen.append(digest())
    history.reads(vllm_version="0.33")
    other = digest()
    found = [
        fingerprints.named(history.connection, history.target_id, name)
        for name in (*seen, other, "never seen")
    ]
    assert len(set(seen)) == 3
    assert [one and one.digest for one in found] == [seen[-1]] * 3 + [other, None]
    assert [one and one.earlier for one in found] == [tuple(seen[:2])] * 3 + [(), None]


NAMES = (
    "vllm_version",
    "max_model_len",
    "driver_version",
    "system_fingerprint",
    "kv_cache",
    "cuda_version",
    "num_gpu_blocks",
)
READING = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from([100, 105, 200, None]) for name in NAMES}
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(readings=st.lists(READING, min_size=2, max_size=10))
def test_no_sequence_of_readings_opens_an_incident_without_a_change_of_a_known_value(
    engine: Engine, readings: list[dict[str, Any]]
) -> None:
    """Fields unknown, back, changed, and restarts in any order."""
    with engine.connect() as connection:
        history = History(connection)
        known: dict[str, Any] = {}
        before: dict[int, Incident] = {}
        for reading in readings:
            history.reads(**reading)
            changed = {
                name
                for name, value in reading.items()
                if value is not None and known.get(name, value) != value
            }
            now = {incident.id: incident for incident in history.all}
            opened = [
                change
                for incident_id in now.keys() - before.keys()
                for change in now[incident_id].changes
            ]
            moved = [
                change
                for incident in now.values()
                for change in incident.changes
                if change not in opened
            ]
            stayed = [change for incident in before.values() for change in incident.changes]
            for change in opened:
                assert (change.before, change.after) == (known[change.field], reading[change.field])
            assert {
                change.field for change in (*opened, *(c for c in moved if c not in stayed))
            } <= changed
            if changed & {*ROOT_FIELDS}:
                assert {ROLES[change.field] for change in opened} <= {"root"}
            keys = [incident.key for incident in now.values() if incident.closed_at is None]
            assert len(keys) == len(set(keys))
            known, before = history.known, now
            assert {
                n: v for n, v in reading.items() if v is not None and ROLES[n] != "soft"
            }.items() <= known.items()
        connection.rollback()


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(DIGEST_FIELDS),
    there=st.lists(st.sampled_from([200, 400, 800]), min_size=1, max_size=4),
    gaps=st.booleans(),
)
def test_going_back_to_what_it_was_before_closes_the_incident_however_far_it_went(
    engine: Engine, name: str, there: list[int], gaps: bool
) -> None:
    with engine.connect() as connection:
        history = History(connection)
        history.reads(model_id="tiny", **{name: 100})
        for value in there:
            history.reads(model_id="tiny", **{name: value})
            if gaps:
                history.reads()
        assert [incident.subject for incident in history.open] == [name]
        history.reads(model_id="tiny", **{name: 100})
        assert [incident.close_reason for incident in history.all] == [ROLLED_BACK]
        connection.rollback()
