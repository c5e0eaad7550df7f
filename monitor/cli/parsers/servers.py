"""Options of the commands that talk to a server: `init`, `check`, `run`, `probe`, `fingerprint`."""

from __future__ import annotations

from argparse import ArgumentParser

from monitor.cli.parsers import options


def init(parser: ArgumentParser) -> None:
    """`init`."""
    options.entry(parser, "init:run")
    parser.add_argument(
        "--url", required=True, help="address of the server, for example http://127.0.0.1:8000"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="served model, required if the server has several"
    )
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the API key"
    )
    parser.add_argument("--name", default="local", help="name of the target (default local)")
    parser.add_argument("directory", metavar="DIR", help="directory for config.yaml and probes/")
    options.json_output(parser)


def check(parser: ArgumentParser) -> None:
    """`check`."""
    options.entry(parser, "check:run")
    options.configuration(parser, url=True)
    parser.add_argument(
        "--gpu-report",
        metavar="FILE",
        help="only write what this machine's GPUs and driver can report, as JSON for a bug report "
        "(no host, user or process names; UUIDs hashed)",
    )
    options.json_output(parser)


def run(parser: ArgumentParser) -> None:
    """`run`."""
    options.entry(parser, "run:run")
    options.configuration(parser, url=True)
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="serve health and metrics on this address instead of the configured one",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log every canary")


def probe(parser: ArgumentParser) -> None:
    """`probe`."""
    options.entry(parser, "probe:run")
    options.probes(parser, "all")
    options.configuration(parser, url=True)
    options.target(parser)
    options.json_output(parser)


def fingerprint(parser: ArgumentParser) -> None:
    """`fingerprint`."""
    options.entry(parser, "fingerprint:run")
    options.configuration(parser, url=True)
    options.target(parser)
    options.json_output(parser)
