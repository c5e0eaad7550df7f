"""Options of the commands about incidents: `incidents`, `alerts`."""

from __future__ import annotations

from argparse import ArgumentParser

from monitor.cli.parsers import options


def incidents(parser: ArgumentParser) -> None:
    """`incidents`: without an action it lists. Options may stand before or after the action."""
    options.entry(parser, "incidents:show_list")
    actions = options.Actions(parser)
    listing = actions.add(
        "list", "incidents:show_list", "list open and recent incidents (the default)"
    )
    _filters(listing)
    show = actions.add("show", "incidents:show_one", "show one incident with its history")
    ack = actions.add("ack", "incident_changes:acknowledge", "acknowledge an incident")
    close = actions.add("close", "incident_changes:close", "close an incident by hand")
    note = actions.add("note", "incident_changes:note", "add a remark to an incident")
    for action in (show, ack, close, note):
        action.add_argument(
            "incident", type=options.row_number, metavar="INCIDENT", help="number of the incident"
        )
    ack.add_argument("--note", default=None, help="a remark to store with it")
    close.add_argument("--reason", required=True, help="why it is closed")
    note.add_argument("text", help="the remark")
    options.configuration(parser)
    options.json_output(parser)
    _filters(parser)
    parser.set_defaults(since="7d")


def _filters(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="list incidents opened since then, and all open ones (default 7d)",
    )
    options.target(parser)


def alerts(parser: ArgumentParser) -> None:
    """`alerts`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    test = actions.add_parser("test", help="send one test notification to each channel now")
    options.entry(test, "alert_sending:run")
    test.add_argument("name", nargs="?", metavar="CHANNEL", help="only this channel")
    log = actions.add_parser("log", help="list deliveries, newest first")
    options.entry(log, "alert_log:run")
    options.newest(log)
    for action, same in ((test, " (same as CHANNEL)"), (log, "")):
        action.add_argument("--channel", metavar="NAME", help=f"only this channel{same}")
        options.configuration(action)
        options.json_output(action)
