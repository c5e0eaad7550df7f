"""`init`: write a configuration and probes that work against a server as they stand. Each probe is
tried once; nothing is half written.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.cli.common import CommandError, json_argument, print_json


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--url", required=True, help="where the server answers, for example http://127.0.0.1:8000"
    )
    parser.add_argument("--model", metavar="NAME", help="the served model, where there are several")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable that holds the API key"
    )
    parser.add_argument("--name", default="local", help="what to call the server (default local)")
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="where to write config.yaml and probes/"
    )
    json_argument(parser)


@dataclass(frozen=True, slots=True)
class Written:
    """One probe as `init` leaves it: `text` None = left out; `note` says what was adapted or
    why.
    """

    name: str
    text: str | None
    note: str
    tokens_per_hour: float | None = None


def run(args: argparse.Namespace) -> int:
    """Try, adapt, write."""
    config = args.directory / "config.yaml"
    if config.exists():
        raise CommandError(f"{config} is there already; choose another folder, or remove it first")
    _keep_own_probes(args.directory)
    target = {
        "name": args.name,
        "url": args.url,
        "model": args.model,
        "api_key_env": args.api_key_env,
    }
    target = {key: value for key, value in target.items() if value is not None}
    written = asyncio.run(_try_all(target))
    from monitor.config.text import sample_config  # noqa: PLC0415 - --help needs none of this

    kept = {w.name: w.text for w in written if w.text is not None}
    if not kept:
        raise CommandError(
            "no probe works against this server: "
            + "; ".join(f"{w.name}: {w.note}" for w in written),
            code=3,
        )
    _write(args.directory, sample_config(target), kept)
    _report(args, written)
    return 0


def _keep_own_probes(directory: Path) -> None:
    """Raises CommandError where a probe of the user's would be written over."""
    from monitor.config.places import shipped_probes_dir  # noqa: PLC0415

    taken = [
        path
        for path in sorted(directory.glob("probes/*.yaml"))
        if (shipped_probes_dir() / path.name).exists()
    ]
    if taken:
        raise CommandError(
            f"{taken[0]} is there already and would be written over; choose another folder, or "
            "remove it first"
        )


async def _try_all(target: dict[str, Any]) -> list[Written]:
    """Raises Told when the server cannot be reached or refuses us."""
    from pydantic import ValidationError  # noqa: PLC0415

    from monitor.config import ConfigError, FileProblem, Settings, load_probes, shipped_probes_dir  # noqa: PLC0415
    from monitor.config.yamlfile import sentence  # noqa: PLC0415
    from monitor.measure.server import api  # noqa: PLC0415
    from monitor.measure.server.metrics_page import MetricsPage  # noqa: PLC0415
    from monitor.measure.server.preflight import Preflight  # noqa: PLC0415
    from monitor.measure.stream.client import client_of  # noqa: PLC0415

    try:
        settings = Settings.model_validate({"targets": [target]})
    except ValidationError as error:
        raise ConfigError(
            [FileProblem("init", None, sentence(e, Settings)) for e in error.errors()]
        ) from None
    one = settings.targets[0]
    async with client_of(one) as http:
        flight = Preflight(one.name, http, MetricsPage(http, one.metrics_page), one.model)
        gpus = await api.models(http)
        flight.model = one.model or api.the_one_model(one.url, gpus)
        await flight.server(gpus)
        wrong = next((c for c in flight.checks if c.state == "bad"), None)
        if wrong is not None:
            raise CommandError(f"{wrong.detail}; {wrong.mend}")
        directory = shipped_probes_dir()
        return [
            await _try(flight, probe, (directory / f"{probe.name}.yaml").read_text())
            for probe in load_probes(directory, settings)
        ]


async def _try(flight: Any, probe: Any, text: str) -> Written:
    """One probe: does it fit, is it answered, is the answer what it expects?"""
    from monitor.config.places import shipped_probes_dir  # noqa: PLC0415
    from monitor.daemon.budget import hourly_cost  # noqa: PLC0415
    from monitor.judge.quality.expect import judge_answer  # noqa: PLC0415
    from monitor.model import Outcome, Verdict  # noqa: PLC0415
    from monitor.show.terminal import progress_console  # noqa: PLC0415

    shown = progress_console()
    if shown is not None:
        shown.print(
            f"trying {probe.name} … (the first answers of a new server can take a while)",
            style="dim",
        )
    await flight.probe_lengths([probe], shipped_probes_dir())
    length = flight.lengths.get(probe.name)
    fitted, note = fit(probe, length, flight.max_model_len)
    if fitted is None:
        return Written(probe.name, None, note)
    page = await flight.page.read()
    measured = await flight.trial(fitted, page)
    sample = measured.sample
    if sample.outcome is not Outcome.OK:
        return Written(probe.name, None, f"left out: {measured.detail or sample.outcome.value}")
    if fitted.max_tokens != probe.max_tokens:
        text = with_fewer_tokens(text, fitted.max_tokens)
    if measured.answer.reasoning and not measured.answer.text:
        switch = (
            "raise max_tokens, or switch reasoning off with `chat_template_kwargs: "
            "{enable_thinking: false}` under sampling"
        )
        return Written(
            probe.name,
            without_expectation(text),
            f"the model was still reasoning after {fitted.max_tokens} tokens; {switch}",
        )
    judgement = judge_answer(fitted, sample.outcome, sample.output)
    if judgement.verdict is Verdict.FAIL:
        text, note = without_expectation(text), f"its expectation was left out: {judgement.reason}"
    cost = hourly_cost(fitted, sample.prompt_tokens or length or 0)
    return Written(probe.name, text, note or f"answered after {sample.ttft_ms or 0:,.0f} ms", cost)


def fit(probe: Any, length: int | None, max_model_len: int | None) -> tuple[Any | None, str]:
    """The probe with as many answer tokens as the context leaves it; None when it leaves none."""
    from dataclasses import replace  # noqa: PLC0415

    if length is None or max_model_len is None or length + probe.max_tokens <= max_model_len:
        return probe, ""
    room = max_model_len - length
    if room < 8:
        return (
            None,
            f"left out: its prompt is {length} tokens and the context holds {max_model_len}",
        )
    sampling = dict(probe.sampling)
    if sampling.get("min_tokens", 0) > room:
        sampling["min_tokens"] = room
    return replace(
        probe, max_tokens=room, sampling=sampling
    ), f"shortened to {room} answer tokens by the context of {max_model_len}"


def with_fewer_tokens(text: str, max_tokens: int) -> str:
    """The probe's text with max_tokens, and min_tokens where it is more, lowered."""
    text = re.sub(r"(?m)^max_tokens:.*$", f"max_tokens: {max_tokens}", text)
    return re.sub(
        r"(?m)^(\s+min_tokens:) (\d+)$", lambda m: f"{m[1]} {min(int(m[2]), max_tokens)}", text
    )


def without_expectation(text: str) -> str:
    """The probe's text with its `expect:` block turned into comments: this model answers otherwise,
    which is no fault of it.
    """
    lines, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("expect:") or (inside and line.startswith((" ", "-")))
        lines.append(f"# {line}" if inside else line)
    return "\n".join(lines) + "\n"


def _write(directory: Path, config: str, probes: dict[str, str]) -> None:
    """All files, or none: they are made beside and moved in, config.yaml last."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "probes").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".init-") as made:
            files = [(f"probes/{name}.yaml", text) for name, text in probes.items()] + [
                ("config.yaml", config)
            ]
            for name, text in files:
                (Path(made) / Path(name).name).write_text(text, encoding="utf-8")
            for name, _ in files:
                os.replace(Path(made) / Path(name).name, directory / name)  # noqa: PTH105 - atomic, and named as what it is
    except OSError as error:
        raise CommandError(f"{directory} cannot be written: {error.strerror}", code=3) from None


def _report(args: argparse.Namespace, written: Sequence[Written]) -> None:
    total = sum(w.tokens_per_hour or 0 for w in written)
    config = args.directory / "config.yaml"
    if args.json:
        probes = [
            {
                "name": w.name,
                "written": w.text is not None,
                "note": w.note,
                "tokens_per_hour": w.tokens_per_hour,
            }
            for w in written
        ]
        print_json({"config": str(config), "probes": probes, "tokens_per_hour": total})
        return
    from monitor.show.terminal import console, number, table  # noqa: PLC0415

    rows = [
        [w.name, "written" if w.text is not None else "left out", number(w.tokens_per_hour), w.note]
        for w in written
    ]
    out = console()
    out.print(table(["probe", "", "tokens/h count", "detail"], rows))
    out.print(f"\nThe canaries cost at most {total:,.0f} prompt and answer tokens an hour.")
    out.print(
        f"Written: {config}\nNext: vllm-canary check -c {config}; vllm-canary run -c {config}",
        markup=False,
    )
