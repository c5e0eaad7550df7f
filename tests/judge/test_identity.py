"""What changed between two readings of an identity, and what follows. Unknown is never a change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from histories import a_probe
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.judge.identity import (
    compare,
    config_change,
    config_change_resolved,
    digest,
    is_same,
    merged,
)
from monitor.model import (
    DERIVED_FIELDS,
    DIGEST_FIELDS,
    ROOT_FIELDS,
    SOFT_FIELDS,
    Cause,
    Change,
    FingerprintField,
    Incident,
    Kind,
    Outcome,
    Phase,
    Sample,
    Severity,
)

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
ROLES: Mapping[str, Any] = (
    dict.fromkeys(ROOT_FIELDS, "root")
    | dict.fromkeys(DERIVED_FIELDS, "derived")
    | dict.fromkeys(SOFT_FIELDS, "soft")
)
ALL_FIELDS = tuple(ROLES)
Fields = Mapping[str, FingerprintField]
READING = st.dictionaries(
    st.sampled_from(ALL_FIELDS), st.sampled_from([None, 1, 2, "a"]), max_size=8
)


def fields(**values: Any) -> dict[str, FingerprintField]:
    """A reading that knows these values and no other."""
    return {name: FingerprintField(name, role, values.get(name)) for name, role in ROLES.items()}


def values(fields: Fields) -> dict[str, Any]:
    return {name: field.value for name, field in fields.items() if field.value is not None}


def names(changes: tuple[Change, ...]) -> list[str]:
    return [change.field for change in changes]


def test_a_root_that_differs_is_a_trigger_with_before_and_after() -> None:
    assert compare(fields(vllm_version="0.31"), fields(vllm_version="0.32")).trigger == (
        Change("vllm_version", "0.31", "0.32"),
    )


@pytest.mark.parametrize("name", ALL_FIELDS)
def test_a_field_that_becomes_unknown_or_is_learnt_is_no_change(name: str) -> None:
    known, unknown = fields(**{name: "x"}), fields()
    assert compare(known, unknown).trigger == ()
    assert compare(unknown, known).trigger == ()
    assert compare(unknown, known).learned == (name,)
    assert compare(unknown, unknown).learned == ()


@pytest.mark.parametrize("value", [0, "", False, [], {}])
def test_an_empty_value_is_known_and_can_change(value: Any) -> None:
    assert names(compare(fields(environment=value), fields(environment={"A": "1"})).trigger) == [
        "environment"
    ]
    assert compare(fields(), fields(environment=value)).learned == ("environment",)


def test_a_derived_field_alone_is_a_trigger() -> None:
    assert names(
        compare(fields(system_fingerprint="a"), fields(system_fingerprint="b")).trigger
    ) == ["system_fingerprint"]


def test_a_derived_field_that_a_root_explains_is_none() -> None:
    known, seen = (
        fields(vllm_version=v, system_fingerprint=v, kv_cache={"v": v}, num_gpu_blocks=n)
        for v, n in (("a", 10), ("b", 99))
    )
    compared = compare(known, seen)
    assert names(compared.trigger) == ["vllm_version"]
    assert names(compared.derived) == ["system_fingerprint", "kv_cache", "num_gpu_blocks"]


@pytest.mark.parametrize(
    ("after", "changed"), [(1000, False), (1100, False), (900, False), (1101, True), (899, True)]
)
@pytest.mark.parametrize("name", SOFT_FIELDS)
def test_a_soft_field_may_move_by_a_tenth(name: str, after: int, changed: bool) -> None:
    assert names(compare(fields(**{name: 1000}), fields(**{name: after})).trigger) == (
        [name] if changed else []
    )


def test_many_small_steps_of_a_soft_field_add_up_to_a_change() -> None:
    known: Fields = fields(num_gpu_blocks=1000)
    for blocks in (960, 930, 905):
        seen = fields(num_gpu_blocks=blocks)
        assert compare(known, seen).trigger == ()
        known = merged(known, seen)
    assert compare(known, fields(num_gpu_blocks=890)).trigger == (
        Change("num_gpu_blocks", 1000, 890),
    )


def test_after_a_soft_field_has_changed_its_new_value_is_the_one_to_compare_with() -> None:
    known = merged(fields(num_gpu_blocks=1000), fields(num_gpu_blocks=800))
    assert compare(known, fields(num_gpu_blocks=790)).trigger == ()


def test_a_restart_with_another_root_sets_the_soft_fields_anew() -> None:
    """With half the context the cache is laid out anew; its size is to be compared with the size
    after that change.
    """
    known = merged(
        fields(max_model_len=4096, num_gpu_blocks=1000),
        fields(max_model_len=2048, num_gpu_blocks=1090),
    )
    assert compare(known, fields(max_model_len=2048, num_gpu_blocks=1110)).trigger == ()


def test_what_is_learnt_is_merged_and_what_is_not_seen_stays_as_it_was() -> None:
    known = fields(vllm_version="0.32", system_fingerprint="a", num_gpu_blocks=10)
    assert values(merged(known, fields(driver_version="610"))) == {
        **values(known),
        "driver_version": "610",
    }


@pytest.mark.parametrize("name", [*DERIVED_FIELDS, *SOFT_FIELDS])
def test_what_follows_from_the_roots_is_not_carried_over_a_change_of_one(name: str) -> None:
    known = fields(vllm_version="0.31", driver_version="610", **{name: 1000})
    after = merged(known, fields(vllm_version="0.32"))
    assert values(after) == {"vllm_version": "0.32", "driver_version": "610"}
    assert compare(after, fields(vllm_version="0.32", **{name: 5000})).trigger == ()


def test_what_follows_from_the_roots_is_taken_from_the_reading_that_changed_them() -> None:
    after = merged(
        fields(vllm_version="0.31", kv_cache="a"), fields(vllm_version="0.32", kv_cache="b")
    )
    assert values(after) == {"vllm_version": "0.32", "kv_cache": "b"}


@settings(max_examples=60, deadline=None)
@given(READING, READING)
def test_after_merging_a_reading_the_same_reading_is_no_change(
    known: dict[str, Any], seen: dict[str, Any]
) -> None:
    together = merged(fields(**known), fields(**seen))
    assert compare(together, fields(**seen)).trigger == ()


@settings(max_examples=60, deadline=None)
@given(READING, READING)
def test_only_values_known_on_both_sides_are_ever_a_trigger(
    known: dict[str, Any], seen: dict[str, Any]
) -> None:
    for change in compare(fields(**known), fields(**seen)).trigger:
        assert change.before is not None
        assert change.after is not None
        assert change.before != change.after
        assert (known[change.field], seen[change.field]) == (change.before, change.after)


def turned(value: Any) -> Any:
    """The same value with every object's members in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(item) for key, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


def test_a_digest_is_the_same_in_any_order_and_after_the_database() -> None:
    known = fields(
        environment={"A": "1", "B": "2"},
        gpu=[{"uuid": "GPU-a", "ecc": True}],
        launch_options={"tp": "2", "dtype": "auto"},
    )
    other = {
        name: FingerprintField(name, f.role, turned(f.value), "another source")
        for name, f in reversed(known.items())
    }
    stored = {
        name: FingerprintField(name, f.role, json.loads(json.dumps(f.value)))
        for name, f in known.items()
    }
    assert digest(known) == digest(other) == digest(stored)
    assert compare(known, stored).trigger == compare(known, other).trigger == ()


@pytest.mark.parametrize("name", ALL_FIELDS)
def test_the_digest_covers_the_roots_and_the_three_signs_of_a_remote_server(name: str) -> None:
    moved = digest(fields(**{name: 1})) != digest(fields(**{name: 2}))
    assert moved == (name in (*ROOT_FIELDS, "system_fingerprint", "quantization", "kv_cache"))
    assert (digest(fields(**{name: 1})) != digest(fields())) == (name in DIGEST_FIELDS)


def test_an_earlier_identity_is_the_same_where_nothing_known_on_both_sides_differs() -> None:
    earlier = fields(
        vllm_version="0.31", driver_version="610", num_gpu_blocks=10, launch_command="a"
    )
    assert is_same(earlier, fields(vllm_version="0.31"))
    assert is_same(
        earlier,
        fields(vllm_version="0.31", model_root="tiny", num_gpu_blocks=99, launch_command="b"),
    )
    assert not is_same(earlier, fields(vllm_version="0.31", driver_version="595"))


def test_identities_without_a_field_in_common_are_not_the_same() -> None:
    assert not is_same(fields(vllm_version="0.31"), fields(driver_version="610"))
    assert not is_same(fields(), fields())
    assert not is_same(fields(num_gpu_blocks=10), fields(num_gpu_blocks=10))


def test_one_change_is_told_with_before_and_after() -> None:
    found = config_change(
        "local", [Change("max_model_len", 4096, 2048)], NOON, {"digest_before": "a"}
    )
    assert (found.kind, found.severity, found.cause, found.since) == (
        Kind.CONFIG_CHANGE,
        Severity.WARNING,
        Cause.CONFIG_CHANGE,
        NOON,
    )
    assert found.subject == "max_model_len"
    assert found.changes == (Change("max_model_len", 4096, 2048),)
    assert found.evidence == {"digest_before": "a"}


def test_changes_that_were_read_together_are_one_finding_in_any_order() -> None:
    changes = [Change("vllm_version", "0.31", "0.32"), Change("driver_version", "595", "610")]
    found = config_change("local", changes, NOON, {})
    assert found.subject == "driver_version,vllm_version"
    assert found.key == config_change("local", changes[::-1], NOON, {}).key


INCIDENT = Incident(
    1, Kind.CONFIG_CHANGE, "local", "vllm_version", Severity.WARNING, "changed", opened_at=NOON
)


def answered(probe: str = "sky", minutes: int = 1, **fields: Any) -> Sample:
    known = {"outcome": Outcome.OK, "phase": Phase.WARM, "fingerprint": "new", **fields}
    return Sample("local", probe, "chat", NOON + timedelta(minutes=minutes), **known)


SOON = NOON + timedelta(minutes=10)
SKY, SEA = a_probe("sky"), a_probe("sea", every_s=300.0)
RARE = (
    a_probe("rare", every_s=7200.0),
    a_probe("cron", every_s=None, cron="0 8 * * *"),
    a_probe("uncapped", max_wait_s=None),
)


def test_a_change_is_over_when_every_probe_has_answered_warm_under_it() -> None:
    assert config_change_resolved(INCIDENT, "new", [SKY, SEA], [answered("sky")], SOON) is None
    assert (
        config_change_resolved(
            INCIDENT, "new", [SKY, SEA], [answered("sky"), answered("sea", phase=Phase.IDLE)], SOON
        )
        is not None
    )


def test_rare_and_uncapped_probes_are_not_waited_for_unless_they_have_run() -> None:
    assert (
        config_change_resolved(INCIDENT, "new", [SKY, *RARE], [answered("sky")], SOON) is not None
    )
    for probe in RARE:
        cold = answered(probe.name, phase=Phase.COLD)
        assert (
            config_change_resolved(INCIDENT, "new", [SKY, *RARE], [answered("sky"), cold], SOON)
            is None
        )
        assert (
            config_change_resolved(
                INCIDENT, "new", [SKY, *RARE], [answered("sky"), cold, answered(probe.name)], SOON
            )
            is not None
        )


def test_a_probe_that_cannot_run_holds_a_change_open_for_a_day_and_is_named_then() -> None:
    day = NOON + timedelta(hours=24)
    assert (
        config_change_resolved(
            INCIDENT, "new", [SKY, SEA], [answered("sky")], day - timedelta(seconds=1)
        )
        is None
    )
    told = config_change_resolved(INCIDENT, "new", [SKY, SEA], [answered("sky")], day)
    assert told is not None
    assert told.endswith(": sea")


@pytest.mark.parametrize(
    "sample",
    [
        answered(phase=Phase.COLD),
        answered(outcome=Outcome.QUEUE_CAP),
        answered(fingerprint="old"),
        answered(fingerprint=None),
        answered(minutes=-1),
        answered("another"),
    ],
    ids=["cold", "failed", "old identity", "unknown identity", "before", "another probe"],
)
def test_no_other_answer_ends_a_change(sample: Sample) -> None:
    assert config_change_resolved(INCIDENT, "new", [SKY], [sample], SOON) is None


def test_without_probes_a_change_is_over_only_after_a_day() -> None:
    assert config_change_resolved(INCIDENT, "new", [], [], SOON) is None
    assert config_change_resolved(INCIDENT, "new", [], [], NOON + timedelta(hours=24)) is not None
