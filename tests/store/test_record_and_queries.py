"""What is written while measuring, and what is answered about it."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from histories import NOON, History, a_probe, a_sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.model import SAMPLE_FIELDS, FingerprintField, Outcome, Sample, ServerPage, Verdict
from monitor.store import fingerprints, queries, record
from monitor.store.queries import SampleFilter
from monitor.store.times import from_us, maybe_from_us, maybe_us, to_us

SECOND = timedelta(seconds=1)


def all_samples(history: History, **wanted: object) -> list[Sample]:
    """What a filter leaves."""
    return history.do(lambda c: queries.samples(c, SampleFilter(**wanted)))  # type: ignore[arg-type]


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis wants them so
def test_a_time_comes_back_to_the_microsecond(at: datetime) -> None:
    assert from_us(to_us(at)) == at


def test_an_unknown_time_stays_unknown() -> None:
    assert (maybe_us(None), maybe_from_us(None)) == (None, None)


def test_a_sample_comes_back_as_it_was_with_every_field(history: History) -> None:
    numbers = {
        f.name: float(index) + 0.5
        for index, f in enumerate(fields(Sample))
        if f.type == "float | None"
    }
    whole = {
        f.name: index
        for index, f in enumerate(fields(Sample))
        if f.type == "int | None" and f.name != "id"
    }
    full = a_sample(
        finish_reason="stop",
        server_timing="response",
        gpu_uuid="GPU-1",
        stale=False,
        **numbers,
        **whole,
    )
    sample_id = history.samples([full])[0]
    assert all_samples(history) == [replace(full, id=sample_id)]


def test_unknown_figures_come_back_unknown_and_never_as_zero(history: History) -> None:
    bare = Sample("local", "sky", "chat", NOON, a_sample().phase, Outcome.REFUSED)
    history.samples([bare])
    found = all_samples(history)[0]
    left = {name for name in SAMPLE_FIELDS if name != "class" and getattr(found, name) is not None}
    assert left == {"id", "target", "probe", "started_at", "phase", "outcome", "verdict"}


def test_zero_and_false_come_back_as_known(history: History) -> None:
    history.sample(waiting=0.0, cached_tokens=0, stale=False)
    found = all_samples(history)[0]
    assert (found.waiting, found.cached_tokens, found.stale) == (0.0, 0, False)


def test_each_distinct_output_is_kept_once(history: History) -> None:
    for text in ("Yes", "Yes", "No", None):
        history.sample(output=text)
    assert [s.output for s in all_samples(history)] == ["Yes", "Yes", "No", None]
    assert history.rows("SELECT count(*) AS n FROM output") == [{"n": 2}]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_any_text_that_every_database_takes_is_kept_as_it_is(history: History, text: str) -> None:
    sample_id = history.sample(output=text)
    found = history.do(lambda c: queries.sample(c, sample_id))
    assert found is not None
    assert found[0].output == text


def test_half_a_surrogate_pair_in_an_answer_does_not_lose_the_sample(history: History) -> None:
    history.sample(output="broken \ud83d here")
    assert [s.output for s in all_samples(history)] == ["broken \ufffd here"]


def test_a_changed_text_is_a_new_revision_and_the_old_one_stays(history: History) -> None:
    def work(revision: str) -> int:
        return history.do(
            lambda c: record.ensure_revision(
                c, a_probe(revision=revision, max_tokens=len(revision)), NOON
            )
        )

    assert work("first") == work("first")
    assert work("second") != work("first")
    assert history.rows(
        "SELECT digest, json_extract(definition, '$.max_tokens') AS m FROM probe_revision "
        "ORDER BY id"
    ) == [
        {"digest": "first", "m": 5},
        {"digest": "second", "m": 6},
    ]


def test_the_class_of_an_old_sample_stays_what_it_was(history: History) -> None:
    def sample(revision: str, traffic_class: str) -> None:
        def work(c: object) -> None:
            target_id = record.ensure_target(c, "local", "http://127.0.0.1:8000", NOON)  # type: ignore[arg-type]
            probe = a_probe(revision=revision, traffic_class=traffic_class)
            revision_id = record.ensure_revision(c, probe, NOON)  # type: ignore[arg-type]
            ids = {
                "target_id": target_id,
                "revision_id": revision_id,
                "process_start_id": None,
                "fingerprint_id": None,
            }
            record.insert_sample(c, a_sample(traffic_class=traffic_class), detail=None, **ids)  # type: ignore[arg-type]

        history.do(work)

    sample("first", "chat")
    sample("second", "batch")
    assert [s.traffic_class for s in all_samples(history)] == ["chat", "batch"]


def test_a_target_keeps_its_id_when_its_address_changes(history: History) -> None:
    first = history.do(lambda c: record.ensure_target(c, "local", "http://a", NOON))
    again = history.do(lambda c: record.ensure_target(c, "local", "http://b", NOON + SECOND))
    assert first == again
    found = history.do(lambda c: queries.target(c, "local"))
    assert found is not None
    assert (found.url, found.first_seen) == ("http://b", NOON)


def test_samples_come_in_the_order_they_were_taken_and_a_limit_keeps_the_newest(
    history: History,
) -> None:
    for minute in (3, 1, 2):
        history.sample(started_at=NOON + timedelta(minutes=minute), ttft_ms=float(minute))
    assert [s.ttft_ms for s in all_samples(history)] == [1, 2, 3]
    assert [
        s.ttft_ms for s in history.do(lambda c: queries.samples(c, SampleFilter(), limit=2))
    ] == [2, 3]


def test_each_filter_leaves_only_what_it_names(history: History) -> None:
    history.sample(target="a", probe="p", traffic_class="chat", ttft_ms=1.0)
    history.sample(target="b", probe="p", traffic_class="chat", ttft_ms=2.0)
    history.sample(target="a", probe="q", traffic_class="batch", ttft_ms=3.0)
    history.sample(
        target="a",
        probe="p",
        traffic_class="chat",
        ttft_ms=4.0,
        outcome=Outcome.HUNG,
        started_at=NOON + SECOND,
    )
    wanted = {
        "target": ("b", [2]),
        "probe": ("q", [3]),
        "traffic_class": ("chat", [1, 2, 4]),
        "outcome": ("hung", [4]),
        "since": (NOON + SECOND, [4]),
        "until": (NOON + SECOND, [1, 2, 3]),
    }
    assert {
        name: [s.ttft_ms for s in all_samples(history, **{name: value})]
        for name, (value, _) in wanted.items()
    } == {name: left for name, (_, left) in wanted.items()}


def test_the_last_sample_of_each_probe_leaves_out_what_we_cancelled_ourselves(
    history: History,
) -> None:
    history.sample(probe="p", ttft_ms=1.0)
    history.sample(probe="p", outcome=Outcome.CANCELLED)
    history.sample(probe="q", ttft_ms=2.0)
    history.sample(probe="q", ttft_ms=3.0)
    history.sample(target="other", probe="q", ttft_ms=4.0)
    last = history.do(lambda c: queries.last_sample_of_each_probe(c, "local"))
    assert [(s.probe, s.ttft_ms) for s in last] == [("p", 1.0), ("q", 3.0)]


def test_a_new_process_start_becomes_the_current_one_and_the_old_stays(history: History) -> None:
    target_id = history.target()
    first = history.do(lambda c: record.start_process(c, target_id, NOON, NOON, "metrics"))
    second = history.do(
        lambda c: record.start_process(c, target_id, None, NOON + SECOND, "after_outage")
    )
    found = history.do(lambda c: queries.target(c, "local"))
    assert found is not None
    assert (found.process_start_id, first != second) == (second, True)
    assert history.rows("SELECT source FROM process_start ORDER BY id") == [
        {"source": "metrics"},
        {"source": "after_outage"},
    ]


def test_parameter_sets_are_warm_only_by_a_good_answer_of_the_same_process_start(
    history: History,
) -> None:
    target_id = history.target()

    def work(outcome: Outcome, probe_name: str, logprobs: int, start: int) -> None:
        def insert(c: object) -> None:
            probe = a_probe(
                probe_name, revision=f"{probe_name}{logprobs}", sampling={"logprobs": logprobs}
            )
            revision_id = record.ensure_revision(c, probe, NOON)  # type: ignore[arg-type]
            one = a_sample(probe=probe_name, outcome=outcome)
            ids = {
                "target_id": target_id,
                "revision_id": revision_id,
                "process_start_id": start,
                "fingerprint_id": None,
            }
            record.insert_sample(c, one, detail=None, **ids)  # type: ignore[arg-type]

        history.do(insert)

    first = history.do(lambda c: record.start_process(c, target_id, NOON, NOON, "metrics"))
    second = history.do(
        lambda c: record.start_process(c, target_id, NOON + SECOND, NOON, "metrics")
    )
    work(Outcome.OK, "p", 0, first)
    work(Outcome.OK, "q", 5, second)
    work(Outcome.TIMEOUT, "r", 0, second)
    assert history.do(lambda c: queries.warmed_parameter_sets(c, target_id, second)) == {
        "chat/logprobs/free/n1"
    }


def test_tokens_of_the_last_hour_count_prompt_and_answer_and_take_unknown_as_nothing(
    history: History,
) -> None:
    target_id = history.target()
    history.sample(prompt_tokens=20, completion_tokens=8)
    history.sample(prompt_tokens=None, completion_tokens=None, outcome=Outcome.REFUSED)
    history.sample(prompt_tokens=100, completion_tokens=1, started_at=NOON - timedelta(hours=2))
    history.sample(prompt_tokens=1000, completion_tokens=1, target="other")
    found = history.do(
        lambda c: queries.tokens_between(
            c, target_id, NOON - timedelta(hours=1), NOON + timedelta(hours=1)
        )
    )
    assert sorted(tokens for _, tokens, _ in found) == [0, 28]


def test_skipped_runs_are_summed_by_reason_and_only_since_then(history: History) -> None:
    target_id = history.target()
    for reason, count, at in (
        ("pause", 2, NOON),
        ("pause", 3, NOON),
        ("lease", 1, NOON),
        ("pause", 9, NOON - SECOND),
    ):
        history.do(
            lambda c, r=reason, n=count, a=at: record.insert_skipped(
                c, target_id, "sky", a, reason=r, count=n
            )
        )
    assert history.do(lambda c: queries.skipped(c, target_id, NOON)) == {"pause": 5, "lease": 1}


def test_readings_of_the_metrics_page_keep_counters_as_they_stand(history: History) -> None:
    target_id = history.target()
    page = ServerPage(at=NOON, state="ok", running=1.0, engine_steps=77.0, prompt_tokens=5.0)
    history.do(lambda c: record.insert_server_reading(c, target_id, page, None))
    history.do(
        lambda c: record.insert_server_reading(
            c, target_id, ServerPage(at=NOON + SECOND, state="refused"), None
        )
    )
    good, bad = history.do(lambda c: queries.readings(c, target_id, NOON))
    assert (good.engine_steps, good.prompt_tokens, good.waiting) == (77.0, 5.0, None)
    assert (bad.state, bad.engine_steps) == ("refused", None)
    last = history.do(lambda c: queries.last_counters(c, target_id))
    assert last is not None
    assert last.at_us == to_us(NOON)


def test_a_lease_has_one_holder_until_it_expires_or_is_given_back(history: History) -> None:
    def take(holder: str, at: datetime) -> bool:
        return history.do(
            lambda c: record.take_lease(c, "local", holder, at, at + timedelta(seconds=30))
        )

    assert take("a", NOON)
    assert not take("b", NOON + timedelta(seconds=29))
    assert take("a", NOON + timedelta(seconds=20))  # renewed until 50
    assert not take("b", NOON + timedelta(seconds=49))
    assert take("b", NOON + timedelta(seconds=51))
    assert not take("a", NOON + timedelta(seconds=52))
    history.do(lambda c: record.release_lease(c, "local", "a"))  # not a's to give back
    assert not take("a", NOON + timedelta(seconds=53))
    history.do(lambda c: record.release_lease(c, "local", "b"))
    assert take("a", NOON + timedelta(seconds=54))


def test_leases_of_different_lanes_do_not_meet(history: History) -> None:
    until = NOON + timedelta(seconds=30)
    assert history.do(lambda c: record.take_lease(c, "local", "a", NOON, until))
    assert history.do(lambda c: record.take_lease(c, "local/uncapped", "b", NOON, until))


def test_an_identity_comes_back_with_value_source_and_reason(history: History) -> None:
    target_id = history.target()
    known = {
        "vllm_version": FingerprintField("vllm_version", "root", "0.32.0", "/version"),
        "gpu": FingerprintField("gpu", "root", [{"uuid": "GPU-1"}], "NVML"),
        "model_hash": FingerprintField("model_hash", "root", None, None, "not on this machine"),
    }
    history.do(lambda c: fingerprints.save(c, target_id, "aaa", known, NOON))
    current = history.do(lambda c: fingerprints.current(c, target_id))
    assert current is not None
    assert (current.digest, current.fields, current.first_seen) == ("aaa", known, NOON)


def test_an_identity_that_learnt_a_field_keeps_its_row(history: History) -> None:
    target_id = history.target()
    row_id = history.do(lambda c: fingerprints.save(c, target_id, "aaa", {}, NOON))
    again = history.do(
        lambda c: fingerprints.save(c, target_id, "bbb", {}, NOON + SECOND, row_id=row_id)
    )
    assert again == row_id
    stored = history.do(lambda c: fingerprints.all_of(c, target_id))
    assert [(s.digest, s.first_seen, s.last_seen) for s in stored] == [("bbb", NOON, NOON + SECOND)]


def test_nothing_is_kept_of_a_transaction_that_fails(history: History) -> None:
    def work(c: object) -> None:
        record.ensure_target(c, "local", "http://a", NOON)  # type: ignore[arg-type]
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        history.do(work)
    assert history.rows("SELECT * FROM target") == []


def test_a_verdict_and_a_phase_of_the_closed_lists_only_come_back(history: History) -> None:
    history.sample(verdict=Verdict.NEAR_TIE)
    assert all_samples(history)[0].verdict is Verdict.NEAR_TIE


def test_what_no_database_takes_in_a_text_is_not_handed_to_it(history: History) -> None:
    """PostgreSQL refuses U+0000 in any text, and no encoding has halves of surrogate pairs."""
    sample = a_sample(output="a\x00b\ud83d", finish_reason="st\x00op\x1b[2J")
    history.samples([sample])
    (row,) = history.rows(
        "SELECT output.text, sample.finish_reason FROM sample JOIN output ON output.id = "
        "sample.output_id"
    )
    assert row == {"text": "a\ufffdb\ufffd", "finish_reason": "st\ufffdop\\x1b[2J"}
