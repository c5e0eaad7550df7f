"""`backtest`: runs the daemon's judges over stored history or a CSV file, and lists the incidents
that they would have opened.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from monitor.cli.common import CommandError, database_of, moment, now_utc, print_json
from monitor.cli.configured import chosen_probes, found_settings
from monitor.cli.known import chosen_rows
from monitor.cli.parsers.replay import BACKTEST_SINCE
from monitor.config.detector import DetectorSettings
from monitor.config.settings import ClassSettings, Settings
from monitor.daemon.detector_settings import check_classes, overridden, thresholds
from monitor.daemon.feed import same_address
from monitor.errors import REGRESSION, UNMEASURED
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.evaluator.assessment import Rules
from monitor.model import Probe
from monitor.replay.file import replay_file
from monitor.replay.history import Period, ReplayedTarget, Watcher, replay_history
from monitor.replay.results import found_of, incident_record, print_report, target_record
from monitor.show.driftplot import Sketch, page
from monitor.store.database import reading
from monitor.store.points import classes_of
from monitor.store.queries import TargetRow

PAGE_BEGINS = b"<!doctype html>"  # monitor/show/driftplot.py


def run(args: Namespace) -> int:
    """Replays, prints, draws."""
    _check_plot(args.plot, args.file)
    configured = found_settings(args)
    sketch = None if args.plot is None else Sketch()
    backtest = Backtest(
        args=args,
        configured=configured,
        thresholds=_thresholds(configured, args.wishes),
        watcher=None if sketch is None else sketch.watch,
    )
    replayed, notes = backtest.of_history() if args.file is None else backtest.of_file()
    report = {
        "incidents": [incident_record(entry) for one in replayed for entry in one.incidents],
        "targets": [target_record(one.replay, one.begin_us) for one in replayed],
        "notes": notes,
    }
    if args.json:
        print_json(report)
    else:
        print_report(report)
    if sketch is not None:
        _draw(sketch, replayed, Path(args.plot), args.file or "the history")
    if report["incidents"]:
        return REGRESSION
    return 0 if any(map(_has_measured, replayed)) else UNMEASURED


def _thresholds(configured: Settings | None, wishes: Sequence[str]) -> DriftSettings:
    """The configured thresholds, with those of --set instead. Raises ConfigError."""
    detector = DetectorSettings() if configured is None else configured.detector
    return thresholds(*overridden(detector, _classes(configured), wishes))


def _classes(configured: Settings | None) -> Mapping[str, ClassSettings]:
    return {} if configured is None else configured.classes


def _has_measured(one: ReplayedTarget) -> bool:
    return any(one.replay.counts.values())


@dataclass(frozen=True, slots=True)
class Backtest:
    """A replay of what the options choose. `watcher` is shown every point."""

    args: Namespace
    configured: Settings | None
    thresholds: DriftSettings
    watcher: Watcher | None

    def of_file(self) -> tuple[Sequence[ReplayedTarget], Sequence[str]]:
        """Replays the file; returns its targets, and remarks. Raises UserError."""
        if self.args.since is not None or self.args.until is not None:
            raise CommandError("--since and --until apply to the history; a file is judged whole")
        rules = Rules(probes=self._probes())
        replayed, notes = replay_file(
            Path(self.args.file), self.thresholds, rules=rules, watcher=self.watcher
        )
        self._check_classes({name for one in replayed for name in one.classes})
        name = self.args.target
        known = [one.replay.target for one in replayed]
        if name is not None and name not in known:
            raise CommandError(
                f"there is no target {name!r} in {self.args.file}; it has: "
                f"{', '.join(known) or 'none'}"
            )
        return [one for one in replayed if name in {None, one.replay.target}], notes

    def of_history(self) -> tuple[Sequence[ReplayedTarget], Sequence[str]]:
        """Replays the history; returns its targets, and remarks. Raises UserError."""
        now = now_utc()
        since = moment(self.args.since or BACKTEST_SINCE, now)
        until = moment(self.args.until, now) or now
        with reading(database_of(self.args)) as connection:
            rows = chosen_rows(connection, self.args.target)
            self._check_classes(classes_of(connection))
            replayed = [
                replay_history(
                    connection,
                    row,
                    self.thresholds,
                    rules=self._rules(row),
                    period=Period(since, until),
                    watcher=self.watcher,
                )
                for row in rows
            ]
        notes = [] if rows else ["the history has no target yet; start `vllm-canary run`"]
        empty = [one.replay.target for one in replayed if not _has_measured(one)]
        return replayed, notes + [f"{name}: nothing was measured in this period" for name in empty]

    def _check_classes(self, measured: set[str]) -> None:
        check_classes(self.args.wishes, _classes(self.configured), measured)

    def _rules(self, row: TargetRow) -> Rules:
        """The probes' stored intervals; none for a target that may be left alone while idle, whose
        silence is intended.
        """
        target = None if self.configured is None else self.configured.target(row.name)
        silent = target is not None and target.when_idle != "run"
        intervals = {
            name: timedelta(seconds=every)
            for name, every in row.schedule.items()
            if isinstance(every, (int, float))
        }
        return Rules(
            probes=self._probes(),
            intervals={} if silent else intervals,
            same_address=target is None or same_address(target),
        )

    def _probes(self) -> Mapping[str, Probe]:
        """The configured probes, which say how many of their answers may be wrong; the defaults
        apply to others.
        """
        if self.configured is None or not Path(self.configured.probes).is_dir():
            return {}
        return {probe.name: probe for probe in chosen_probes(self.configured)}


def _check_plot(name: str | None, file: str | None) -> None:
    """Allows only a page of ours to be overwritten. Raises CommandError."""
    plot = None if name is None else Path(name)
    if plot is None or not plot.is_file():
        return
    if file is not None and Path(file).exists() and plot.samefile(file):
        raise CommandError(
            f"--plot {name} is the input file; give another one, for example "
            f"{plot.with_suffix('.html').name}"
        )
    try:
        with plot.open("rb") as there:
            begins = there.read(len(PAGE_BEGINS))
    except OSError as error:
        raise CommandError(f"--plot {name} cannot be written: {error.strerror}") from None
    if begins and begins != PAGE_BEGINS:
        raise CommandError(
            f"--plot {name} already exists and is not a page of `backtest`; give another file"
        )


def _draw(sketch: Sketch, replayed: Sequence[ReplayedTarget], plot: Path, source: str) -> None:
    found = {one.replay.target: found_of(one.incidents) for one in replayed}
    panels = {target: sketch.panels(target, found[target]) for target in found}
    try:
        plot.write_text(page(f"backtest of {source}", panels, found), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--plot {plot} cannot be written: {error.strerror}") from None
