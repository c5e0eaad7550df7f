"""The quality gate on a real vLLM: silent on the original, loud on a lost token and on weights of
four bits. Part of `make proof`.

    .venv/bin/python benchmarks/quality_vllm.py [--canaries 500] [--repetitions 200] [--work DIR]

Writes its part of docs/quality-measured.md. An estimated 40 minutes on two quiet cores, and many
times that beside other work. What has been measured is kept in DIR (beside the vLLM environment
unless given), so that a run that was stopped goes on where it was, until the product (the committed
monitor/) or the numbers change. One server at a time, three starts:

1. the original: pinned, half of the repeats in company; then the canaries by `vllm-canary probe`,
   half of them beside requests that leave one slot free; then the repetitions of three rounds, each
   judged as the daemon does (verdicts and model shift);
2. `int4`: as many repetitions by the original's pins;  3. `no-bos`: one round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from common import ROOT, machine
from proofpage import stamp, write_section

from monitor.config.probes import load_probes
from monitor.config.settings import load_settings
from monitor.daemon.scoring import scored_shift
from monitor.judge.quality.gate import judge_gate, pin_for
from monitor.judge.quality.shift import judge_shift
from monitor.judge.quality.verdicts import SHIFT_ROUNDS
from monitor.measure.stream.answer import observed
from monitor.measure.stream.client import client, stream
from monitor.measure.stream.patience import Limits
from monitor.measure.stream.request import canary_request
from monitor.model import Pin, Probe, Verdict
from monitor.store import pins
from monitor.store.database import reading

sys.path.insert(0, str(ROOT / "tests"))
from vllm_bed import (
    MAKE_VARIANTS,
    SERVED_MODEL,
    Canary,
    Json,
    VllmServer,
    chat_probe,
    free_port,
    say,
)

MODEL = ROOT / "tests" / "vllm" / "model"
SLOTS, COMPANY = 4, 3  # the company leaves one slot free
PIN_REPEATS = 6  # three alone, three in company
CLASSES = {"chat": {"max_wait": "30s"}}
PATIENT = Limits(max_wait_s=None, hang_after_s=300.0, give_up_s=600.0, answer_s=300.0)


def probes_of_the_model() -> dict[str, Json]:
    """The tiny model's prompts: twelve with one sure answer, two that are near ties on purpose. All
    are judged by their pins.
    """
    found: dict[str, Json] = {}
    for number, entry in enumerate(
        json.loads((MODEL / "canaries.json").read_text(encoding="utf-8"))
    ):
        kind = "sure" if len(entry["expected"]) == 1 else "tie"
        found[f"{kind}-{number:02}"] = chat_probe(
            entry["prompt"], "", "chat", "60s", max_tokens=300
        ) | {"expect": [{"pinned": True}]}
    return found


class Kept:
    """What has been measured, in a file: a list of records by the name of the step."""

    def __init__(self, path: Path, setting: Json) -> None:
        self._path = path
        found = json.loads(path.read_text()) if path.exists() else {}
        self.fresh = found.get("setting") != setting
        self.steps: dict[str, list[Json]] = {} if self.fresh else found["steps"]
        self._setting = setting

    def add(self, step: str, *records: Json) -> None:
        """One more; written at once."""
        self.steps.setdefault(step, []).extend(records)
        partial = self._path.with_suffix(".new")
        partial.write_text(json.dumps({"setting": self._setting, "steps": self.steps}))
        partial.replace(self._path)

    def of(self, step: str) -> list[Json]:
        """The records of a step so far."""
        return self.steps.get(step, [])


@dataclass(slots=True)
class Bed:
    """Where everything lies, and the one server that runs."""

    work: Path
    venv: Path
    canary: Canary
    port: int
    server: VllmServer | None = None

    def serve(self, model: Path) -> str:
        """Serve a model instead of the last one; its address."""
        self.stop()
        options = (
            "--max-model-len",
            "1024",
            "--max-num-seqs",
            str(SLOTS),
            "--enable-per-request-metrics",
        )
        self.server = VllmServer.start(
            self.venv,
            self.port,
            model,
            *options,
            work=self.work,
            inductor_cache=self.work / "inductor",
        )
        return self.server.url

    def variant(self, name: str) -> Path:
        """A quietly broken copy of the model."""
        command = [
            str(self.venv / "bin" / "python"),
            str(MAKE_VARIANTS),
            str(MODEL),
            str(self.work / "variants"),
            name,
        ]
        subprocess.run(command, check=True, timeout=120.0)
        return self.work / "variants" / name

    def stop(self) -> None:
        """End the server, if there is one."""
        if self.server is not None:
            self.server.stop()
            self.server = None


# ---- the original


def canaries(bed: Bed, kept: Kept, url: str, wanted: int) -> None:
    """Rounds of `vllm-canary probe`, every second one in company. Company is believed when the
    sample says so.
    """
    while len(done := kept.of("canaries")) < wanted:
        rounds = len({row["round"] for row in done})
        if rounds % 2:
            with company(url):
                rows = bed.canary.json("probe", codes=(0, 1))["samples"]
        else:
            rows = bed.canary.json("probe", codes=(0, 1))["samples"]
        names = ("probe", "verdict", "detail", "running", "outcome")
        kept.add(
            "canaries", *({name: row[name] for name in names} | {"round": rounds} for row in rows)
        )
        say(
            f"{len(kept.of('canaries'))}/{wanted} canaries: "
            f"{dict(Counter(row['verdict'] for row in kept.of('canaries')))}"
        )


@contextmanager
def company(url: str) -> Iterator[None]:
    """Long requests beside what happens inside, one after the other, so that always COMPANY of them
    run.
    """
    ended = threading.Event()

    def one(number: int) -> None:
        body = {
            "model": SERVED_MODEL,
            "max_tokens": 400,
            "min_tokens": 400,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        while not ended.is_set():
            asked = body | {"prompt": f"company {number}", "cache_salt": uuid.uuid4().hex}
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=asked, timeout=600.0, trust_env=False
            ) as response:
                for _ in response.iter_raw():
                    if ended.is_set():
                        break

    threads = [
        threading.Thread(target=one, args=(number,), daemon=True) for number in range(COMPANY)
    ]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(30.0)


# ---- the judgement of three rounds


@dataclass(frozen=True, slots=True)
class Judge:
    """The probes and pins that everything is judged by."""

    probes: Sequence[Probe]
    pins: Sequence[Pin]

    async def rounds(self, url: str, count: int) -> Json:
        """So many rounds, judged as the daemon judges them."""
        shifts: dict[str, list[float]] = {probe.name: [] for probe in self.probes}
        verdicts: list[tuple[str, str, str | None]] = []
        async with client(url, None) as http:
            for probe in [probe for _ in range(count) for probe in self.probes]:
                verdict, reason, shift = await self.run(http, probe)
                verdicts.append((probe.name, verdict.value, reason))
                if shift is not None:
                    shifts[probe.name].append(shift)
        own = {probe.name: pin_for(self.pins, probe, None)[0] for probe in self.probes}
        noise = {name: pin.noise_nat or 0.0 for name, pin in own.items() if pin is not None}
        result = judge_shift(
            shifts, noise, {name: pin.repeats for name, pin in own.items() if pin is not None}
        )
        bad = [v for v in verdicts if v[1] not in {"pass", "near_tie"}]
        return {
            "shifted": result.shifted,
            "effect_nat": result.effect_nat,
            "p_value": result.p_value,
            "moved": len(result.moved),
            "sure_failed": sum(name.startswith("sure") for name, _, _ in bad),
            "failed": len(bad),
            "of": len(verdicts),
            "near_ties": sum(v[1] == "near_tie" for v in verdicts),
            "reasons": sorted({reason or "" for _, _, reason in bad}),
        }

    async def run(
        self, http: httpx.AsyncClient, probe: Probe
    ) -> tuple[Verdict, str | None, float | None]:
        """One canary: its verdict, the sentence, and how far the pinned answer moved."""

        async def steps() -> None:
            return None

        request = canary_request(probe, SERVED_MODEL, f"proof-{uuid.uuid4().hex}", uuid.uuid4().hex)
        result = await stream(http, request, PATIENT, None, steps)
        pin, _ = pin_for(self.pins, probe, None)
        judged = judge_gate(probe, result.outcome, observed(result.answer), pin)
        if pin is not None and judged.first_divergence is not None:
            judged = replace(
                judged,
                logprob_shift=(await scored_shift(http, probe, SERVED_MODEL, pin.outputs[0]))[0],
            )
        return judged.verdict, judged.reason or result.detail, judged.logprob_shift


def repetitions(judge: Judge, kept: Kept, step: str, url: str, wanted: int) -> None:
    """Three rounds, again and again; one that is not counted first, since its answers are cold."""
    if len(kept.of(step)) < wanted:
        asyncio.run(judge.rounds(url, 1))
    began, before = time.monotonic(), len(kept.of(step))
    while (done := len(kept.of(step))) < wanted:
        kept.add(step, asyncio.run(judge.rounds(url, SHIFT_ROUNDS)))
        if done % 10 == 9:
            each = (time.monotonic() - began) / (done + 1 - before)
            found = sum(bool(row["shifted"]) for row in kept.of(step))
            say(
                f"{step}: {done + 1}/{wanted} repetitions, found in {found}; "
                f"{each * (wanted - done - 1) / 60:.0f} min to go"
            )


# ---- all of it


def measure(bed: Bed, kept: Kept, wanted: int, times: int) -> None:
    """What is still missing."""
    if kept.fresh or len(kept.of("canaries")) < wanted or len(kept.of("original")) < times:
        url = bed.serve(MODEL)
        if kept.fresh:
            for name in (
                probes_of_the_model()
            ):  # one by one: it takes a minute or two, and longer on a busy machine
                bed.canary.run(
                    "pin",
                    name,
                    "--reason",
                    "as it was trained",
                    "--repeats",
                    str(PIN_REPEATS),
                    "--under-load",
                )
                say(f"pinned {name}")
            kept.add("pinned", {"at": time.time()})
        canaries(bed, kept, url, wanted)
        repetitions(judge_of(bed.canary), kept, "original", url, times)
    if len(kept.of("int4")) < times:
        repetitions(judge_of(bed.canary), kept, "int4", bed.serve(bed.variant("int4")), times)
    if not kept.of("no-bos"):
        kept.add(
            "no-bos", asyncio.run(judge_of(bed.canary).rounds(bed.serve(bed.variant("no-bos")), 1))
        )
    bed.stop()


def judge_of(canary: Canary) -> Judge:
    """Probes and pins as the product has them."""
    settings = load_settings(canary.home / "config.yaml")
    with reading(settings.database) as connection:
        return Judge(load_probes(Path(settings.probes), settings), pins.find(connection, "tiny"))


def lines(kept: Kept) -> tuple[list[str], bool]:
    """The table, and whether everything in it is as it must be."""
    rows = kept.of("canaries")
    verdicts = Counter(row["verdict"] for row in rows)
    crowded = sum((row["running"] or 0) > 0 for row in rows)
    original, int4, [nobos] = kept.of("original"), kept.of("int4"), kept.of("no-bos")
    blamed = sum("chat template or tokenizer changed" in reason for reason in nobos["reasons"])
    table = [
        (
            f"original, {len(rows)} canaries, {crowded} of them in company",
            (
                f"{verdicts['pass']} pass, {verdicts['near_tie']} near ties, "
                f"{len(rows) - verdicts['pass'] - verdicts['near_tie']} other"
            ),
            "no `fail`",
            set(verdicts) <= {"pass", "near_tie"} and crowded * 2 >= len(rows) * 0.9,
        ),
        (
            f"original, {len(original)} times three rounds",
            f"model shift found in {_found(original)}; effect at most "
            f"{_effect(original, max):.4f} nat; "
            f"{sum(r['near_ties'] for r in original)} near ties, "
            f"{sum(r['failed'] for r in original)} fail",
            "found in 0",
            _found(original) == 0 and not any(r["failed"] for r in original),
        ),
        (
            f"int4, {len(int4)} times three rounds",
            f"model shift found in {_found(int4)}; effect {_effect(int4, min):.3f} to "
            f"{_effect(int4, max):.3f} nat; "
            f"{sum(r['sure_failed'] for r in int4)} of the sure answers fail; "
            f"{sum(r['near_ties'] for r in int4)} near ties",
            f"found in {len(int4)}",
            _found(int4) == len(int4) and not any(r["sure_failed"] for r in int4),
        ),
        (
            "no-bos, one round",
            (
                f"{nobos['failed']} of {nobos['of']} fail; {blamed} of {len(nobos['reasons'])} "
                "reasons blame template or tokenizer"
            ),
            "found",
            nobos["failed"] == nobos["of"] and blamed == len(nobos["reasons"]) > 0,
        ),
    ]
    ties = sorted({row["detail"] for row in rows if row["verdict"] == "near_tie"})
    text = [
        (
            f"Written by `.venv/bin/python benchmarks/quality_vllm.py` (`make proof`): {stamp()}; "
            f"{machine()}."
        ),
        (
            f"vLLM 0.32 on CPU with the tiny model of the tests, `--max-num-seqs {SLOTS}`; pinned "
            f"with {PIN_REPEATS} repeats, half of them in"
        ),
        "company.",
        "",
        "| what | measured | wanted | met |",
        "|---|---|---|---|",
        *(
            f"| {what} | {measured} | {want} | {'yes' if met else '**no**'} |"
            for what, measured, want, met in table
        ),
        *(
            ["", "Near ties among the canaries:", "", *(f"- {tie}" for tie in ties[:6])]
            if ties
            else []
        ),
    ]
    return text, all(met for *_, met in table)


def _found(records: Sequence[Json]) -> int:
    return sum(bool(r["shifted"]) for r in records)


def _effect(records: Sequence[Json], which: Any) -> float:
    return float(which(r["effect_nat"] for r in records if r["effect_nat"] is not None))


def main() -> int:
    """Measure what is missing, print, write."""
    parser = argparse.ArgumentParser(description="the quality gate on a real vLLM")
    parser.add_argument(
        "--canaries", type=int, default=500, metavar="N", help="on the original (default 500)"
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        default=200,
        metavar="N",
        help="of three rounds, on original and int4 (default 200)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="where to keep what was measured (default: beside the vLLM environment)",
    )
    o = parser.parse_args()
    installed = subprocess.run(
        [str(ROOT / "tests" / "vllm" / "install.sh")], capture_output=True, text=True, check=True
    )
    venv = Path(installed.stdout.splitlines()[-1])
    work = o.work or venv.parent / "quality-proof"
    product = subprocess.run(
        ["git", "rev-parse", "HEAD:monitor"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    setting = {"product": product, "canaries": o.canaries, "repetitions": o.repetitions}
    work.mkdir(parents=True, exist_ok=True)
    kept = Kept(work / "measured.json", setting)
    if kept.fresh:
        shutil.rmtree(work / "canary", ignore_errors=True)
        (work / "measured.json").unlink(missing_ok=True)
    else:
        say(f"going on with what was measured before in {work}")
    port, home = free_port(), work / "canary"
    home.mkdir(exist_ok=True)
    bed = Bed(
        work, venv, Canary(home, f"http://127.0.0.1:{port}", MODEL, "http://127.0.0.1:9/none"), port
    )
    bed.canary.write(probes_of_the_model(), CLASSES)
    try:
        measure(bed, kept, o.canaries, o.repetitions)
    finally:
        bed.stop()
    text, met = lines(kept)
    print("\n".join(text))
    if o.canaries >= 500 and o.repetitions >= 200:
        write_section("vllm", text, ROOT / "docs" / "quality-measured.md")
    else:
        say("few runs: docs/quality-measured.md is left alone")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
