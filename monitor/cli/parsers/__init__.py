"""Every command's name, its one-line help and its options. Nothing here imports anything heavy, and
of the modules with options only the chosen command's is imported, so that `--help` is instant.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser

#: Command -> module of this package, in which a function of that name adds the options; one-line
#: help. In the order of `--help`.
COMMANDS = {
    "init": ("servers", "write a configuration and probes that work with a server"),
    "check": (
        "servers",
        "report what can be reached and measured, what is missing, and what it is needed for",
    ),
    "run": ("servers", "run the daemon that watches the servers"),
    "probe": ("servers", "run canaries once, now"),
    "history": ("samples", "list samples"),
    "show": ("samples", "show one sample with everything known about it"),
    "summary": ("samples", "show percentiles by traffic class and phase"),
    "status": ("samples", "show the current state: good, bad or unknown"),
    "fingerprint": (
        "servers",
        "show the identity of what is served, field by field, with the source of each",
    ),
    "pin": ("pins", "record the live server's answers as pins, with a reason"),
    "pins": ("pins", "list, show, compare, export, import and retire pins"),
    "gate": ("pins", "check a candidate server against another target's pins"),
    "review": ("samples", "record a person's verdict on a sample"),
    "incidents": ("incidents", "list, show, acknowledge, close and annotate incidents"),
    "alerts": ("incidents", "test notification channels, list deliveries"),
    "backtest": (
        "replay",
        "replay the history or a CSV file, also with other thresholds, and list what is found",
    ),
    "calibrate": (
        "replay",
        "rebuild the baseline from the history, and report how much data it rests on",
    ),
    "simulate": ("extras", "run a simulated vLLM server whose GPU heats up; needs no GPU"),
    "demo": (
        "extras",
        "run a two-minute demonstration: a queue, a hot GPU, a changed configuration",
    ),
    "completion": ("extras", "print a completion script for bash, zsh or tcsh"),
}


def overview() -> str:
    """The text of `vllm-canary --help`."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: vllm-canary COMMAND [options]     (vllm-canary COMMAND --help lists them)",
            "       vllm-canary --version",
            "",
            "Monitors a live vLLM server from its users' side, and reports what got worse and why.",
            "",
            *(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()),
        ]
    )


def parser_of(name: str) -> ArgumentParser:
    """The argument parser of one command."""
    text = COMMANDS[name][1]
    parser = ArgumentParser(prog=f"vllm-canary {name}", description=f"{text[0].upper()}{text[1:]}.")
    _add_options(name, parser)
    return parser


def whole_parser() -> ArgumentParser:
    """All commands as one parser, for completion scripts."""
    parser = ArgumentParser(prog="vllm-canary")
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        _add_options(name, commands.add_parser(name, help=text))
    return parser


def _add_options(name: str, parser: ArgumentParser) -> None:
    module = importlib.import_module(f"{__name__}.{COMMANDS[name][0]}")
    getattr(module, name)(parser)
