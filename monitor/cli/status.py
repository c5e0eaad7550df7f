"""`status`: how things are now. Good, bad or unknown; silence is never good."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta
from typing import Any

from monitor.cli.common import config_arguments, database_of, json_argument, now_utc, print_json
from monitor.errors import REGRESSION, UNMEASURED
from monitor.judge.availability import judge_no_samples
from monitor.model import Incident, Sample, Severity

CODES = {"good": 0, "bad": REGRESSION, "unknown": UNMEASURED}
DAY = timedelta(days=1)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the state of every target and what is open."""
    report = read_status(database_of(args), now_utc())
    if args.json:
        print_json(report)
    else:
        _print(report)
    return CODES[report["status"]]


def read_status(database: str, now: datetime) -> dict[str, Any]:
    """The state as JSON. A target whose probes are overdue is unknown, whatever its last figures
    were.
    """
    from monitor.alert import incidents, outbox  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.show.records import incident_record  # noqa: PLC0415
    from monitor.store import detectors, queries  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    with reading(database) as connection:
        rows = queries.targets(connection)
        last = {row.name: queries.last_sample_of_each_probe(connection, row.name) for row in rows}
        skipped = {row.name: queries.skipped(connection, row.id, now - DAY) for row in rows}
        open_now = incidents.open_incidents(connection)
        undelivered = outbox.undelivered(connection, now - DAY)
        learnt = detectors.summaries(connection)
    targets = [
        _target(row, last[row.name], skipped[row.name], open_now, now)
        | _detection(learnt.get(row.id))
        for row in rows
    ]
    return {
        "status": worst([target["status"] for target in targets]),
        "targets": targets,
        "incidents": [incident_record(incident) for incident in open_now],
        "undelivered": undelivered,
    }


def _detection(learnt: Any) -> dict[str, Any]:
    """What of drift detection works and what still learns, as the daemon last noted it; empty
    before it has.
    """
    parts = [] if learnt is None else [dict(part) for part in learnt.armed]
    return {"detection": parts, "detection_note": None if learnt is None else learnt.note}


def worst(states: list[str]) -> str:
    """Bad beats unknown beats good; nothing watched is unknown."""
    return next(
        (state for state in ("bad", "unknown") if state in states), "good" if states else "unknown"
    )


def _target(
    row: Any, last: list[Sample], skipped: dict[str, int], open_now: list[Incident], now: datetime
) -> dict[str, Any]:
    from monitor.config.cron import intervals_of  # noqa: PLC0415
    from monitor.show.records import sample_record  # noqa: PLC0415

    started = {s.probe: s.started_at for s in last}
    overdue = judge_no_samples(
        row.name, intervals_of(row.schedule, started, row.first_seen), started, row.first_seen, now
    )
    loud = [
        i
        for i in open_now
        if i.target == row.name and i.severity in {Severity.WARNING, Severity.PAGE}
    ]
    watched = [s for s in last if s.probe in row.schedule] if row.schedule else last
    # A canary that failed just now, or answered wrong, may be no incident yet; the state is then
    # unknown, never good.
    failed = [s for s in watched if s.outcome.value != "ok" or s.verdict.value == "fail"]
    state = "bad" if loud else "unknown" if overdue or failed or not watched else "good"
    return {
        "name": row.name,
        "url": row.url,
        "status": state,
        "overdue": [finding.subject for finding in overdue],
        "skipped_24h": skipped,
        "last_samples": [sample_record(sample) for sample in watched],
    }


def _print(report: dict[str, Any]) -> None:
    from rich.text import Text  # noqa: PLC0415

    from monitor.show.terminal import (  # noqa: PLC0415
        STYLES,
        console,
        local_time,
        milliseconds,
        number,
        printable,
        table,
    )

    out = console()
    for target in report["targets"]:
        state = target["status"]
        out.print(
            Text.assemble((state, STYLES.get(state, "")), f"  {target['name']}  {target['url']}")
        )
        rows = [
            [
                s["probe"],
                s["class"],
                local_time(datetime.fromisoformat(s["started_at"])),
                s["phase"],
                s["outcome"],
                s["verdict"],
                milliseconds(s["ttft_ms"]),
                number(s["decode_tok_s"], 1),
                "overdue" if s["probe"] in target["overdue"] else "",
            ]
            for s in target["last_samples"]
        ]
        out.print(
            table(
                [
                    "probe",
                    "class",
                    "last",
                    "phase",
                    "outcome",
                    "verdict",
                    "TTFT ms",
                    "tokens/s",
                    "",
                ],
                rows,
            )
        )
        _print_detection(out, target)
        if target["skipped_24h"]:
            told = ", ".join(f"{count} {reason}" for reason, count in target["skipped_24h"].items())
            out.print(f"runs skipped in 24 h: {told}", style="dim")
    if not report["targets"]:
        out.print("unknown  nothing is watched yet; `vllm-canary run` starts it", style="yellow")
    for incident in report["incidents"]:
        acknowledged = " (acknowledged)" if incident["acknowledged_at"] else ""
        severity = incident["severity"]
        summary = printable(incident["summary"])
        out.print(
            Text(f"{severity}  #{incident['id']} {summary}{acknowledged}", STYLES.get(severity, ""))
        )
    if report["undelivered"]:
        out.print(
            (
                f"{report['undelivered']} notifications were not delivered; `vllm-canary alerts "
                "log` tells why"
            ),
            style="yellow",
        )


def _print_detection(out: Any, target: dict[str, Any]) -> None:
    from monitor.show.terminal import printable  # noqa: PLC0415

    armed = [part["what"] for part in target["detection"] if part["armed"]]
    if armed:
        out.print(f"armed: {printable('; '.join(armed))}", style="dim")
    for part in target["detection"]:
        if not part["armed"]:
            out.print(printable(f"not armed: {part['what']} ({part['detail']})"), style="dim")
    if target["detection_note"]:
        out.print(printable(target["detection_note"]), style="dim")
