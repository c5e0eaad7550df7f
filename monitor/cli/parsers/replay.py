"""Options of the commands that replay stored history: `backtest`, `calibrate`."""

from __future__ import annotations

from argparse import ArgumentParser

from monitor.cli.parsers import options

BACKTEST_SINCE = "30d"
CALIBRATE_SINCE = "14d"


def backtest(parser: ArgumentParser) -> None:
    """`backtest`."""
    options.entry(parser, "backtest:run")
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE.csv",
        help="samples to judge instead of the history (docs/backtest.md)",
    )
    # No default: a file is judged whole, and --since with one is an error.
    options.period(parser, implied=BACKTEST_SINCE)
    options.target(parser)
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="wishes",
        help="try a threshold, for example detector.false_alarms_per_month=1 or "
        "classes.chat.ttft=800ms; may be repeated",
    )
    parser.add_argument("--plot", metavar="FILE.html", help="draw the series with the findings")
    options.configuration(parser)
    options.json_output(parser)


def calibrate(parser: ArgumentParser) -> None:
    """`calibrate`."""
    options.entry(parser, "calibrate:run")
    options.target(parser)
    options.since(parser, CALIBRATE_SINCE)
    parser.add_argument(
        "--dry-run", action="store_true", help="show the baseline, but do not store it"
    )
    options.configuration(parser)
    options.json_output(parser)
