"""Writes the reference pages from the code: docs/configuration.md and docs/commands.md. A test compares them with what this makes."""

from __future__ import annotations

import argparse
from pathlib import Path

from monitor.cli import COMMANDS, overview, parser_of
from monitor.config.text import reference

HERE = Path(__file__).resolve().parent
EXIT_CODES = """
| exit code | means |
|---|---|
| 0 | good |
| 1 | verdict `fail`, or outcome queue_cap, hung, truncated, stream_error, malformed, empty (`probe`); an open incident (`status`) |
| 2 | usage, configuration, a wrong API key, an unknown model, a database of a newer version |
| 3 | could not be measured: refused, timeout, http_error, rejected, database unreachable, no sample for three intervals |

1 beats 3. Times are given as `2h`, `7d`, or ISO 8601. `--json` prints one object with its list under the plural name.
"""


def commands_page() -> str:
    """docs/commands.md: every command's own help."""
    parts = ["# Commands", "", "Made from the code (`make docs`).", "", "```", overview(), "```", EXIT_CODES]
    for name in COMMANDS:
        parts += _command(parser_of(name), f"## vllm-canary {name}")
    return "\n".join(parts).rstrip() + "\n"


def _command(parser: argparse.ArgumentParser, title: str) -> list[str]:
    """One command as a table of what it takes; argparse's own layout differs between versions of Python."""
    lines = [title, "", parser.description or "", ""] if parser.description else [title, ""]
    takes = [a for a in parser._actions if not isinstance(a, (argparse._HelpAction, argparse._SubParsersAction))]
    if takes:
        lines += ["| takes | meaning |", "|---|---|", *(f"| `{_spelled(action)}` | {action.help} |" for action in takes), ""]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                sub.description = helps.get(name, "").capitalize()
                lines += _command(sub, f"#{title} {name}")
    return lines


def _spelled(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    value = action.metavar or ("" if action.nargs == 0 else "|".join(map(str, action.choices or [])) or action.dest.upper())
    optional = not action.option_strings and action.nargs in {"?", "*"}
    return " ".join(filter(None, [names, f"[{value}]" if optional else str(value)])).replace("|", "\\|")


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    return {"configuration.md": reference(), "commands.md": commands_page()}


if __name__ == "__main__":
    for file_name, text in pages().items():
        (HERE / file_name).write_text(text, encoding="utf-8")
