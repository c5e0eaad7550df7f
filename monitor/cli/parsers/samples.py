"""Options of the commands that read samples: `history`, `show`, `summary`, `status`, `review`."""

from __future__ import annotations

from argparse import ArgumentParser

from monitor.cli.parsers import options

#: The values of model.Outcome, whose package is slower to import than this one; a test compares.
OUTCOMES = (
    "ok",
    "queue_cap",
    "hung",
    "asleep",
    "rejected",
    "timeout",
    "refused",
    "http_error",
    "stream_error",
    "truncated",
    "malformed",
    "empty",
    "cancelled",
)


def history(parser: ArgumentParser) -> None:
    """`history`."""
    options.entry(parser, "history:run")
    options.configuration(parser)
    options.sample_filters(parser)
    parser.add_argument("--outcome", choices=OUTCOMES, help="only this outcome")
    options.newest(parser)
    parser.add_argument(
        "--format",
        choices=["table", "csv", "jsonl"],
        default="table",
        help="output format (default table)",
    )
    options.json_output(parser)


def show(parser: ArgumentParser) -> None:
    """`show`."""
    options.entry(parser, "show:run")
    options.sample(parser)
    options.configuration(parser)
    options.json_output(parser)


def summary(parser: ArgumentParser) -> None:
    """`summary`."""
    options.entry(parser, "summary:run")
    options.configuration(parser)
    options.sample_filters(parser, "24h")
    options.json_output(parser)


def status(parser: ArgumentParser) -> None:
    """`status`."""
    options.entry(parser, "status:run")
    options.configuration(parser)
    options.json_output(parser)


def review(parser: ArgumentParser) -> None:
    """`review`."""
    options.entry(parser, "review:run")
    options.sample(parser)
    parser.add_argument(
        "--verdict",
        required=True,
        choices=["right", "wrong", "corrected"],
        help="the reviewer's verdict on the answer",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="duration of the review")
    parser.add_argument("--note", metavar="TEXT", help="a remark")
    options.configuration(parser)
    options.json_output(parser)
