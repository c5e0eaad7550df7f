"""One finding of each kind and cause outside of drift, as its judge returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from monitor.judge.availability import (
    judge_hung,
    judge_no_samples,
    judge_server_down,
    judge_unmeasured,
)
from monitor.judge.gpu_faults import judge_gpus
from monitor.judge.identity import config_change
from monitor.judge.quality.flips import Flips
from monitor.judge.quality.pinning import judge_pin_expiry
from monitor.judge.quality.unjudged import judge_unjudged
from monitor.judge.quality.verdicts import (
    judge_model_shift,
    judge_near_ties,
    judge_quality,
    judge_together,
)
from monitor.model import (
    DRIVER,
    Change,
    Contact,
    Finding,
    GpuEvent,
    GpuFault,
    GpusView,
    Outcome,
    Phase,
    Pin,
    PinnedOutput,
    Probe,
    ReadProblem,
    Sample,
    Verdict,
)
from monitor.show.findings.texts import GpuName, GpuNames

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
UUID = "GPU-a1005f3e-0c2d-4f55-9a4f-2f1e8a6b7c01"
NAMES = GpuNames({UUID: GpuName(0, "H100")})
SKY = Probe("sky", "chat", "chat", (), None, 64, {}, 60.0, None, 5.0, 60.0, pinned=True)
PIN = Pin(
    id=1,
    target="local",
    probe="sky",
    revision="",
    fingerprint=None,
    reason="checked by hand",
    author="ops",
    created_at=NOON - timedelta(days=90),
    expires_at=NOON,
    outputs=(PinnedOutput("Paris", ("Paris",), (), (-0.1,), "stop", count=10),),
    prompt_tokens=9,
    noise_nat=0.01,
)


def _sample(minute: int, verdict: Verdict = Verdict.FAIL, probe: str = "sky") -> Sample:
    return Sample(
        target="local",
        probe=probe,
        traffic_class="chat",
        started_at=NOON + minute * MINUTE,
        phase=Phase.WARM,
        outcome=Outcome.OK,
        verdict=verdict,
        pin=1,
        running=0.0,
        logprob_shift=0.5,
        stale=False,
    )


def _run(outcome: Outcome, minute: int) -> Sample:
    return Sample(
        target="local",
        probe="sky",
        traffic_class="chat",
        started_at=NOON + minute * MINUTE,
        phase=Phase.WARM,
        outcome=outcome,
        verdict=Verdict.UNKNOWN,
        e2e_ms=12_000.0,
    )


def _gpus(
    subject: str, fault: GpuFault | None, reason: str = "", xid: int | None = None
) -> Finding:
    problems = {} if fault is None else {subject: ReadProblem(fault, reason, NOON)}
    view = GpusView(frozenset({UUID}), frozenset(), problems)
    events = [] if xid is None else [GpuEvent(UUID, NOON, xid)]
    return judge_gpus("local", view, events, [], NOON + 2 * MINUTE)[0]


def _blind(subject: str, reason: str) -> Finding:
    return _gpus(subject, GpuFault.UNREADABLE if subject == UUID else GpuFault.SOURCE, reason)


def _mismatch() -> Finding:
    problems = {DRIVER: ReadProblem(GpuFault.MISMATCH, "versions differ", NOON)}
    view = GpusView(frozenset({UUID}), frozenset(), problems)
    return judge_gpus("local", view, [], [], NOON)[0]


def _only(found: list[Finding]) -> Finding:
    (one,) = found
    return one


def _some(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def _quality(stale: bool = False) -> Finding:
    runs = [_sample(minute) for minute in range(3)]
    if stale:
        runs = [replace(run, stale=True) for run in runs]
    detail = "vendor: expected Acme, got Globex"
    return _only(judge_quality("local", [SKY], {"sky": runs}, lambda _: detail))


def _together() -> Finding:
    state = Flips(10.0, dict.fromkeys(["sky", "invoice", "code"], 2), alarmed=True)
    return _some(judge_together("local", state, NOON, 72))


def _shift() -> Finding:
    names = ["sky", "invoice", "code", "sum"]
    pins = {1: PIN}
    samples = [_sample(n, Verdict.PASS, probe) for n in range(3) for probe in names]
    return _some(judge_model_shift("local", samples, pins))


def _near_ties() -> Finding:
    ties = [_sample(n, Verdict.NEAR_TIE) for n in range(12)]
    passes = [_sample(n, Verdict.PASS) for n in range(12, 50)]
    return _some(judge_near_ties("local", ties + passes))


def _no_pin() -> Finding:
    runs = [_sample(n, Verdict.UNPINNED) for n in range(4)]
    return _only(judge_unjudged("local", [SKY], runs, lambda _: "no pin is recorded for it"))


def _unreadable() -> Finding:
    runs = [_sample(n, Verdict.UNKNOWN) for n in range(4)]
    detail = (
        "the answer could not be judged (TypeError: 'NoneType' object is not iterable); please "
        "report it with the probe and the answer"
    )
    return _only(judge_unjudged("local", [SKY], runs, lambda _: detail))


def _unmeasured(detail: str | None) -> Finding:
    runs = [_run(Outcome.HTTP_ERROR, n) for n in range(3)]
    return _only(judge_unmeasured("local", runs, {} if detail is None else {"sky": detail}))


def _changed(*changes: Change, **evidence: object) -> Finding:
    return config_change("local", changes, NOON, evidence)


ENVIRONMENT = Change(
    "environment",
    {"VLLM_USE_V1": "1", "CUDA_VISIBLE_DEVICES": "0"},
    {"VLLM_USE_V1": "1", "CUDA_VISIBLE_DEVICES": "1", "VLLM_ATTENTION_BACKEND": "FLASHINFER"},
)
VERSION = Change("vllm_version", "0.31.0", "0.32.0")
COMPARISON = {
    "metric": "decode_tok_s",
    "change_pct": -12.4,
    "low_pct": -14.0,
    "high_pct": -10.9,
}
LOST = (
    "the driver has lost the GPU; look for Xid 79 in the kernel log (dmesg), then reset the GPU or "
    "reboot"
)
HUNG_DRIVER = (
    "NVML has not answered for 12 s (nvmlDeviceGetTemperature); the driver may be hung: see dmesg "
    "and nvidia-smi"
)
#: By the name of the golden file: kind, and cause or variant.
EXAMPLES: Mapping[str, Finding] = {
    "server_down-server_fault": _some(
        judge_server_down(
            "local",
            [
                Contact(NOON + timedelta(seconds=s), False, "the metrics page was refused")
                for s in (0, 15)
            ],
        )
    ),
    "hung-server_fault": _some(judge_hung("local", [_run(Outcome.HUNG, 0)])),
    "no_samples": _only(
        judge_no_samples("local", {"sky": MINUTE}, {"sky": NOON}, NOON, NOON + 5 * MINUTE)
    ),
    "unknown_lasting-no_answer": _unmeasured("HTTP 401: Unauthorized"),
    "unknown_lasting-no_detail": _unmeasured(None),
    "unknown_lasting-no_pin": _no_pin(),
    "unknown_lasting-not_judged": _unreadable(),
    "gpu_fault-xid": _gpus(UUID, None, xid=79),
    "gpu_fault-lost": _gpus(UUID, GpuFault.LOST, LOST, xid=79),
    "gpu_fault-reset": _gpus(
        "GPU 0",
        GpuFault.RESET,
        "the GPU must be reset before it can be used: nvidia-smi --gpu-reset, or reboot",
    ),
    "telemetry_blind-gpu": _blind(UUID, "NVML reports: Unknown Error"),
    "telemetry_blind-driver": _blind(DRIVER, HUNG_DRIVER),
    "driver_mismatch": _mismatch(),
    "config_change-one_field": _changed(VERSION, digest_before="a", digest_after="b"),
    "config_change-several_fields": _changed(VERSION, ENVIRONMENT),
    "config_change-slower": _changed(VERSION, felt=True, comparison=COMPARISON),
    "quality-answers_changed": _quality(),
    "quality-config_change": _quality(stale=True),
    "quality-several_probes": _together(),
    "quality-log_probabilities": _shift(),
    "near_ties-answers_changed": _near_ties(),
    "pin_expired": _only(judge_pin_expiry("local", [SKY], [PIN], None, NOON)),
}
