"""`status`: the current state, good, bad or unknown. Missing samples are never good."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Console
from rich.text import Text

from monitor.alert import incidents, outbox
from monitor.cli.common import database_of, now_utc, print_json
from monitor.config.cron import intervals_of
from monitor.errors import REGRESSION, UNMEASURED
from monitor.judge.availability import judge_no_samples
from monitor.model import Incident, Outcome, Sample, Severity, Verdict
from monitor.show.records import incident_record, sample_record
from monitor.show.terminal import STYLES, console, local_time, milliseconds, number, table
from monitor.store import detectors, queries
from monitor.store.database import reading
from monitor.text import printable

CODES = {"good": 0, "bad": REGRESSION, "unknown": UNMEASURED}
DAY = timedelta(days=1)
LOUD = frozenset({Severity.WARNING, Severity.PAGE})
HEADINGS = (
    *("probe", "class", "last", "phase", "outcome", "verdict"),
    *("TTFT ms", "tokens/s", ""),
)


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One target. `last_samples`: one of each watched probe. `learned`: what drift detection has
    learned, as the daemon last stored it; None before it has.
    """

    name: str
    url: str
    status: str
    overdue: Sequence[str]
    skipped_24h: Mapping[str, int]
    last_samples: Sequence[Sample]
    learned: detectors.DetectorSummary | None


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that `status` prints. `undelivered`: notifications of the last 24 h."""

    targets: Sequence[TargetStatus]
    incidents: Sequence[Incident]
    undelivered: int

    @property
    def worst(self) -> str:
        """Bad before unknown before good; unknown if no target is watched."""
        states = {target.status for target in self.targets} or {"unknown"}
        return next(state for state in ("bad", "unknown", "good") if state in states)


def run(args: Namespace) -> int:
    """Prints the state of every target and the open incidents."""
    status = read_status(database_of(args), now_utc())
    if args.json:
        print_json(_record(status))
    else:
        _print(status)
    return CODES[status.worst]


def read_status(database: str, now: datetime) -> Status:
    """The state as the history tells it."""
    with reading(database) as connection:
        open_now = incidents.open_incidents(connection)
        learned = detectors.summaries(connection)
        targets = [
            _target(
                row,
                queries.last_sample_of_each_probe(connection, row.name),
                queries.skipped(connection, row.id, now - DAY),
                [incident for incident in open_now if incident.target == row.name],
                learned.get(row.id),
                now,
            )
            for row in queries.targets(connection)
        ]
        return Status(targets, open_now, outbox.undelivered(connection, now - DAY))


def _target(
    row: queries.TargetRow,
    last: Sequence[Sample],
    skipped: Mapping[str, int],
    open_here: Sequence[Incident],
    learned: detectors.DetectorSummary | None,
    now: datetime,
) -> TargetStatus:
    """A target whose probes are overdue is unknown, whatever its last samples were."""
    started = {s.probe: s.started_at for s in last}
    intervals = intervals_of(row.schedule, started, row.first_seen)
    overdue = judge_no_samples(row.name, intervals, started, row.first_seen, now)
    watched = [s for s in last if s.probe in row.schedule] if row.schedule else last
    loud = any(incident.severity in LOUD for incident in open_here)
    doubtful = bool(overdue) or not watched or any(map(_failed, watched))
    return TargetStatus(
        name=row.name,
        url=row.url,
        status="bad" if loud else "unknown" if doubtful else "good",
        overdue=[finding.subject for finding in overdue],
        skipped_24h=skipped,
        last_samples=watched,
        learned=learned,
    )


def _failed(sample: Sample) -> bool:
    """Whether the last canary failed: too little for an incident, but not good either."""
    return sample.outcome is not Outcome.OK or sample.verdict is Verdict.FAIL


def _record(status: Status) -> dict[str, object]:
    return {
        "status": status.worst,
        "targets": [_target_record(target) for target in status.targets],
        "incidents": [incident_record(incident) for incident in status.incidents],
        "undelivered": status.undelivered,
    }


def _target_record(target: TargetStatus) -> dict[str, object]:
    learned = target.learned
    return {
        "name": target.name,
        "url": target.url,
        "status": target.status,
        "overdue": target.overdue,
        "skipped_24h": target.skipped_24h,
        "last_samples": [sample_record(sample) for sample in target.last_samples],
        "detection": [] if learned is None else [dict(part) for part in learned.armed],
        "detection_note": None if learned is None else learned.note,
    }


def _print(status: Status) -> None:
    out = console()
    for target in status.targets:
        _print_target(out, target)
    if not status.targets:
        out.print("unknown  no target is monitored yet; start `vllm-canary run`", style="yellow")
    for incident in status.incidents:
        acknowledged = " (acknowledged)" if incident.acknowledged_at else ""
        severity, summary = incident.severity.value, printable(incident.summary)
        line = f"{severity}  #{incident.id} {summary}{acknowledged}"
        out.print(Text(line, STYLES.get(severity, "")))
    if status.undelivered:
        out.print(
            f"notifications not delivered: {status.undelivered}; see `vllm-canary alerts log`",
            style="yellow",
        )


def _print_target(out: Console, target: TargetStatus) -> None:
    state = (target.status, STYLES.get(target.status, ""))
    out.print(Text.assemble(state, f"  {target.name}  {target.url}"))
    out.print(table(HEADINGS, [_cells(s, target.overdue) for s in target.last_samples]))
    if target.learned is not None:
        _print_detection(out, target.learned)
    if target.skipped_24h:
        counts = ", ".join(f"{count} {reason}" for reason, count in target.skipped_24h.items())
        out.print(f"runs skipped in 24 h: {counts}", style="dim")


def _cells(s: Sample, overdue: Sequence[str]) -> list[object]:
    return [
        s.probe,
        s.traffic_class,
        local_time(s.started_at),
        s.phase.value,
        s.outcome.value,
        s.verdict.value,
        milliseconds(s.ttft_ms),
        number(s.decode_tok_s, 1),
        "overdue" if s.probe in overdue else "",
    ]


def _print_detection(out: Console, learned: detectors.DetectorSummary) -> None:
    armed = [part["what"] for part in learned.armed if part["armed"]]
    if armed:
        out.print(f"armed: {printable('; '.join(armed))}", style="dim")
    for part in learned.armed:
        if not part["armed"]:
            text = f"{part['what']}: not armed ({part['detail']})"
            out.print(printable(text), style="dim")
    if learned.note:
        out.print(printable(learned.note), style="dim")
