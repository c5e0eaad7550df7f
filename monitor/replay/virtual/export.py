"""`simulate --export`: days of what a daemon would have stored, in seconds of work.

Engine, GPUs and scenarios are those of the simulated server in real time; samples are made by the
daemon's own code (canary.py).
"""

from __future__ import annotations

import csv
import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TextIO

from monitor.config.places import shipped_probes_dir
from monitor.config.probes import load_probes
from monitor.config.settings import Settings
from monitor.errors import USAGE, UserError
from monitor.measure.gpu.figures import GpuWindow
from monitor.model import SAMPLE_FIELDS, Probe, Sample, ServerPage
from monitor.replay.virtual.answers import ProbeAnswers, make_pins
from monitor.replay.virtual.canary import VirtualWatch
from monitor.replay.virtual.identity import Digests
from monitor.replay.virtual.noise import Noise
from monitor.replay.virtual.readings import utc
from monitor.replay.virtual.schedule import VirtualSchedule
from monitor.show.records import iso
from monitor.simulate.assemble import make_world, switch
from monitor.simulate.fastforward.world import FastForwardWorld
from monitor.simulate.gpu.windows import PolledGpu
from monitor.simulate.scenarios.scenario import Scenario
from monitor.store.pinfile import to_yaml

# a Monday; fixed, so that the same seed writes the same file
EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
TARGET = "simulated"
COLD_S = 1.0  # as in `simulate`
ONSET_SHARE = 0.5  # half of the time is healthy: the judges learn their baseline from it
#: Not among the columns of the store's table (a test compares them).
NOT_STORED = {
    "at",
    "process_start_s",
    "asleep",
    "decode_s_sum",
    "decode_count",
    "cache_config",
    "model_name",
}
SERVER_FIELDS = tuple(f.name for f in fields(ServerPage) if f.name not in NOT_STORED)
GPU_FIELDS = ("gpu_uuid", *(f.name for f in fields(GpuWindow) if f.name not in {"uuid", "at"}))
#: `kind` is server or gpu; the columns of the other kind stay empty.
READING_FIELDS = ("kind", "target", "at", *SERVER_FIELDS, *GPU_FIELDS)
ATTRIBUTES = {"class": "traffic_class"}
#: Decimals of figures that do not have three: they keep the file of a week small.
PLACES = {
    "decode_tok_s": 4,
    "spec_acceptance": 4,
    "kv_usage": 5,
    "logprob_shift": 5,
    "throttle_thermal_ms": 6,
    "throttle_power_ms": 6,
    "throttle_brake_ms": 6,
}
_server_values = attrgetter(*SERVER_FIELDS)
_sample_values = attrgetter(*(ATTRIBUTES.get(name, name) for name in SAMPLE_FIELDS[1:]))


class ExportError(UserError):
    """A file that cannot be written, or a history without its scenario."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written; `str` is the text for a person."""

    file: Path
    readings_file: Path
    pins_file: Path
    samples: int
    readings: int
    pins: int
    hours: float
    took_s: float
    scenario: Scenario
    onset: str

    def __str__(self) -> str:
        raises = self.scenario.raises
        must = "it must raise nothing"
        if raises is not None:
            cause = f" ({raises.cause})" if raises.cause else ""
            must = f"from {self.onset} on it must raise {raises.kind}{cause}"
        return (
            f"{self.file}: {self.samples} samples of {self.hours:g} h, {self.readings_file}: "
            f"{self.readings} readings, "
            f"{self.pins_file}: the {self.pins} pins they are judged by, in {self.took_s:.1f} s\n"
            f"scenario {self.scenario.name}: {self.scenario.about}; {must}"
        )


@contextmanager
def rare_collections() -> Iterator[None]:
    """Makes garbage collection rare: it would visit hundreds of thousands of rows again and
    again, which takes a tenth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@rare_collections()
def export(
    file: Path,
    hours: float,
    gpus: Sequence[str] = ("h100",),
    scenario: str = "calm",
    seed: int = 0,
    thermal_speed: float = 1.0,
    onset_hours: float | None = None,
) -> Exported:
    """Writes FILE.csv, FILE.readings.csv and FILE.pins.yaml; the scenario begins after
    `onset_hours` (None: half of the time).

    Raises ScenarioError, UnknownGpuError and ExportError.
    """
    began_s = time.perf_counter()
    onset_hours = hours * ONSET_SHARE if onset_hours is None else onset_hours
    if not 0 <= onset_hours < hours:
        raise ExportError(
            f"the scenario would begin after {onset_hours:g} h, but the history has {hours:g} "
            "h; let it begin within them"
        )
    world = _world(gpus, seed, thermal_speed)
    played_scenario = switch(world, scenario, onset_hours * 3600)
    watch, pages = played(world, hours)
    samples = sorted(watch.samples, key=attrgetter("started_at"))
    readings = [*_server_rows(pages), *_gpu_rows(world)]
    exported = Exported(
        file=file,
        readings_file=file.with_name(f"{file.stem}.readings.csv"),
        pins_file=file.with_name(f"{file.stem}.pins.yaml"),
        samples=len(samples),
        readings=len(readings),
        pins=len(watch.pins),
        hours=hours,
        took_s=0.0,
        scenario=played_scenario,
        onset=str(iso(utc(EPOCH.timestamp() + onset_hours * 3600))),
    )
    _write(file, SAMPLE_FIELDS, map(_sample_row, samples, range(1, len(samples) + 1)))
    _write(exported.readings_file, READING_FIELDS, sorted(readings, key=itemgetter(2)))
    with _opened(exported.pins_file) as out:
        out.write(to_yaml(watch.pins))
    return replace(exported, took_s=time.perf_counter() - began_s)


def virtual_probes(answers: ProbeAnswers) -> list[Probe]:
    """The shipped probes, as `init` writes them for this server."""
    settings = Settings.model_validate({"targets": [{"name": TARGET, "url": "http://127.0.0.1:1"}]})
    return [answers.healthy(probe) for probe in load_probes(shipped_probes_dir(), settings)]


def played(world: FastForwardWorld, hours: float) -> tuple[VirtualWatch, Sequence[ServerPage]]:
    """Watches a world for this long; the pins are taken of what it answers now."""
    answers, digests = ProbeAnswers(world), Digests(world)
    probes = virtual_probes(answers)
    watch = VirtualWatch(
        world=world,
        target=TARGET,
        noise=Noise(world.seed),
        pins=make_pins(probes, answers, TARGET, digests.now(), EPOCH),
        answers=answers,
        digests=digests,
    )
    schedule = VirtualSchedule(world, watch)
    schedule.fill(probes)
    schedule.run(hours * 3600)
    return watch, schedule.pages


def _world(gpus: Sequence[str], seed: int, thermal_speed: float) -> FastForwardWorld:
    world = make_world(gpus, seed, thermal_speed, EPOCH.timestamp(), FastForwardWorld, PolledGpu)
    assert isinstance(world, FastForwardWorld)  # noqa: S101 - for the type checker
    for gpu in world.gpus:
        if isinstance(gpu, PolledGpu):
            gpu.seed(seed)
    world.set("cold_s", COLD_S)
    return world


def _sample_row(sample: Sample, number: int) -> Sequence[object]:
    return (number, *map(_cell, SAMPLE_FIELDS[1:], _sample_values(sample)))


def _cell(name: str, value: object) -> object:
    if type(value) is float:
        return round(value, PLACES.get(name, 3))
    return iso(value) if isinstance(value, datetime) else value


def _server_rows(pages: Iterable[ServerPage]) -> Iterator[tuple[object, ...]]:
    nothing = (None,) * len(GPU_FIELDS)
    for page in pages:
        yield ("server", TARGET, iso(page.at), *_server_values(page), *nothing)


def _gpu_rows(world: FastForwardWorld) -> Iterator[tuple[object, ...]]:
    nothing = (None,) * len(SERVER_FIELDS)
    for gpu in world.gpus:
        for at_s, values in gpu.windows if isinstance(gpu, PolledGpu) else ():
            yield ("gpu", None, iso(utc(world.epoch_s + at_s)), *nothing, *values)


def _write(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with _opened(file) as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """Opens a file for writing. Raises ExportError."""
    try:
        with file.open("w", encoding="utf-8", newline="") as out:
            yield out
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None
