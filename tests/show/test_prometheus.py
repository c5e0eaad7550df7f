"""The daemon's own figures as Prometheus reads them."""

from __future__ import annotations

import re

from histories import NOON, a_sample
from prometheus_client.parser import text_string_to_metric_families

from monitor.model import Incident, Kind, Outcome, Phase, ServerPage, Severity
from monitor.show.prometheus import Exporter


def value(exporter: Exporter, name: str, **labels: str) -> float | None:
    """A figure of the page; None where it is not there. Labels that are not given may be
    anything.
    """
    families = text_string_to_metric_families(exporter.text().decode())
    found = [s for family in families for s in family.samples if s.name == f"vllm_canary_{name}"]
    return next((s.value for s in found if labels.items() <= s.labels.items()), None)


def names(exporter: Exporter) -> set[str]:
    """What is on the page."""
    families = text_string_to_metric_families(exporter.text().decode())
    return {s.name.removeprefix("vllm_canary_") for family in families for s in family.samples}


def test_every_name_has_the_prefix() -> None:
    exporter = Exporter()
    exporter.sample(a_sample())
    assert {
        line.split()[2][:12]
        for line in exporter.text().decode().splitlines()
        if line.startswith("# TYPE")
    } == {"vllm_canary_"}


def test_names_follow_the_conventions_of_prometheus() -> None:
    exporter = Exporter()
    for name, kind in re.findall(r"# TYPE (\S+) (\S+)", exporter.text().decode()):
        assert re.fullmatch(r"[a-z_]+", name)
        assert name.endswith("_total") == (kind == "counter") or name.endswith("_created")
        assert not name.endswith(("_ms", "_milliseconds"))


def test_a_sample_counts_by_outcome_and_its_latency_in_seconds() -> None:
    exporter = Exporter()
    exporter.sample(a_sample(ttft_ms=40.0, decode_tok_s=33.0))
    sky = {"target": "local", "probe": "sky", "class": "chat"}
    assert value(exporter, "samples_total", phase="warm", outcome="ok", verdict="pass", **sky) == 1
    assert value(exporter, "ttft_seconds_sum", phase="warm", **sky) == 0.04
    assert value(exporter, "decode_tokens_per_second", phase="warm", **sky) == 33.0
    assert value(exporter, "last_sample_timestamp_seconds", **sky) == NOON.timestamp()
    assert value(exporter, "last_ok_timestamp_seconds", **sky) == NOON.timestamp()


def test_a_canary_without_a_first_token_adds_to_no_latency_and_is_no_good_sample() -> None:
    exporter = Exporter()
    exporter.sample(a_sample(outcome=Outcome.QUEUE_CAP, ttft_ms=None))
    assert value(exporter, "samples_total", outcome="queue_cap") == 1
    assert (
        names(exporter) & {"ttft_seconds_sum", "ttft_seconds_count", "last_ok_timestamp_seconds"}
        == set()
    )


def test_phases_are_never_mixed() -> None:
    exporter = Exporter()
    exporter.sample(a_sample(phase=Phase.COLD, ttft_ms=9000.0))
    exporter.sample(a_sample(ttft_ms=40.0))
    assert value(exporter, "ttft_seconds_sum", phase="cold") == 9.0
    assert value(exporter, "ttft_seconds_sum", phase="warm") == 0.04


def test_what_was_never_measured_is_not_there_rather_than_zero() -> None:
    assert names(Exporter()) == {"build_info"}


def test_an_open_incident_is_counted_and_goes_to_zero_when_it_closes_for_its_target_alone() -> None:
    exporter = Exporter()
    down = Incident(1, Kind.SERVER_DOWN, "local", "local", Severity.PAGE, "down", NOON)
    exporter.incidents("local", [down])
    exporter.incidents("remote", [down])
    exporter.incidents("local", [])
    assert (
        value(exporter, "incidents_open", target="local", kind="server_down", severity="page") == 0
    )
    assert (
        value(exporter, "incidents_open", target="remote", kind="server_down", severity="page") == 1
    )


def test_whether_the_metrics_page_could_be_read_is_a_figure() -> None:
    exporter = Exporter()
    exporter.page("local", ServerPage(at=NOON, state="ok"))
    assert value(exporter, "metrics_page_up", target="local") == 1
    exporter.page("local", ServerPage(at=NOON, state="refused"))
    assert value(exporter, "metrics_page_up", target="local") == 0


def test_skipped_runs_are_counted_with_their_reason() -> None:
    exporter = Exporter()
    exporter.skipped("local", "pause", 3)
    exporter.skipped("local", "pause", 1)
    assert value(exporter, "skipped_runs_total", target="local", reason="pause") == 4


def test_a_label_with_quotes_and_line_breaks_does_not_break_the_page() -> None:
    exporter = Exporter()
    exporter.skipped('a"b\nc\\d', "pause", 1)
    assert value(exporter, "skipped_runs_total", target='a"b\nc\\d') == 1
