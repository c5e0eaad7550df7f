"""One root trouble, one finding; and the sentence that a person reads at three at night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from monitor.judge.drift.evidence import (
    Effect,
    GpuComparison,
    GpuWarning,
    Observations,
    Pair,
    ServerComparison,
    Shift,
)
from monitor.judge.drift.problem.findings import finding_of
from monitor.judge.drift.problem.problem import Observed, Problem
from monitor.judge.drift.problem.problems import judge
from monitor.judge.drift.settings import HOUR_US, MINUTE_US
from monitor.model import Cause, Finding, Kind, Severity

NOW_US = 1_700_000_000_000_000
METRICS = {
    "decode": "decode_tok_s",
    "start": "decode_tok_s",
    "ttft": "ttft_ms",
    "cache": "ttft_ms",
    "steps": "engine_steps_s",
}
COOL = GpuComparison(
    "GPU-1", temp_c=Pair(55.0, 55.0), residual_c=0.0, sm_clock_mhz=Pair(1980.0, 1980.0), util=Pair(0.9, 0.9), power_w=Pair(400.0, 400.0),
    power_limit_w=Pair(700.0, 700.0), thermal_duty=Pair(0.0, 0.0), power_duty=Pair(0.0, 0.0), brake_duty=Pair(0.0, 0.0),
    vram_used_mib=Pair(70_000.0, 70_000.0), top_util=Pair(0.95, 0.95), top_power_w=Pair(400.0, 400.0),
)  # fmt: skip
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
    sign: str = "thermal_duty",
    cause: Cause = Cause.HEAT,
    severity: Severity = Severity.WARNING,
    uuid: str = "GPU-1",
) -> GpuWarning:
    expected = {"decode_pct": -2.0, "ttft_pct": 7.0}
    summary = (
        f"GPU {uuid} is held back. At 1700 instead of 1980 MHz expect decode -2 %. Look at fans."
    )
    return GpuWarning(
        sign,
        uuid,
        severity,
        NOW_US - 10 * MINUTE_US,
        {"cause": cause.value, "expected": expected},
        summary,
    )


def seen(
    effects: Sequence[Effect] = (),
    levels: Mapping[str, Effect] | None = None,
    warnings: Sequence[GpuWarning] = (),
    gpu: GpuComparison = COOL,
    flow: ServerComparison = QUIET,
    **more: Any,
) -> Observed:
    by_channel = {e.channel: e for e in effects}
    signs = Observations(
        by_channel,
        more.pop("calm", ()),
        (gpu,),
        flow,
        since_us=NOW_US,
        digest_changed_us=more.get("changed_us"),
    )
    return Observed(by_channel, levels or {}, warnings, signs, **more)


def troubles(what: Observed, held: Sequence[Problem] = (), now_us: int = NOW_US) -> list[Problem]:
    return judge(what, {trouble.name: trouble for trouble in held}, now_us)


def findings(what: Observed, held: Sequence[Problem] = (), now_us: int = NOW_US) -> list[Finding]:
    return [finding_of(trouble, "box") for trouble in troubles(what, held, now_us)]


def test_an_early_warning_stands_alone_before_anything_is_felt() -> None:
    (found,) = findings(seen(warnings=[warned()], gpu=HOT, calm=("decode",)))
    assert (found.kind, found.subject, found.cause, found.severity) == (
        Kind.THERMAL,
        "GPU-1",
        Cause.HEAT,
        Severity.WARNING,
    )
    assert "not felt yet" in found.summary
    assert "expect decode -2 %" in found.summary


def test_nothing_is_said_of_what_is_felt_while_speed_still_learns() -> None:
    (found,) = findings(seen(warnings=[warned()], gpu=HOT))
    assert "not felt yet" not in found.summary
    assert "cannot be told yet" in found.summary


def test_the_warning_and_the_slow_decoding_that_follows_are_one_incident_that_gets_louder() -> None:
    early = troubles(seen(warnings=[warned()], gpu=HOT))
    (found,) = findings(seen([effect("decode")], warnings=[warned()], gpu=HOT), early)
    assert found.key == finding_of(early[0], "box").key
    assert found.severity is Severity.PAGE
    assert found.evidence["change_pct"] == -8.0
    assert found.since == finding_of(early[0], "box").since


def test_slow_decoding_that_a_hot_gpu_explains_is_thermal_although_no_sign_has_opened_yet() -> None:
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
    (found,) = findings(seen([effect("ttft", 60.0)], {"chat": effect("level", 90.0)}, flow=QUEUE))
    assert (found.kind, found.subject, found.cause, found.severity) == (
        Kind.SERVICE_LEVEL,
        "chat",
        Cause.QUEUEING,
        Severity.PAGE,
    )
    assert "9 of the last 10 canaries, 2.0 s" in found.summary


def test_two_classes_behind_one_queue_are_one_incident() -> None:
    levels = {
        "chat": effect("level", 90.0, since_us=NOW_US - MINUTE_US),
        "batch": effect("level", 90.0),
    }
    (found,) = findings(seen(levels=levels, flow=QUEUE))
    assert found.subject == "chat"
    assert set(found.evidence["levels"]) == {"chat", "batch"}


def test_the_subject_stays_while_that_class_waits_whoever_waits_beside_it() -> None:
    first = troubles(seen(levels={"chat": effect("level")}, flow=QUEUE))
    later = effect("level", since_us=NOW_US + 20 * MINUTE_US)
    (found,) = troubles(
        seen(levels={"chat": effect("level"), "batch": later}, flow=QUEUE), first, NOW_US + HOUR_US
    )
    assert (found.subject, found.since_us) == ("chat", NOW_US)


def test_a_class_that_is_well_again_is_over_and_the_one_that_still_waits_is_told_with_its_own_time() -> (
    None
):
    later = effect("level", since_us=NOW_US + 20 * MINUTE_US)
    both = troubles(seen(levels={"chat": effect("level"), "batch": later}, flow=QUEUE))
    (found,) = troubles(seen(levels={"batch": later}, flow=QUEUE), both, NOW_US + HOUR_US)
    assert (found.subject, found.since_us, found.opened_us) == (
        "batch",
        NOW_US + 20 * MINUTE_US,
        NOW_US + HOUR_US,
    )


def test_the_figure_of_a_level_is_a_share_and_no_change() -> None:
    (found,) = findings(seen(levels={"chat": effect("level", 90.0)}, flow=QUEUE))
    assert found.evidence["share_pct"] == 90.0
    assert "change_pct" not in found.evidence


def test_slow_decoding_that_was_open_before_the_gpu_explained_it_goes_on_under_its_name_with_the_cause() -> (
    None
):
    first = troubles(seen([effect("decode")]))
    (found,) = troubles(
        seen([effect("decode")], warnings=[warned()], gpu=HOT), first, NOW_US + 5 * MINUTE_US
    )
    assert first[0].cause is Cause.UNEXPLAINED
    assert finding_of(found, "box").key == finding_of(first[0], "box").key
    assert (found.cause, found.severity, found.opened_us) == (Cause.HEAT, Severity.PAGE, NOW_US)
    assert "GPU GPU-1 is held back" in finding_of(found, "box").summary
    (still,) = troubles(
        seen([effect("decode")], warnings=[warned()], gpu=HOT), [found], NOW_US + 10 * MINUTE_US
    )
    assert finding_of(still, "box").key == finding_of(first[0], "box").key


def test_slow_decoding_whose_cause_is_proven_by_readings_alone_goes_on_under_its_name_too() -> None:
    first = troubles(seen([effect("decode")]))
    (found,) = troubles(seen([effect("decode")], gpu=HOT), first, NOW_US + 5 * MINUTE_US)
    assert finding_of(found, "box").key == finding_of(first[0], "box").key
    assert found.cause is Cause.HEAT


def test_a_hot_gpu_stays_told_when_decoding_is_well_again() -> None:
    first = troubles(seen([effect("decode")]))
    joined = troubles(
        seen([effect("decode")], warnings=[warned()], gpu=HOT), first, NOW_US + 5 * MINUTE_US
    )
    (left,) = troubles(
        seen(warnings=[warned()], gpu=HOT, calm=("decode",)), joined, NOW_US + HOUR_US
    )
    assert (left.kind, left.subject, left.severity) == (Kind.THERMAL, "GPU-1", Severity.WARNING)


def test_a_lowered_limit_at_which_the_clock_is_as_ever_explains_nothing() -> None:
    drafts = ServerComparison(spec_acceptance=Pair(0.7, 0.4))
    found = troubles(
        seen([effect("decode")], warnings=[warned("power_limit", Cause.POWER_CAP)], flow=drafts)
    )
    assert {(t.kind, t.cause) for t in found} == {
        (Kind.POWER, Cause.POWER_CAP),
        (Kind.SPEED, Cause.SPECULATION),
    }


def test_the_same_temperatures_are_told_once() -> None:
    told = {
        "thermal_duty": "is held back for heat 96 % of the time",
        "margin": "works 1 °C from where it slows itself down",
    }
    signs = [
        replace(
            warned(sign),
            summary=f"GPU GPU-1 {what}: 86 °C, memory 94 °C, 1 °C left. Look at fans.",
        )
        for sign, what in told.items()
    ]
    (found,) = findings(seen(warnings=signs, gpu=HOT))
    assert found.summary.endswith("Look at fans. It works 1 °C from where it slows itself down.")
    assert found.summary.count("memory 94 °C") == 1


def test_a_sentence_that_begins_with_it_is_about_the_gpu_of_the_sentence_before() -> None:
    cut, room = "cuts its clock in half or more", "works 1 °C from where it slows itself down"
    signs = [
        replace(
            warned(sign, severity=severity, uuid=uuid),
            summary=f"GPU {uuid} {what}: {read}. Look at fans.",
        )
        for sign, severity, uuid, what, read in (
            ("hw_thermal", Severity.PAGE, "GPU-1", cut, "90 °C, memory 94 °C"),
            ("hw_thermal", Severity.PAGE, "GPU-2", cut, "91 °C, memory 95 °C"),
            ("margin", Severity.WARNING, "GPU-1", room, "90 °C, memory 94 °C"),
        )
    ]
    (found,) = findings(seen(warnings=signs, gpu=HOT))
    assert found.summary.endswith(f"GPU GPU-2 {cut}: 91 °C, memory 95 °C. GPU GPU-1 {room}.")
    (of_the_last,) = findings(
        seen(
            warnings=[
                *signs[:2],
                replace(signs[2], subject="GPU-2", summary=f"GPU GPU-2 {room}: 91 °C"),
            ],
            gpu=HOT,
        )
    )
    assert of_the_last.summary.endswith(f"memory 95 °C. It {room}.")


def test_two_gpus_that_are_equally_hot_are_both_told_how_hot() -> None:
    signs = [
        replace(warned(uuid=uuid), summary=f"GPU {uuid} is held back: 90 °C. Look at fans.")
        for uuid in ("GPU-1", "GPU-2")
    ]
    (found,) = findings(seen(warnings=signs, gpu=HOT))
    assert found.summary.endswith("GPU GPU-2 is held back: 90 °C.")


def test_what_is_felt_is_dated_by_itself_and_not_by_the_gpu_s_first_sign() -> None:
    (found,) = findings(
        seen([effect("decode", since_us=NOW_US + 2 * HOUR_US)], warnings=[warned()], gpu=HOT)
    )
    assert "decode rate -8.0 % (-9.0 to -7.0) since 2023-11-15 00:13 UTC" in found.summary


def test_a_level_that_breaks_because_the_gpu_is_hot_belongs_to_the_heat() -> None:
    early = troubles(seen([effect("decode")], warnings=[warned()], gpu=HOT))
    (found,) = findings(seen([effect("decode")], {"chat": effect("level")}, [warned()], HOT), early)
    assert found.kind is Kind.THERMAL
    assert "chat" in found.evidence["levels"]


def test_a_level_that_broke_first_stays_open_when_the_cause_is_found() -> None:
    first = troubles(seen(levels={"chat": effect("level")}))
    assert first[0].cause is Cause.UNEXPLAINED
    found = findings(seen([effect("decode")], {"chat": effect("level")}, [warned()], HOT), first)
    assert {(f.kind, f.cause) for f in found} == {
        (Kind.THERMAL, Cause.HEAT),
        (Kind.SERVICE_LEVEL, Cause.HEAT),
    }


def test_a_cause_may_be_refined_in_the_first_hour() -> None:
    first = troubles(seen([effect("decode")]))
    assert first[0].cause is Cause.UNEXPLAINED
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    (found,) = findings(seen([effect("decode")], gpu=weak), first, NOW_US + HOUR_US // 2)
    assert found.cause is Cause.KERNEL_FALLBACK


def test_later_a_cause_stays_although_its_proof_has_faded() -> None:
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    first = troubles(seen([effect("decode")], gpu=weak))
    (found,) = findings(seen([effect("decode")]), first, NOW_US + 5 * HOUR_US)
    assert found.cause is Cause.KERNEL_FALLBACK


def test_a_cause_that_is_seen_not_to_be_gives_way_to_one_that_is_proven() -> None:
    idle = replace(COOL, top_util=Pair(0.95, 0.6))
    first = troubles(seen([effect("decode")], gpu=idle))
    assert first[0].cause is Cause.HOST_BOUND
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    (found,) = findings(seen([effect("decode")], gpu=weak), first, NOW_US + 5 * HOUR_US)
    assert found.cause is Cause.KERNEL_FALLBACK


def test_a_lowered_power_limit_is_not_told_a_second_time_as_a_changed_configuration() -> None:
    limit = warned("power_limit", Cause.POWER_CAP)
    (found,) = findings(seen(warnings=[limit], changed_us=NOW_US))
    assert (found.kind, found.cause) == (Kind.POWER, Cause.POWER_CAP)


def test_a_change_of_the_digest_is_told_while_it_is_compared() -> None:
    assert findings(seen(changed_us=NOW_US)) == []
    (found,) = findings(seen(changed_us=NOW_US), now_us=NOW_US + 10 * MINUTE_US)
    assert (found.kind, found.subject, found.severity) == (
        Kind.CONFIG_CHANGE,
        "fingerprint",
        Severity.INFO,
    )
    assert "being compared" in found.summary


def test_a_change_after_which_decoding_is_slower_says_by_how_much() -> None:
    (found,) = findings(seen([effect("decode", -4.0)], changed_us=NOW_US))
    assert (found.kind, found.subject, found.cause) == (
        Kind.CONFIG_CHANGE,
        "fingerprint",
        Cause.CONFIG_CHANGE,
    )
    assert found.severity is Severity.WARNING
    assert "decode rate -4.0 % (-5.0 to -3.0)" in found.summary


def test_longer_prompts_are_a_reason_to_look_at_the_probes() -> None:
    (found,) = findings(seen(workload=(NOW_US, 1000.0, 4000.0)))
    assert (found.kind, found.severity, found.cause) == (Kind.WORKLOAD_SHIFT, Severity.INFO, None)
    assert "4000 tokens a request" in found.summary
    assert found.evidence["change_pct"] == 300.0


def test_the_sentence_of_a_slow_start_says_how_much_since_when_why_and_what_to_do() -> None:
    found = findings(seen([effect("start", -20.0, Severity.PAGE), effect("decode", -20.0)]))[0]
    assert found.kind is Kind.SLOW_START
    for part in (
        "decode rate -20.0 % (-21.0 to -19.0)",
        "since 2023-11-14 22:13 UTC",
        "landed slow",
        "start the process again",
    ):
        assert part in found.summary
    assert found.summary.count("decode rate") == 1


def test_what_is_unexplained_says_which_reading_would_tell() -> None:
    blind = GpuComparison("GPU-1", temp_c=Pair(55.0, 55.0), sm_clock_mhz=Pair(1980.0, 1700.0))
    (found,) = findings(seen([effect("decode")], gpu=blind))
    assert found.cause is Cause.UNEXPLAINED
    assert any("DCGM_FI_DEV_POWER_VIOLATION" in text for text in found.evidence["missing"])
    assert found.evidence["missing"][0] in found.summary
    assert len(found.summary) < 600


def test_the_proof_stands_in_the_sentence_before_and_now() -> None:
    weak = replace(COOL, top_power_w=Pair(400.0, 320.0))
    (found,) = findings(seen([effect("decode")], gpu=weak))
    assert "power at full work 400 → 320 W" in found.summary
    assert "SM clock 1980 MHz as before" in found.summary
