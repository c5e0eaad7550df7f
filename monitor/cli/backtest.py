"""`backtest`: the daemon's judges over what is stored, or over a CSV file, and the incidents that
they would have opened.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from monitor.cli.common import (
    CommandError,
    chosen_rows,
    config_arguments,
    database_of,
    found_settings,
    json_argument,
    moment,
    now_utc,
    print_json,
)
from monitor.errors import REGRESSION, UNMEASURED

SINCE = "30d"
PAGE_BEGINS = b"<!doctype html>"  # monitor/show/driftplot.py


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE.csv",
        help="samples to judge, instead of the history (docs/detection.md)",
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        help=f"the history from then on: 2h, 7d, or ISO 8601 (default {SINCE})",
    )
    parser.add_argument("--until", metavar="TIME", help="up to then")
    parser.add_argument("--target", metavar="NAME", help="only this target")
    more = (
        "try a threshold, for example detector.false_alarms_per_month=1 or "
        "classes.chat.ttft=800ms; may be given again"
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="wishes", help=more
    )
    parser.add_argument("--plot", metavar="FILE.html", help="draw the series with what was found")
    config_arguments(parser)
    json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Replay, print, draw."""
    from monitor.config.detector import DetectorSettings  # noqa: PLC0415 - --help needs none of this
    from monitor.daemon.detector_settings import overridden, thresholds  # noqa: PLC0415
    from monitor.replay.results import incident_record, print_report, target_record  # noqa: PLC0415
    from monitor.show.driftplot import Sketch  # noqa: PLC0415

    _check_plot(args)
    configured = found_settings(args)
    detector = DetectorSettings() if configured is None else configured.detector
    classes = {} if configured is None else configured.classes
    settings = thresholds(*overridden(detector, classes, args.wishes))
    sketch = None if args.plot is None else Sketch()
    if args.file is None:
        pasts, notes = _of_history(args, settings, configured, sketch)
    else:
        pasts, notes = _of_file(args, settings, configured, sketch)
    report = {
        "incidents": [incident_record(entry) for past in pasts for entry in past.incidents],
        "targets": [target_record(past.replay, past.begin_us) for past in pasts],
        "notes": notes,
    }
    if args.json:
        print_json(report)
    else:
        print_report(report)
    if sketch is not None:
        _draw(args, sketch, pasts)
    if report["incidents"]:
        return REGRESSION
    return (
        0 if any(count for past in pasts for count in past.replay.counts.values()) else UNMEASURED
    )


def _of_file(
    args: argparse.Namespace, settings: Any, configured: Any, sketch: Any
) -> tuple[list[Any], list[str]]:
    from monitor.daemon.detector_settings import check_classes  # noqa: PLC0415
    from monitor.judge.evaluator.assessment import Rules  # noqa: PLC0415
    from monitor.replay.file import replay_file  # noqa: PLC0415

    if args.since is not None or args.until is not None:
        raise CommandError("--since and --until choose from the history; a file is judged whole")
    rules = Rules(probes=_probes(configured))
    pasts, notes = replay_file(
        Path(args.file),
        settings,
        rules=rules,
        watcher=None if sketch is None else sketch.watch,
    )
    check_classes(
        args.wishes,
        () if configured is None else configured.classes,
        {name for past in pasts for name in past.classes},
    )
    if args.target is not None:
        known = [past.replay.target for past in pasts]
        if args.target not in known:
            raise CommandError(
                f"there is no target {args.target!r} in {args.file}; it has: "
                f"{', '.join(known) or 'none'}"
            )
        pasts = [past for past in pasts if past.replay.target == args.target]
    return pasts, notes


def _of_history(
    args: argparse.Namespace, settings: Any, configured: Any, sketch: Any
) -> tuple[list[Any], list[str]]:
    from monitor.daemon.detector_settings import check_classes  # noqa: PLC0415
    from monitor.replay.history import Period, replay_history  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415
    from monitor.store.points import classes_of  # noqa: PLC0415

    now = now_utc()
    since, until = moment(args.since or SINCE, now), moment(args.until, now) or now
    watcher = None if sketch is None else sketch.watch
    with reading(database_of(args)) as connection:
        rows = chosen_rows(connection, args.target)
        check_classes(
            args.wishes, () if configured is None else configured.classes, classes_of(connection)
        )
        pasts = [
            replay_history(
                connection,
                row,
                settings,
                rules=_rules(row, configured),
                period=Period(since, until),
                watcher=watcher,
            )
            for row in rows
        ]
    notes = [] if rows else ["the history knows no target yet; `vllm-canary run` starts one"]
    empty = [past.replay.target for past in pasts if not any(past.replay.counts.values())]
    return pasts, notes + [f"{name}: nothing was measured in this time" for name in empty]


def _rules(row: Any, configured: Any) -> Any:
    """How often each probe should measure is in the history. A target that is left alone while
    nobody uses it is silent by intention.
    """
    from monitor.daemon.feed import same_address  # noqa: PLC0415
    from monitor.judge.evaluator.assessment import Rules  # noqa: PLC0415

    target = None if configured is None else configured.target(row.name)
    silent = target is not None and target.when_idle != "run"
    schedule = {
        name: timedelta(seconds=every)
        for name, every in row.schedule.items()
        if isinstance(every, (int, float))
    }
    same = target is None or same_address(target)
    return Rules(
        probes=_probes(configured), intervals={} if silent else schedule, same_address=same
    )


def _probes(configured: Any) -> Mapping[str, Any]:
    """The probes as they are configured now, for how many of their answers may be wrong; without
    them the defaults hold.
    """
    from monitor.config.probes import load_probes  # noqa: PLC0415

    if configured is None or not Path(configured.probes).is_dir():
        return {}
    return {probe.name: probe for probe in load_probes(Path(configured.probes), configured)}


def _check_plot(args: argparse.Namespace) -> None:
    """A page may be drawn anew, but nothing else is written over: least of all the file that is
    read. Raises CommandError.
    """
    plot = None if args.plot is None else Path(args.plot)
    if plot is None or not plot.is_file():
        return
    if args.file is not None and Path(args.file).exists() and plot.samefile(args.file):
        raise CommandError(
            f"--plot {args.plot} is the file that is read; name another one, for example "
            f"{plot.with_suffix('.html').name}"
        )
    try:
        with plot.open("rb") as there:
            begins = there.read(len(PAGE_BEGINS))
    except OSError as error:
        raise CommandError(f"--plot {args.plot} cannot be written: {error.strerror}") from None
    if begins and begins != PAGE_BEGINS:
        raise CommandError(
            f"--plot {args.plot} is there already and is no page of ours; it is left alone, so "
            "name another file"
        )


def _draw(args: argparse.Namespace, sketch: Any, pasts: Sequence[Any]) -> None:
    from monitor.replay.results import found_of  # noqa: PLC0415
    from monitor.show.driftplot import page  # noqa: PLC0415

    found = {past.replay.target: found_of(past.incidents) for past in pasts}
    panels = {
        past.replay.target: sketch.panels(past.replay.target, found[past.replay.target])
        for past in pasts
    }
    try:
        Path(args.plot).write_text(
            page(f"backtest of {args.file or 'the history'}", panels, found), encoding="utf-8"
        )
    except OSError as error:
        raise CommandError(f"--plot {args.plot} cannot be written: {error.strerror}") from None
