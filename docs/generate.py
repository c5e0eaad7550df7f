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

1 beats 3. Times are given as `2h`, `7d`, or ISO 8601. `--json` prints one object with its list
under the plural name.

To complete commands and options in bash (with the package bash-completion) or in zsh:

    vllm-canary completion bash > ~/.local/share/bash-completion/completions/vllm-canary
    vllm-canary completion zsh > "${fpath[1]}/_vllm-canary"
"""


def commands_page() -> str:
    """docs/commands.md: every command's own help, as tables."""
    parts = [
        "# Commands",
        "",
        "Made from the code (`make docs`).",
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


SIMULATOR = """# The simulated server

Made from the code (`make docs`).

    vllm-canary simulate --gpu h100 --scenario heat --thermal-speed 30 --port 8000 --dcgm-port 9400

runs a server that speaks vLLM's HTTP API (streams, usage, log-probabilities, metrics page, tokenizer, error bodies; compared in the tests
with the answers of a real vLLM 0.32), with a continuous-batching scheduler, a small deterministic language model, and GPUs whose heat,
clocks and throttle counters follow a two-pole model; a DCGM exporter's page shows the GPUs. Token timing is real; heat moves
`--thermal-speed` times faster. `GET` and `POST /-/control` show and switch everything while it runs, for example
`{"max_model_len": 4096, "restart": true}` or `{"scenario": "heat"}`. Same scenario and seed, same story.

A GPU's `cooling` is a factor on the thermal resistance between its die and the air, without what lies inside the die: so at
`cooling: 2.6` a GeForce stays somewhat cooler than a GPU would whose whole resistance were 2.6 times as large, and throttles later.

    vllm-canary simulate --scenario heat --export heat.csv --hours 72 --onset 60

writes the samples (and beside them `heat.readings.csv` and `heat.pins.yaml`) that a daemon would have stored, in virtual time: the same
engine, GPUs and scenarios, where many equal steps are taken at once. `--onset` says after how many hours the scenario begins (half of
them otherwise). Samples are uneven as those of an idle server are (decode rate some tenths of a per cent, now and then one that is slow,
a slow wander, no drift), looks at the GPUs too (power by 1.5 %, the air of the room by some tenths of a degree). Answers are judged as
by a daemon whose pins were taken from the healthy server before the history begins: `verdict`, `stale`, `first_divergence` and
`logprob_shift` are filled for every probe that asks for log-probabilities. Those pins lie in `heat.pins.yaml`, as `pins export` writes
them, and `backtest heat.csv` reads them: shifts say nothing without the noise of the pins. Where another answer came, the shift is that
of the whole pinned answer, scored, if nobody else was served; the few milliseconds that this takes a server are left out.

## The language model

It is a table: some twenty questions that it knows, filler for everything else, and log-probabilities that follow from variant, seed and
place. What it thinks of a text agrees with what it says: an answer of its own is scored as it was said, down to the end-of-text token, so
`pin` measures no noise on it where there is none. `POST /-/control {"answers": "int4"}` swaps the weights: `int4` says the same and moves
the log-probabilities by some 0.7 nat; `new-weights` moves them by some 3 nat and answers four questions otherwise, three as well as before
and one with a wrong amount; `lost-bos` loses the beginning-of-text token, and is fluent and wrong.

## Scenarios

A scenario is a YAML file with a time line (`monitor/simulate/scenarios/`); `--scenario` takes a file of your own too. *Raises* is the
kind and the cause that it must lead to, of the closed lists; which of them the judges of this version find is told in docs/alerts.md.
Names and values of a file are checked before the story begins.

| scenario | what happens | raises |
|---|---|---|
"""


def simulator_page() -> str:
    """docs/simulator.md, with every scenario that travels along."""
    folder = HERE.parent / "monitor" / "simulate" / "scenarios"
    rows = []
    for path in sorted(folder.glob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        raises = data.get("raises") or {}
        told = (
            " / ".join(str(raises[key]) for key in ("kind", "cause") if raises.get(key))
            or "nothing"
        )
        rows.append(f"| `{path.stem}` | {data['about']} | {told} |")
    return SIMULATOR + "\n".join(rows) + "\n"


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
