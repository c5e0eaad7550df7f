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
with the answers of a real vLLM 0.32), with a continuous-batching scheduler, a small deterministic language model, and GPUs whose
temperatures, clocks and throttle counters follow a two-pole model; a DCGM exporter's page shows the GPUs. Token timing is real; heat
moves `--thermal-speed` times faster. `GET` and `POST /-/control` read and change every setting while it runs, for example
`{"max_model_len": 4096, "restart": true}` or `{"scenario": "heat"}`. The same scenario and seed give the same history.

A GPU's setting `GPU.cooling` is a factor on the thermal resistance of heat sink and air; the resistance between die and heat sink does
not change. So at `GPU.cooling: 2.6` a GeForce stays somewhat cooler than one whose whole resistance were 2.6 times as large, and
throttles later.

    vllm-canary simulate --scenario heat --export heat.csv --hours 72 --onset 60

writes the samples that a daemon would have stored, and beside them `heat.readings.csv` and `heat.pins.yaml`, in virtual time. Engine,
GPUs and scenarios are the same; many equal steps of the engine are computed at once. Waits, figures, verdicts and pins come from the
daemon's own code. `--onset` sets the hours until the scenario begins (default: half of the history).

Samples vary as those of an idle server do: the decode rate by some tenths of a per cent, with AR(1) noise, rare slow samples and no
drift. GPU readings vary too: power by 1.5 %, the intake air by some tenths of a degree. Answers are judged by pins that were taken from
the healthy server before the history begins: `verdict`, `stale`, `first_divergence` and `logprob_shift` are filled for every probe that
asks for log-probabilities. The pins are written to `heat.pins.yaml` in the format of `pins export`, and `backtest heat.csv` reads them,
since a shift can only be judged against the noise of its pin. Where another answer came, the shift is that of the pinned answer, scored,
provided that nobody else was served.

A daemon does a few things that the export leaves out: the token budget, extra canaries while drift is suspected, the pause after a
cancelled canary, and the few milliseconds in which a pinned answer is scored.

## The language model

The model is a table: some twenty known questions, filler for everything else, and log-probabilities that depend on variant, seed and
place. Scores of a given text agree with the model's own answers: an answer of its own is scored as it was generated, down to the
end-of-text token, so `pin` measures no noise where there is none. `POST /-/control {"answers": "int4"}` swaps the weights. `int4` gives
the same answers and moves the log-probabilities by some 0.7 nat. `new-weights` moves them by some 3 nat and answers four questions
differently: three as well as before, one with a wrong amount. `lost-bos` loses the beginning-of-text token: fluent and wrong.

## Scenarios

A scenario is a YAML file with a time line (`monitor/simulate/scenarios/`); `--scenario` takes a file of your own too. *Raises* is the
kind and the cause that a monitor must report, from the closed lists; docs/alerts.md says which of them this version detects. Names and
values of a file are checked before the scenario begins.

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
