"""`init`: writes a configuration and probes that work with a server as they are. Each probe is run
once; either all files are written, or none.
"""

from __future__ import annotations

import asyncio
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from monitor.cli.common import CommandError, print_json
from monitor.cli.init_probes import Written, try_probe
from monitor.config import ConfigError, FileProblem, Settings, load_probes, shipped_probes_dir
from monitor.config.text import sample_config
from monitor.config.yamlfile import sentence
from monitor.errors import UNMEASURED
from monitor.measure.server import api
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.server.preflight import Preflight
from monitor.measure.stream.client import client_of
from monitor.show.terminal import console, number, table


def run(args: Namespace) -> int:
    """Tries, adapts, writes."""
    directory = Path(args.directory)
    _refuse_overwriting(directory)
    target = {
        "name": args.name,
        "url": args.url,
        "model": args.model,
        "api_key_env": args.api_key_env,
    }
    target = {key: value for key, value in target.items() if value is not None}
    written = asyncio.run(_try_all(target))
    kept = {w.name: w.text for w in written if w.text is not None}
    if not kept:
        reasons = "; ".join(f"{w.name}: {w.note}" for w in written)
        raise CommandError(f"no probe works with this server: {reasons}", code=UNMEASURED)
    _write(directory, sample_config(target), kept)
    _report(directory / "config.yaml", written, args.json)
    return 0


def _refuse_overwriting(directory: Path) -> None:
    """Raises CommandError if a file of the user's would be overwritten."""
    bundled = shipped_probes_dir()
    ours = [path for path in directory.glob("probes/*.yaml") if (bundled / path.name).exists()]
    taken = [directory / "config.yaml", *sorted(ours)]
    for path in taken:
        if path.exists():
            raise CommandError(
                f"{path} already exists; choose another directory, or remove it first"
            )


async def _try_all(target: Mapping[str, str]) -> list[Written]:
    """Tries every bundled probe. Raises UserError if the server cannot be reached or refuses."""
    settings = _settings(target)
    one, directory = settings.targets[0], shipped_probes_dir()
    async with client_of(one) as http:
        flight = Preflight(one.name, http, MetricsPage(http, one.metrics_page), one.model)
        served = await api.models(http)
        flight.model = one.model or api.the_one_model(one.url, served)
        await flight.server(served)
        bad = next((c for c in flight.checks if c.state == "bad"), None)
        if bad is not None:
            raise CommandError(f"{bad.detail}; {bad.mend}")
        return [
            await try_probe(flight, probe, (directory / f"{probe.name}.yaml").read_text())
            for probe in load_probes(directory, settings)
        ]


def _settings(target: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate({"targets": [target]})
    except ValidationError as error:
        problems = [FileProblem("init", None, sentence(e, Settings)) for e in error.errors()]
        raise ConfigError(problems) from None


def _write(directory: Path, config: str, probes: Mapping[str, str]) -> None:
    """Writes all files or none: into a temporary directory, then moved, config.yaml last."""
    files = {f"probes/{name}.yaml": text for name, text in probes.items()}
    files["config.yaml"] = config
    try:
        (directory / "probes").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".init-") as temporary:
            for name, text in files.items():
                (Path(temporary) / Path(name).name).write_text(text, encoding="utf-8")
            for name in files:
                (Path(temporary) / Path(name).name).replace(directory / name)
    except OSError as error:
        raise CommandError(
            f"{directory} cannot be written: {error.strerror}", code=UNMEASURED
        ) from None


def _report(config: Path, written: Sequence[Written], as_json: bool) -> None:
    total = sum(w.tokens_per_hour or 0 for w in written)
    if as_json:
        probes = [_record(w) for w in written]
        print_json({"config": str(config), "probes": probes, "tokens_per_hour": total})
        return
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


def _record(one: Written) -> dict[str, object]:
    return {
        "name": one.name,
        "written": one.text is not None,
        "note": one.note,
        "tokens_per_hour": one.tokens_per_hour,
    }
