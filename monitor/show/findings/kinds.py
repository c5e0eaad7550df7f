"""The renderer of each kind of finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monitor.model import Finding, Kind
from monitor.show.findings import availability, drift, gpu_faults, identity, quality
from monitor.show.findings.texts import GpuNames, Texts

Renderer = Callable[[Finding, GpuNames], Texts]


def _config_change(finding: Finding, names: GpuNames) -> Texts:
    """Without changed fields, only the drift detector knows of the change."""
    by_fields = identity.config_change if finding.changes else drift.config_change
    return by_fields(finding, names)


RENDERERS: Mapping[Kind, Renderer] = {
    Kind.SERVER_DOWN: availability.server_down,
    Kind.HUNG: availability.hung,
    Kind.NO_SAMPLES: availability.no_samples,
    Kind.UNKNOWN_LASTING: availability.unknown_lasting,
    Kind.GPU_FAULT: gpu_faults.gpu_fault,
    Kind.TELEMETRY_BLIND: gpu_faults.telemetry_blind,
    Kind.DRIVER_MISMATCH: gpu_faults.driver_mismatch,
    Kind.CONFIG_CHANGE: _config_change,
    Kind.SPEED: drift.speed,
    Kind.THERMAL: drift.speed,
    Kind.POWER: drift.speed,
    Kind.SLOW_START: drift.speed,
    Kind.SERVICE_LEVEL: drift.service_level,
    Kind.WORKLOAD_SHIFT: drift.workload_shift,
    Kind.QUALITY: quality.quality,
    Kind.NEAR_TIES: quality.near_ties,
    Kind.PIN_EXPIRED: quality.pin_expired,
}
