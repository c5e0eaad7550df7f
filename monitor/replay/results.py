"""What a replay found, as JSON objects and as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from monitor.replay.incidents import Entry, as_time, as_us
from monitor.replay.replay import Replay
from monitor.show.driftplot import Found
from monitor.show.findings import paragraph
from monitor.show.records import iso
from monitor.show.terminal import STYLES, console, local_time, number, table
from monitor.text import printable

FIGURES = ("metric", "change_pct", "low_pct", "high_pct")
COUNTS = ("samples", "server_readings", "gpu_readings")  # of a target's record


def incident_record(entry: Entry) -> dict[str, Any]:
    """One incident. `paged_at`: when it first was loud enough to wake a person."""
    finding = entry.finding
    return {
        "target": finding.target,
        "kind": finding.kind.value,
        "subject": finding.subject,
        "severity": entry.severity.value,
        "cause": None if finding.cause is None else finding.cause.value,
        "opened_at": _time(entry.opened_us),
        "closed_at": _time(entry.closed_us),
        "paged_at": _time(entry.pages_us),
        "since": iso(finding.since),
        **{name: entry.figure(name) for name in FIGURES},
        "summary": paragraph(finding),
        "evidence": dict(finding.evidence),
    }


def target_record(replay: Replay, begin_us: int | None) -> dict[str, Any]:
    """What was replayed of one target, and what of detection worked at the end of it."""
    detection = [asdict(part) for part in replay.detector.armed(replay.settings)]
    ends = {"begin": _time(begin_us), "end": _time(replay.now_us or None)}
    return {"name": replay.target, **ends, **replay.counts, "detection": detection}


def _time(us: int | None) -> str | None:
    return None if us is None else iso(as_time(us))


def found_of(entries: Sequence[Entry]) -> list[Found]:
    """Incidents as they are drawn."""
    return [
        Found(
            as_us(e.finding.since), e.closed_us, e.severity.value, _title(e), paragraph(e.finding)
        )
        for e in entries
    ]


def _title(entry: Entry) -> str:
    cause = "" if entry.finding.cause is None else f", {entry.finding.cause.value}"
    return f"{entry.finding.kind.value} of {entry.finding.subject}{cause}"


def print_report(report: dict[str, Any]) -> None:
    """For people."""
    out = console()
    for target in report["targets"]:
        counted = [(name.replace("_", " "), target[name]) for name in COUNTS]
        read = ", ".join(f"{count:,} {name}" for name, count in counted if count)
        out.print(f"{printable(target['name'])}: {read or 'nothing to read'}", style="bold")
        for part in target["detection"]:
            if not part["armed"]:
                out.print(
                    printable(f"  not armed at the end: {part['what']} ({part['detail']})"),
                    style="dim",
                )
    for note in report["notes"]:
        out.print(printable(note), style="yellow")
    found = report["incidents"]
    if not found:
        judged = any(target[name] for target in report["targets"] for name in COUNTS)
        out.print("no incidents" if judged else "nothing was judged")
        return
    out.print(
        table(
            [
                "opened",
                "closed",
                "target",
                "kind",
                "subject",
                "severity",
                "cause",
                "metric",
                "change %",
            ],
            map(_row, found),
        )
    )
    for incident in found:
        out.print(
            f"\n{incident['severity']}  {printable(incident['summary'])}",
            style=STYLES.get(incident["severity"], ""),
        )


def _row(i: dict[str, Any]) -> list[Any]:
    closed = (
        "open" if i["closed_at"] is None else local_time(datetime.fromisoformat(i["closed_at"]))
    )
    named = [i[name] or "" for name in ("target", "kind", "subject", "severity", "cause", "metric")]
    return [local_time(datetime.fromisoformat(i["opened_at"])), closed, *named, _change(i)]


def _change(i: dict[str, Any]) -> str:
    if i["change_pct"] is None:
        return ""
    known = i["low_pct"] is not None and i["high_pct"] is not None
    interval = f" ({number(i['low_pct'], 1)} to {number(i['high_pct'], 1)})" if known else ""
    return f"{number(i['change_pct'], 1)}{interval}"
