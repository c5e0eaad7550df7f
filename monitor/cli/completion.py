"""`completion`: a script that completes commands, options and file names in a shell."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator

import shtab

from monitor.cli.parsers import whole_parser


def run(args: Namespace) -> int:
    """Prints the script."""
    parser = whole_parser()
    for action in _actions(parser):
        if str(action.metavar).startswith(("FILE", "DIR")):
            vars(action)["complete"] = shtab.DIR if action.metavar == "DIR" else shtab.FILE
    print(shtab.complete(parser, args.shell, root_prefix="vllm_canary"))
    return 0


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, _SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
