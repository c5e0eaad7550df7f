"""One problem, one finding: what is combined, what stays, and the evidence in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from monitor.judge.drift.evidence import (
    Effect,
    GpuComparison,
    Observations,
    Pair,
    ServerComparison,
    Shift,
)
from monitor.judge.drift.problem.findings import finding_of
from monitor.judge.drift.problem.problem import Observed, Problem
from monitor.judge.drift.problem.problems import judge
from monitor.judge.drift.settings import HOUR_US, MINUTE_US
from monitor.model import Cause, Finding, GpuFigures, GpuWarning, Kind, Predicted, Severity

NOW_US = 1_700_000_000_000_000
METRICS = {
    "decode": "decode_tok_s",
    "start": "decode_tok_s",
    "ttft": "ttft_ms",
    "cache": "ttft_ms",
    "steps": "engine_steps_s",
}
COOL = GpuComparison(
    "GPU-1",
    temp_c=Pair(55.0, 55.0),
    residual_c=0.0,
    sm_clock_mhz=Pair(1980.0, 1980.0),
    util=Pair(0.9, 0.9),
    power_w=Pair(400.0, 400.0),
    power_limit_w=Pair(700.0, 700.0),
    thermal_duty=Pair(0.0, 0.0),
    power_duty=Pair(0.0, 0.0),
    brake_duty=Pair(0.0, 0.0),
    vram_used_mib=Pair(70_000.0, 70_000.0),
    top_util=Pair(0.95, 0.95),
    top_power_w=Pair(400.0, 400.0),
)
HOT = replace(
    COOL,
    temp_c=Pair(55.0, 87.0),
    residual_c=30.0,
    sm_clock_mhz=Pair(1980.0, 1700.0),
    thermal_duty=Pair(0.0, 0.9),
)
QUIET = ServerComparison()
QUEUE = ServerComparison(waiting=Pair(0.0, 20.0), queue_ms=Pair(2.0, 20_000.0))


def effect(
    channel: str,
    change_pct: float = -8.0,
    severity: Severity = Severity.WARNING,
    since_us: int = NOW_US,
) -> Effect:
    shift = Shift(
        METRICS.get(channel, "over_level"), change_pct, change_pct - 1.0, change_pct + 1.0
    )
    return Effect(
        channel,
        shift,
        since_us,
        severity,
        {"over": 9, "of": 10, "waited_ms": 2000.0} if channel == "level" else {},
    )


def warned(
    condition: str = "thermal_duty",
    cause: Cause = Cause.HEAT,
    severity: Severity = Severity.WARNING,
    uuid: str = "GPU-1",
) -> GpuWarning:
    return GpuWarning(
        condition=condition,
        uuid=uuid,
        severity=severity,
        since_us=NOW_US - 10 * MINUTE_US,
        cause=cause,
        figures=GpuFigures(thermal_duty=0.9, usual_thermal_duty=0.0, temp_c=86.0),
        expected=Predicted(-2.0, -5.0, 1.0, 7.0, 5.0, 9.0),
    )


def seen(
    effects: Sequence[Effect] = (),
    levels: Mapping[str, Effect] | None = None,
    warnings: Sequence[GpuWarning] = (),
    gpu: GpuComparison = COOL,
    server: ServerComparison = QUIET,
    **more: Any,
) -> Observed:
    by_channel = {e.channel: e for e in effects}
    signs = Observations(
        by_channel,
        more.pop("calm", ()),
        (gpu,),
        server,
        since_us=NOW_US,
        digest_changed_us=more.get("changed_us"),
    )
    return Observed(by_channel, levels or {}, warnings, signs, **more)


def problems(what: Observed, held: Sequence[Problem] = (), now_us: int = NOW_US) -> list[Problem]:
    return judge(what, {problem.name: problem for problem in held}, now_us)


def findings(what: Observed, held: Sequence[Problem] = (), now_us: int = NOW_US) -> list[Finding]:
    return [finding_of(problem, "box") for problem in problems(what, held, now_us)]


def test_an_early_warning_stands_alone_before_anything_is_felt() -> None:
    (found,) = findings(seen(warnings=[warned()], gpu=HOT, calm=("decode",)))
    assert (found.kind, found.subject, found.cause, found.severity) == (
        Kind.THERMAL,
        "GPU-1",
        Cause.HEAT,
        Severity.WARNING,
    )
    assert found.evidence["calm"] == ["decode"]
    assert found.evidence["expected"]["decode_pct"] == -2.0


def test_the_warning_and_the_slow_decoding_that_follows_are_one_incident_that_gets_louder() -> None:
    early = problems(seen(warnings=[warned()], gpu=HOT))
    (found,) = findings(seen([effect("decode")], warnings=[warned()], gpu=HOT), early)
    assert found.key == finding_of(early[0], "box").key
    assert found.severity is Severity.PAGE
    assert found.evidence["change_pct"] == -8.0
    assert found.since == finding_of(early[0], "box").since


def test_slow_decoding_that_a_hot_gpu_explains_is_thermal_although_no_gpu_warns_yet() -> None:
    (found,) = findings(seen([effect("decode")], gpu=HOT))
    assert (found.kind, found.subject, found.cause) == (Kind.THERMAL, "GPU-1", Cause.HEAT)


def test_three_hot_gpus_are_one_incident() -> None:
    (found,) = findings(seen(warnings=[warned(uuid=f"GPU-{n}") for n in (1, 2, 3)], gpu=HOT))
    assert found.evidence["gpus"] == ["GPU-1", "GPU-2", "GPU-3"]


def test_a_gpu_that_is_merely_warm_does_not_explain_slow_decoding() -> None:
    residual = warned("thermal_residual", severity=Severity.INFO)
    found = findings(seen([effect("decode")], warnings=[residual]))
    assert {(f.kind, f.cause, f.severity) for f in found} == {
        (Kind.THERMAL, Cause.HEAT, Severity.INFO),
        (Kind.SPEED, Cause.UNEXPLAINED, Severity.WARNING),
    }


def test_a_queue_behind_a_batch_job_is_a_service_level_and_not_slow_first_tokens_too() -> None:
    (found,) = findings(seen([effect("ttft", 60.0)], {"chat": effect("level", 90.0)}, server=QUEUE))
    assert (found.kind, found.subject, found.cause, found.severity) == (
        Kind.SERVICE_LEVEL,
        "chat",
        Cause.QUEUEING,
        Severity.PAGE,
    )
    assert found.evidence["levels"]["chat"]["waited_ms"] == 2000.0


def test_two_classes_behind_one_queue_are_one_incident() -> None:
    levels = {
        "chat": effect("level", 90.0, since_us=NOW_US - MINUTE_US),
        "batch": effect("level", 90.0),
    }
    (found,) = findings(seen(levels=levels, server=QUEUE))
    assert found.subject == "chat"
    assert set(found.evidence["levels"]) == {"chat", "batch"}


def test_the_subject_stays_while_that_class_waits_whoever_waits_beside_it() -> None:
    first = problems(seen(levels={"chat": effect("level")}, server=QUEUE))
    later = effect("level", since_us=NOW_US + 20 * MINUTE_US)
    (found,) = problems(
        seen(levels={"chat": effect("level"), "batch": later}, server=QUEUE),
        first,
        NOW_US + HOUR_US,
    )
    assert (found.subject, found.since_us) == ("chat", NOW_US)


def test_a_class_that_is_served_again_is_resolved_and_another_has_its_own_onset() -> None:
    later = effect("level", since_us=NOW_US + 20 * MINUTE_US)
    both = problems(seen(levels={"chat": effect("level"), "batch": later}, server=QUEUE))
    (found,) = problems(seen(levels={"batch": later}, server=QUEUE), both, NOW_US + HOUR_US)
    assert (found.subject, found.since_us, found.opened_us) == (
        "batch",
        NOW_US + 20 * MINUTE_US,
        NOW_US + HOUR_US,
    )


def test_the_figure_of_a_level_is_a_share_and_no_change() -> None:
    (found,) = findings(seen(levels={"chat": effect("level", 90.0)}, server=QUEUE))
    assert found.evidence["share_pct"] == 90.0
    assert "change_pct" not in found.evidence


def test_slow_decoding_keeps_its_name_when_a_gpu_explains_it_later() -> None:
    first = problems(seen([effect("decode")]))
    (found,) = problems(
        seen([effect("decode")], warnings=[warned()], gpu=HOT), first, NOW_US + 5 * MINUTE_US
    )
    assert first[0].cause is Cause.UNEXPLAINED
    assert finding_of(found, "box").key == finding_of(first[0], "box").key
    assert (found.cause, found.severity, found.opened_us) == (Cause.HEAT, Severity.PAGE, NOW_US)
    assert found.gpus == {"GPU-1"}
    (still,) = problems(
        seen([effect("decode")], warnings=[warned()], gpu=HOT), [found], NOW_US + 10 * MINUTE_US
    )
    assert finding_of(still, "box").key == finding_of(first[0], "box").key


def test_slow_decoding_whose_cause_rests_on_readings_alone_goes_on_under_its_name_too() -> None:
    first = problems(seen([effect("decode")]))
    (found,) = problems(seen([effect("decode")], gpu=HOT), first, NOW_US + 5 * MINUTE_US)
    assert finding_of(found, "box").key == finding_of(first[0], "box").key
    assert found.cause is Cause.HEAT


def test_a_hot_gpu_stays_a_problem_when_decoding_is_fast_again() -> None:
    first = problems(seen([effect("decode")]))
    joined = problems(
        seen([effect("decode")], warnings=[warned()], gpu=HOT), first, NOW_US + 5 * MINUTE_US
    )
    (left,) = problems(
        seen(warnings=[warned()], gpu=HOT, calm=("decode",)), joined, NOW_US + HOUR_US
    )
    assert (left.kind, left.subject, left.severity) == (Kind.THERMAL, "GPU-1", Severity.WARNING)


def test_a_lowered_limit_at_which_the_clock_is_as_ever_explains_nothing() -> None:
    drafts = ServerComparison(spec_acceptance=Pair(0.7, 0.4))
    found = problems(
        seen([effect("decode")], warnings=[warned("power_limit", Cause.POWER_CAP)], server=drafts)
    )
    assert {(t.kind, t.cause) for t in found} == {
        (Kind.POWER, Cause.POWER_CAP),
        (Kind.SPEED, Cause.SPECULATION),
    }


def test_a_level_that_breaks_because_the_gpu_is_hot_belongs_to_the_heat() -> None:
    early = problems(seen([effect("decode")], warnings=[warned()], gpu=HOT))
    (found,) = findings(seen([effect("decode")], {"chat": effect("level")}, [warned()], HOT), early)
    assert found.kind is Kind.THERMAL
    assert "chat" in found.evidence["levels"]


def test_a_level_that_broke_first_stays_open_when_the_cause_is_found() -> None:
    first = problems(seen(levels={"chat": effect("level")}))
    assert first[0].cause is Cause.UNEXPLAINED
    found = findings(seen([effect("decode")], {"chat": effect("level")}, [warned()], HOT), first)
    assert {(f.kind, f.cause) for f in found} == {
        (Kind.THERMAL, Cause.HEAT),
        (Kind.SERVICE_LEVEL, Cause.HEAT),
    }


def test_a_cause_may_be_refined_in_the_first_hour() -> None:
    first = problems(seen([effect("decode")]))
    assert first[0].cause is Cause.UNEXPLAINED
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    (found,) = findings(seen([effect("decode")], gpu=weak), first, NOW_US + HOUR_US // 2)
    assert found.cause is Cause.KERNEL_FALLBACK


def test_later_a_cause_stays_although_its_evidence_has_faded() -> None:
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    first = problems(seen([effect("decode")], gpu=weak))
    (found,) = findings(seen([effect("decode")]), first, NOW_US + 5 * HOUR_US)
    assert found.cause is Cause.KERNEL_FALLBACK


def test_a_refuted_cause_gives_way_to_one_with_evidence() -> None:
    idle = replace(COOL, top_util=Pair(0.95, 0.6))
    first = problems(seen([effect("decode")], gpu=idle))
    assert first[0].cause is Cause.HOST_BOUND
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    (found,) = findings(seen([effect("decode")], gpu=weak), first, NOW_US + 5 * HOUR_US)
    assert found.cause is Cause.KERNEL_FALLBACK


def test_a_lowered_power_limit_is_not_reported_a_second_time_as_a_changed_configuration() -> None:
    limit = warned("power_limit", Cause.POWER_CAP)
    (found,) = findings(seen(warnings=[limit], changed_us=NOW_US))
    assert (found.kind, found.cause) == (Kind.POWER, Cause.POWER_CAP)


def test_a_change_of_the_digest_is_reported_while_it_is_compared() -> None:
    assert findings(seen(changed_us=NOW_US)) == []
    (found,) = findings(seen(changed_us=NOW_US), now_us=NOW_US + 10 * MINUTE_US)
    assert (found.kind, found.subject, found.severity) == (
        Kind.CONFIG_CHANGE,
        "fingerprint",
        Severity.INFO,
    )
    assert found.evidence == {"compared": {}}


def test_a_change_after_which_decoding_is_slower_says_by_how_much() -> None:
    (found,) = findings(seen([effect("decode", -4.0)], changed_us=NOW_US))
    assert (found.kind, found.subject, found.cause) == (
        Kind.CONFIG_CHANGE,
        "fingerprint",
        Cause.CONFIG_CHANGE,
    )
    assert found.severity is Severity.WARNING
    assert found.evidence["change_pct"] == -4.0


def test_longer_prompts_are_a_reason_to_look_at_the_probes() -> None:
    (found,) = findings(seen(workload=(NOW_US, 1000.0, 4000.0)))
    assert (found.kind, found.severity, found.cause) == (Kind.WORKLOAD_SHIFT, Severity.INFO, None)
    assert found.evidence == {
        "metric": "prompt_tokens",
        "change_pct": 300.0,
        "usual_tokens": 1000,
        "tokens": 4000,
    }


def test_a_slow_start_is_one_finding_although_the_decode_rate_shows_it_too() -> None:
    (found,) = findings(seen([effect("start", -20.0, Severity.PAGE), effect("decode", -20.0)]))
    assert (found.kind, found.subject) == (Kind.SLOW_START, "decode")
    assert [e["channel"] for e in found.evidence["effects"]] == ["start", "decode"]


def test_what_is_unexplained_lists_the_missing_readings_and_how_to_get_them() -> None:
    blind = GpuComparison("GPU-1", temp_c=Pair(55.0, 55.0), sm_clock_mhz=Pair(1980.0, 1700.0))
    (found,) = findings(seen([effect("decode")], gpu=blind))
    assert found.cause is Cause.UNEXPLAINED
    assert any("DCGM_FI_DEV_POWER_VIOLATION" in text for text in found.evidence["missing"])


def test_the_evidence_has_the_readings_before_and_now() -> None:
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    (found,) = findings(seen([effect("decode")], gpu=weak))
    assert found.evidence["readings"]["top_power_w"] == {"before": 400.0, "now": 320.0}
    assert found.evidence["readings"]["thermal_residual_c"] == {"before": 0.0, "now": 0.0}


def test_the_evidence_of_several_warnings_has_the_figures_of_the_most_severe() -> None:
    page = replace(
        warned("hw_thermal", severity=Severity.PAGE, uuid="GPU-2"),
        figures=GpuFigures(temp_c=91.0),
    )
    (found,) = findings(seen(warnings=[warned(), page], gpu=HOT))
    assert found.evidence["signs"] == ["hw_thermal", "thermal_duty"]
    assert (found.evidence["temp_c"], "thermal_duty" in found.evidence) == (91.0, False)


def test_a_problem_is_stored_and_read_back_to_the_last_digit() -> None:
    adapter = TypeAdapter(list[Problem])
    first = problems(seen([effect("decode", -1.0 / 3.0)], warnings=[warned()], gpu=HOT))
    level = problems(seen([effect("ttft", 60.0)], {"chat": effect("level", 200 / 3)}, server=QUEUE))
    others = problems(seen(workload=(NOW_US, 1000.0, 1e4 / 3), changed_us=0))
    stored = adapter.dump_json([*first, *level, *others])
    assert adapter.validate_json(stored) == [*first, *level, *others]
