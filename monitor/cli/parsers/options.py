"""Options that several commands share, each defined once."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser

AGO = "2h, 7d, or ISO 8601"


def entry(parser: ArgumentParser, place: str) -> None:
    """Names what runs this command: `module:function` under monitor.cli, imported only then."""
    parser.set_defaults(entry=place)


class Actions:
    """The actions of a command that works without one; its options may stand before or after."""

    def __init__(self, parser: ArgumentParser) -> None:
        self._actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def add(self, name: str, place: str, text: str) -> ArgumentParser:
        """An action with the common options."""
        # A default after the action must not replace what was given before it.
        added = self._actions.add_parser(name, help=text, argument_default=SUPPRESS)
        entry(added, place)
        configuration(added)
        json_output(added)
        return added


def configuration(parser: ArgumentParser, url: bool = False) -> None:
    """-c FILE, --db, and --url for commands that need only an address."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="configuration file (default: config.yaml, then /etc/vllm-canary/config.yaml)",
    )
    parser.add_argument(
        "--db", metavar="PATH|URL", help="database to use instead of the configured one"
    )
    if url:
        parser.add_argument("--url", help="use this server, without a configuration file")


def json_output(parser: ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def target(parser: ArgumentParser) -> None:
    """--target."""
    parser.add_argument("--target", metavar="NAME", help="only this target")


def since(parser: ArgumentParser, default: str | None = None, implied: str | None = None) -> None:
    """--since; `implied` is a default that the command applies itself."""
    stated = default or implied
    suffix = f" (default {stated})" if stated else ""
    parser.add_argument(
        "--since", metavar="TIME", default=default, help=f"start of the period: {AGO}{suffix}"
    )


def period(parser: ArgumentParser, default: str | None = None, implied: str | None = None) -> None:
    """--since and --until."""
    since(parser, default, implied)
    parser.add_argument("--until", metavar="TIME", help="end of the period")


def sample_filters(parser: ArgumentParser, default: str | None = None) -> None:
    """Which samples; `default` is that of --since."""
    period(parser, default)
    target(parser)
    parser.add_argument("--probe", metavar="NAME", help="only this probe")
    parser.add_argument(
        "--class", metavar="NAME", dest="traffic_class", help="only this traffic class"
    )


def newest(parser: ArgumentParser) -> None:
    """--limit."""
    parser.add_argument(
        "--limit",
        type=row_number,
        default=20,
        metavar="N",
        help="the newest N (default 20; 0 for all)",
    )


def sample(parser: ArgumentParser) -> None:
    """SAMPLE."""
    parser.add_argument(
        "sample", type=row_number, metavar="SAMPLE", help="sample id, as printed by `history`"
    )


def probes(parser: ArgumentParser, default: str) -> None:
    """PROBE…; `default` says which probes are used without it."""
    parser.add_argument("probes", nargs="*", metavar="PROBE", help=f"probes (default: {default})")


def row_number(text: str) -> int:
    """A row's number, for argparse; rejects what no database can hold."""
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError
    return number
