"""The daemon's own Prometheus metrics: prefix `vllm_canary_`, base units (seconds, tokens)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from monitor.__about__ import __version__
from monitor.model import Incident, Kind, Sample, ServerPage, Severity

PREFIX = "vllm_canary_"
TTFT_EDGES_S = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


class Exporter:
    """Counts what the daemon measures. A canary without a first token is counted in `samples_total`
    by its outcome, never in a latency.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        probe = ("target", "probe", "class")
        gauge, counter = self._gauge, self._counter
        gauge("build_info", "Version of vllm-canary.", "version").labels(__version__).set(1)
        self._samples = counter(
            "samples", "Canaries by outcome and verdict.", *probe, "phase", "outcome", "verdict"
        )
        self._ttft = Histogram(
            PREFIX + "ttft_seconds",
            "Time to first token of canaries that had one.",
            [*probe, "phase"],
            buckets=TTFT_EDGES_S,
            registry=self.registry,
        )
        self._rate = gauge(
            "decode_tokens_per_second",
            "Decode rate of the last canary that had one.",
            *probe,
            "phase",
        )
        self._last = gauge("last_sample_timestamp_seconds", "When the last canary started.", *probe)
        self._last_ok = gauge(
            "last_ok_timestamp_seconds", "When the last good canary started.", *probe
        )
        self._lag = gauge(
            "observer_lag_seconds",
            "Longest delay of the monitor's own event loop during the last canary.",
            "target",
        )
        self._up = gauge(
            "metrics_page_up", "1 if the server's metrics page could be read.", "target"
        )
        self._skipped = counter(
            "skipped_runs", "Scheduled runs that were skipped.", "target", "reason"
        )
        self._open = gauge("incidents_open", "Open incidents.", "target", "kind", "severity")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def sample(self, sample: Sample) -> None:
        """Counts one sample."""
        probe = (sample.target, sample.probe, sample.traffic_class)
        self._samples.labels(
            *probe, sample.phase.value, sample.outcome.value, sample.verdict.value
        ).inc()
        self._last.labels(*probe).set(sample.started_at.timestamp())
        if sample.outcome.value == "ok":
            self._last_ok.labels(*probe).set(sample.started_at.timestamp())
        if sample.ttft_ms is not None:
            self._ttft.labels(*probe, sample.phase.value).observe(sample.ttft_ms / 1000)
        if sample.decode_tok_s is not None:
            self._rate.labels(*probe, sample.phase.value).set(sample.decode_tok_s)
        if sample.observer_lag_ms is not None:
            self._lag.labels(sample.target).set(sample.observer_lag_ms / 1000)

    def page(self, target: str, page: ServerPage) -> None:
        """Records one reading of a server's metrics page."""
        self._up.labels(target).set(1 if page.state == "ok" else 0)

    def skipped(self, target: str, reason: str, count: int) -> None:
        """Counts scheduled runs that were skipped."""
        self._skipped.labels(target, reason).inc(count)

    def incidents(self, target: str, incidents: Iterable[Incident]) -> None:
        """Sets the number of open incidents of a target. A kind that was open before becomes 0; one
        that never was is not exported.
        """
        counts: dict[tuple[Kind, Severity], int] = {}
        for incident in incidents:
            key = (incident.kind, incident.severity)
            counts[key] = counts.get(key, 0) + 1
        for metric in self._open.collect():
            for shown in metric.samples:
                if shown.labels["target"] == target:
                    self._open.labels(target, shown.labels["kind"], shown.labels["severity"]).set(0)
        for (kind, severity), count in counts.items():
            self._open.labels(target, kind.value, severity.value).set(count)

    def text(self) -> bytes:
        """Returns the metrics page."""
        return generate_latest(self.registry)
