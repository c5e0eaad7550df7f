"""One incident on a terminal: changes and evidence with before and now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from drift_examples import EXAMPLES
from findings_examples import ENVIRONMENT

from monitor.model import Cause, Incident, Kind, Severity
from monitor.show.evidence import EvidenceRow, evidence_rows
from monitor.show.findings import GpuNames
from monitor.show.incidents import print_incident

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def an_incident(**fields: Any) -> Incident:
    known: dict[str, Any] = {
        "id": 12,
        "kind": Kind.CONFIG_CHANGE,
        "target": "local",
        "subject": "environment",
        "severity": Severity.WARNING,
        "summary": "local: the configuration changed.",
        "opened_at": NOON,
        "cause": Cause.CONFIG_CHANGE,
    }
    return Incident(**known | fields)


def printed(incident: Incident, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The words of each line."""
    print_incident(
        incident, [{"at": NOON, "event": "opened", "text": incident.summary}], GpuNames()
    )
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_of_a_changed_mapping_only_the_keys_that_differ_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(an_incident(changes=(ENVIRONMENT,)), capsys)
    assert ["change", "before", "now"] in lines
    assert ["environment.CUDA_VISIBLE_DEVICES", "0", "1"] in lines
    assert ["environment.VLLM_ATTENTION_BACKEND", "–", "FLASHINFER"] in lines
    assert not any("VLLM_USE_V1" in word for line in lines for word in line)


def test_the_alert_comes_first_and_the_history_last(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(an_incident(), capsys)
    assert " ".join(lines[1]) == "local: the configuration changed."
    assert " ".join(lines[-1][2:]) == "opened local: the configuration changed."


@pytest.mark.parametrize(
    ("evidence", "rows"),
    [
        (
            {"readings": {"temp_c": {"before": 61.0, "now": 86.0}}},
            [EvidenceRow("temp (°C)", "61", "86")],
        ),
        (
            {"digest_before": "a1", "digest_after": "b2"},
            [EvidenceRow("digest", "a1", "b2")],
        ),
        (
            {"thermal_duty": 0.9, "usual_thermal_duty": 0.0},
            [EvidenceRow("thermal duty", "0", "0.9")],
        ),
        (
            {
                "metric": "decode_tok_s",
                "change_pct": -8.0,
                "low_pct": -9.0,
                "high_pct": -7.0,
                "effects": [
                    {
                        "channel": "decode",
                        "metric": "decode_tok_s",
                        "change_pct": -8.0,
                        "low_pct": -9.0,
                        "high_pct": -7.0,
                        "since": "2026-12-01T12:00:00+00:00",
                    }
                ],
            },
            [
                EvidenceRow(
                    "decode (tokens/s)",
                    None,
                    "−8.0 % (−9.0 to −7.0) since 2026-12-01T12:00:00+00:00",
                )
            ],
        ),
        (
            {"comparison": {"metric": "ttft_ms", "change_pct": 12.0}, "felt": True},
            [
                EvidenceRow("comparison ttft (ms)", None, "+12.0 %"),
                EvidenceRow("felt", None, "yes"),
            ],
        ),
        (
            {"xids": [48, 79], "last_error": None, "failed_twice": []},
            [
                EvidenceRow("xids", None, "48, 79"),
                EvidenceRow("last error", None, "–"),
                EvidenceRow("failed twice", None, "–"),
            ],
        ),
        (
            {"of_another_version": {"a": {"b": 1}}, "list": [{"x": 1}, 2]},
            [
                EvidenceRow("of another version a b", None, "1"),
                EvidenceRow("list x", None, "1"),
                EvidenceRow("list list", None, "2"),
            ],
        ),
    ],
    ids=["readings", "digests", "usual", "effects", "comparison", "lists", "unknown keys"],
)
def test_evidence_is_rows_with_before_and_now(
    evidence: dict[str, Any], rows: list[EvidenceRow]
) -> None:
    assert evidence_rows(evidence) == rows


def test_a_finding_of_drift_shows_its_own_tables(capsys: pytest.CaptureFixture[str]) -> None:
    hot = EXAMPLES["thermal-heat"]
    incident = an_incident(
        kind=hot.kind, subject=hot.subject, cause=hot.cause, evidence=hot.evidence, changes=()
    )
    lines = printed(incident, capsys)
    assert ["reading", "before", "now"] in lines
    assert ["core,", "°C", "55", "86"] in lines
    assert ["evidence", "before", "now"] not in lines
