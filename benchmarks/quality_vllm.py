"""The quality gate on a real vLLM: no alarm on the original, an alarm on a lost token and on 4-bit
weights. Part of `make proof`.

    .venv/bin/python benchmarks/quality_vllm.py [--canaries 500] [--repetitions 200] [--work DIR]

Writes its section of docs/quality-measured.md. About 40 minutes on two idle cores, and much longer
with other work. Results are kept in DIR (by default next to the vLLM environment), so that the
benchmark can be interrupted and resumed, until the product (the committed monitor/) or the numbers
change. One server at a time, three starts:

1. the original: pinned, half of the repeats under load; then the canaries by `vllm-canary probe`,
   half of them with requests that leave one slot free; then the repetitions of three rounds, each
   judged as by the daemon (verdicts and model shift);
2. `int4`: the same number of repetitions with the original's pins;
3. `no-bos`: one round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from common import ROOT, git, machine, met_cell, table
from proofpage import QUALITY, stamp, write_section

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
# tests/ is not a package, so this import follows the path
from vllm_bed import (
    MODEL,
    SERVED_MODEL,
    Canary,
    Json,
    VllmServer,
    chat_probe,
    free_port,
    make_variant,
    say,
    vllm_environment,
)

SLOTS, LOAD = 4, 3  # the load leaves one slot free
PIN_REPEATS = 6  # three alone, three under load
CLASSES = {"chat": {"max_wait": "30s"}}
PATIENT = Limits(max_wait_s=None, hang_after_s=300.0, give_up_s=600.0, answer_s=300.0)


def probes_of_the_model() -> dict[str, Json]:
    """The tiny model's prompts, judged by pins: twelve with one sure answer, two near ties."""
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
    """The stored results: a list of records by the name of the step, in a file."""

    def __init__(self, path: Path, setting: Json) -> None:
        self._path = path
        found = json.loads(path.read_text()) if path.exists() else {}
        self.fresh = found.get("setting") != setting
        self.steps: dict[str, list[Json]] = {} if self.fresh else found["steps"]
        self._setting = setting

    def add(self, step: str, *records: Json) -> None:
        """Adds records and writes the file."""
        self.steps.setdefault(step, []).extend(records)
        partial = self._path.with_suffix(".new")
        partial.write_text(json.dumps({"setting": self._setting, "steps": self.steps}))
        partial.replace(self._path)

    def of(self, step: str) -> list[Json]:
        """The records of a step."""
        return self.steps.get(step, [])


@dataclass(slots=True)
class Bed:
    """The folders, the daemon, and the running server."""

    work: Path
    venv: Path
    canary: Canary
    port: int
    server: VllmServer | None = None

    def serve(self, model: Path) -> str:
        """Serves a model instead of the previous one; returns the address."""
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

    def serve_variant(self, name: str) -> str:
        """Serves a copy of the model with a silent fault; returns the address."""
        return self.serve(make_variant(self.venv, MODEL, self.work, name))

    def stop(self) -> None:
        """Stops the server, if there is one."""
        if self.server is not None:
            self.server.stop()
            self.server = None


# ---- the original


def canaries(bed: Bed, kept: Kept, url: str, wanted: int) -> None:
    """Runs rounds of `vllm-canary probe`, every second one under load; a sample counts as loaded by
    its own number of running requests.
    """
    while len(done := kept.of("canaries")) < wanted:
        rounds = len({row["round"] for row in done})
        if rounds % 2:
            with load(url):
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
def load(url: str) -> Iterator[None]:
    """Keeps LOAD long requests running on the server."""
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
            request = body | {"prompt": f"load {number}", "cache_salt": uuid.uuid4().hex}
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=request, timeout=600.0, trust_env=False
            ) as response:
                for _ in response.iter_raw():
                    if ended.is_set():
                        break

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(LOAD)]
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
    """The probes and pins for all verdicts."""

    probes: Sequence[Probe]
    pins: Sequence[Pin]

    async def rounds(self, url: str, count: int) -> Json:
        """Runs `count` rounds and judges them as the daemon does."""
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
        """Runs one canary; returns its verdict, the reason, and the shift of the pinned answer."""

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
    """Runs the repetitions of three rounds, after one cold round that is not counted."""
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
                f"{each * (wanted - done - 1) / 60:.0f} min left"
            )


# ---- all steps


def measure(bed: Bed, kept: Kept, wanted: int, times: int) -> None:
    """Measures what is missing."""
    if kept.fresh or len(kept.of("canaries")) < wanted or len(kept.of("original")) < times:
        url = bed.serve(MODEL)
        if kept.fresh:
            pin_all(bed.canary)
            kept.add("pinned", {"at": time.time()})
        canaries(bed, kept, url, wanted)
        repetitions(judge_of(bed.canary), kept, "original", url, times)
    if len(kept.of("int4")) < times:
        repetitions(judge_of(bed.canary), kept, "int4", bed.serve_variant("int4"), times)
    if not kept.of("no-bos"):
        kept.add("no-bos", asyncio.run(judge_of(bed.canary).rounds(bed.serve_variant("no-bos"), 1)))
    bed.stop()


def pin_all(canary: Canary) -> None:
    """Pins one probe after another: each takes a minute or two, and longer on a busy machine."""
    how = ("--reason", "as it was trained", "--repeats", str(PIN_REPEATS), "--under-load")
    for name in probes_of_the_model():
        canary.run("pin", name, *how)
        say(f"pinned {name}")


def judge_of(canary: Canary) -> Judge:
    """The probes and pins of the product's configuration and database."""
    settings = load_settings(canary.home / "config.yaml")
    with reading(settings.database) as connection:
        return Judge(load_probes(Path(settings.probes), settings), pins.find(connection, "tiny"))


# ---- the table

Line = tuple[str, str, str, bool]  # what, measured, wanted, met


def report(kept: Kept) -> tuple[list[str], bool]:
    """The section of docs/quality-measured.md, and whether every limit is met."""
    canaries = kept.of("canaries")
    lines = [
        _canaries_line(canaries),
        _original_line(kept.of("original")),
        _int4_line(kept.of("int4")),
        _no_bos_line(kept.of("no-bos")[0]),
    ]
    rows = [(what, measured, wanted, met_cell(met)) for what, measured, wanted, met in lines]
    ties = sorted({row["detail"] for row in canaries if row["verdict"] == "near_tie"})
    text = [
        f"Written by `.venv/bin/python benchmarks/quality_vllm.py` (`make proof`): {stamp()}; "
        f"{machine()}.",
        f"vLLM 0.32 on CPU with the tiny model of the tests, `--max-num-seqs {SLOTS}`; pinned with "
        f"{PIN_REPEATS} repeats, half of them under load.",
        "",
        *table(("what", "measured", "required", "met"), rows).splitlines(),
    ]
    if ties:
        text += ["", "Near ties among the canaries:", "", *(f"- {tie}" for tie in ties[:6])]
    return text, all(met for *_, met in lines)


def _canaries_line(rows: Sequence[Json]) -> Line:
    verdicts = Counter(row["verdict"] for row in rows)
    passed, ties = verdicts["pass"], verdicts["near_tie"]
    loaded = sum((row["running"] or 0) > 0 for row in rows)
    return (
        f"original, {len(rows)} canaries, {loaded} of them under load",
        f"{passed} pass, {ties} near ties, {len(rows) - passed - ties} other",
        "no `fail`",
        set(verdicts) <= {"pass", "near_tie"} and loaded * 2 >= len(rows) * 0.9,
    )


def _original_line(runs: Sequence[Json]) -> Line:
    return (
        f"original, {len(runs)} times three rounds",
        f"model shift found in {_found(runs)}; effect at most {_effect(runs, max):.4f} nat; "
        f"{sum(r['near_ties'] for r in runs)} near ties, {sum(r['failed'] for r in runs)} fail",
        "found in 0",
        _found(runs) == 0 and not any(r["failed"] for r in runs),
    )


def _int4_line(runs: Sequence[Json]) -> Line:
    return (
        f"int4, {len(runs)} times three rounds",
        f"model shift found in {_found(runs)}; effect {_effect(runs, min):.3f} to "
        f"{_effect(runs, max):.3f} nat; {sum(r['sure_failed'] for r in runs)} of the sure answers "
        f"fail; {sum(r['near_ties'] for r in runs)} near ties",
        f"found in {len(runs)}",
        _found(runs) == len(runs) and not any(r["sure_failed"] for r in runs),
    )


def _no_bos_line(run: Json) -> Line:
    reasons = run["reasons"]
    named = sum("chat template or tokenizer changed" in reason for reason in reasons)
    return (
        "no-bos, one round",
        f"{run['failed']} of {run['of']} fail; {named} of {len(reasons)} reasons name the template "
        "or tokenizer",
        "found",
        run["failed"] == run["of"] and named == len(reasons) > 0,
    )


def _found(runs: Sequence[Json]) -> int:
    return sum(bool(r["shifted"]) for r in runs)


def _effect(runs: Sequence[Json], which: Callable[[Iterable[float]], float]) -> float:
    return which(float(r["effect_nat"]) for r in runs if r["effect_nat"] is not None)


# ---- command line


def options() -> argparse.Namespace:
    """The parsed command line."""
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
        help="folder for results (default: next to the vLLM environment)",
    )
    return parser.parse_args()


def opened(work: Path, canaries: int, repetitions: int) -> Kept:
    """The results in the folder; those of another product or of other numbers are deleted."""
    setting = {
        "product": git("rev-parse", "HEAD:monitor"),
        "canaries": canaries,
        "repetitions": repetitions,
    }
    work.mkdir(parents=True, exist_ok=True)
    kept = Kept(work / "measured.json", setting)
    if kept.fresh:
        shutil.rmtree(work / "canary", ignore_errors=True)
        (work / "measured.json").unlink(missing_ok=True)
    else:
        say(f"resuming with the results in {work}")
    return kept


def main() -> int:
    """Measures what is missing, prints the table and writes it."""
    o = options()
    venv = vllm_environment()
    work = o.work or venv.parent / "quality-proof"
    kept = opened(work, o.canaries, o.repetitions)
    port, home = free_port(), work / "canary"
    home.mkdir(exist_ok=True)
    canary = Canary(home, f"http://127.0.0.1:{port}", MODEL, "http://127.0.0.1:9/none")
    bed = Bed(work, venv, canary, port)
    canary.write(probes_of_the_model(), CLASSES)
    try:
        measure(bed, kept, o.canaries, o.repetitions)
    finally:
        bed.stop()
    text, met = report(kept)
    print("\n".join(text))
    if o.canaries >= 500 and o.repetitions >= 200:
        write_section("vllm", text, QUALITY)
    else:
        say(f"too few runs: {QUALITY.relative_to(ROOT)} is unchanged")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
