"""Writes the reference pages from the code: docs/configuration.md, docs/commands.md and
docs/simulator.md. A test compares them with what this writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from monitor.cli.parsers import COMMANDS, overview, parser_of
from monitor.config.text import reference

HERE = Path(__file__).resolve().parent
EXIT_CODES = """
| exit code | means |
|---|---|
| 0 | good |
| 1 | verdict `fail`, or outcome queue_cap, hung, truncated, stream_error, malformed, empty \
(`probe`); an open incident (`status`), or one that would have been opened (`backtest`); a wrong \
answer (`pin`); a regression (`gate`) |
| 2 | usage, configuration, a wrong API key, an unknown model, a database of a newer version |
| 3 | could not be measured: refused, timeout, http_error, rejected, database unreachable, no \
sample for three intervals, no data for a baseline (`calibrate`) |

1 takes precedence over 3. Times are written `2h`, `7d` or in ISO 8601. `--json` prints one object
with its list under the plural name.

To complete commands and options in bash (with the package bash-completion) or in zsh:

    vllm-canary completion bash > ~/.local/share/bash-completion/completions/vllm-canary
    vllm-canary completion zsh > "${fpath[1]}/_vllm-canary"
"""


def commands_page() -> str:
    """docs/commands.md: every command's own help, as tables."""
    parts = [
        "# Commands",
        "",
        "Generated from the code (`make docs`).",
        "",
        "```",
        overview(),
        "```",
        EXIT_CODES,
    ]
    for name in COMMANDS:
        parts += _command(parser_of(name), f"## vllm-canary {name}")
    return "\n".join(parts).rstrip() + "\n"


def _command(parser: argparse.ArgumentParser, title: str) -> list[str]:
    """One command with a table of its arguments; argparse's own layout differs between versions of
    Python.
    """
    lines = [title, "", parser.description or "", ""] if parser.description else [title, ""]
    arguments = [
        a
        for a in parser._actions
        if not isinstance(a, (argparse._HelpAction, argparse._SubParsersAction))
    ]
    if arguments:
        lines += [
            "| argument | meaning |",
            "|---|---|",
            *(
                f"| `{_syntax(action)}` | {parser._get_formatter()._expand_help(action)} |"
                for action in arguments
            ),
            "",
        ]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or choice.dest for choice in action._choices_actions}
            for name, sub in action.choices.items():
                text = helps[name]
                sub.description = f"{text[0].upper()}{text[1:]}."
                lines += _command(sub, f"#{title} {name}")
    return lines


def _syntax(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    value = action.metavar or (
        "" if action.nargs == 0 else "|".join(map(str, action.choices or [])) or action.dest.upper()
    )
    optional = not action.option_strings and action.nargs in {"?", "*"}
    return " ".join(filter(None, [names, f"[{value}]" if optional else str(value)])).replace(
        "|", "\\|"
    )


#: The table of scenarios ends the page; what stands before it is written by hand.
SCENARIOS = "| scenario | what happens | raises |\n|---|---|---|\n"


def simulator_page() -> str:
    """docs/simulator.md with its table of the scenarios that travel in the package."""
    folder = HERE.parent / "monitor" / "simulate" / "scenarios"
    rows = []
    for path in sorted(folder.glob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        raises = data.get("raises") or {}
        expected = " / ".join(str(raises[key]) for key in ("kind", "cause") if raises.get(key))
        rows.append(f"| `{path.stem}` | {data['about']} | {expected or 'nothing'} |")
    written, _, _ = (HERE / "simulator.md").read_text(encoding="utf-8").partition(SCENARIOS)
    return written + SCENARIOS + "\n".join(rows) + "\n"


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    return {
        "configuration.md": reference(),
        "commands.md": commands_page(),
        "simulator.md": simulator_page(),
    }


if __name__ == "__main__":
    for file_name, text in pages().items():
        (HERE / file_name).write_text(text, encoding="utf-8")
