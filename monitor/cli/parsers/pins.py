"""Options of the commands about pins: `pin`, `pins`, `gate`."""

from __future__ import annotations

from argparse import ArgumentParser

from monitor.cli.parsers import options


def pin(parser: ArgumentParser) -> None:
    """`pin`."""
    options.entry(parser, "pin:run")
    options.probes(parser, "all that request log-probabilities")
    parser.add_argument(
        "--reason", help="why these answers are correct; required, and stored with the pin"
    )
    parser.add_argument(
        "--expires",
        default="30d",
        metavar="TIME",
        help="lifetime of the pin (default 30d, spread by up to a tenth)",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="runs of each probe (default 5)"
    )
    parser.add_argument(
        "--under-load",
        action="store_true",
        help="run two long requests during every second repeat, so that near ties show",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be accepted, store no pin"
    )
    options.configuration(parser, url=True)
    options.target(parser)
    options.json_output(parser)


def pins(parser: ArgumentParser) -> None:
    """`pins`: without an action it lists. Options may stand before or after the action."""
    options.entry(parser, "pins:show_list")
    actions = options.Actions(parser)
    listing = actions.add("list", "pins:show_list", "list the active pins (the default)")
    show = actions.add("show", "pins:show_one", "show one pin with its accepted answers")
    _number(show, "pin", "number of a pin")
    diff = actions.add("diff", "pins:show_difference", "compare two pins of one probe")
    _number(diff, "pin", "the earlier pin")
    _number(diff, "other", "the later pin")
    _files(actions)
    expire = actions.add(
        "expire",
        "pin_changes:retire",
        "retire a pin: it is kept, but no longer used to judge answers",
    )
    _number(expire, "pin", "number of a pin")
    options.configuration(parser)
    options.json_output(parser)
    for each in (listing, parser):
        each.add_argument("--all", action="store_true", help="include retired pins")


def _files(actions: options.Actions) -> None:
    export = actions.add("export", "pins:export", "write the active pins as YAML")
    export.add_argument(
        "file",
        nargs="?",
        default=None,
        metavar="FILE",
        help="file to write (default: standard output)",
    )
    importing = actions.add(
        "import", "pin_changes:import_file", "import pins from a file written by `export`"
    )
    importing.add_argument("file", metavar="FILE", help="file to read")
    importing.add_argument(
        "--force",
        action="store_true",
        default=False,
        help="also import pins that have expired, were retired here, or are older than the active "
        "one",
    )


def _number(parser: ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, type=options.row_number, metavar=name.upper(), help=text)


def gate(parser: ArgumentParser) -> None:
    """`gate`."""
    options.entry(parser, "gate:run")
    parser.add_argument(
        "--url",
        dest="candidate",
        metavar="URL",
        required=True,
        help="address of the candidate server",
    )
    parser.add_argument(
        "--against", metavar="TARGET", required=True, help="target whose pins are used"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="runs of each probe (default 3)"
    )
    options.configuration(parser)
    options.json_output(parser)
