"""Other detectors on the series that detection.py has prepared; run by it, in an environment of
their own.

    python benchmarks/detection_peers.py --which river|otava --out FOLDER FOLDER [FOLDER …]

Each FOLDER holds one simulated target (series.npz): canaries a minute, raw and with the product's
own load curve taken out ("residual": learnt in the first seven days, then left alone; NaN where the
load was not known), and the minutes at which drops are put in. Written into --out, under a name
made of the series and of this program: for each detector the alarms of the healthy month and the
delays of every drop. A change of the product that leaves the series alone leaves these results
alone.

Every detector sees what it would see in use: blocks of five minutes (median of at least three
canaries; Otava: of fifteen minutes), its scale from the seven days of learning, and starts again
after an alarm. Rising values are no alarm where a detector can tell.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from detection_simulated import DAY, LEARN, SCENARIOS, Floats, drop

BLOCK = 5  # minutes
OTAVA_BLOCK = 15
OTAVA_WINDOW = 72  # points: eighteen hours
KERNEL_WINDOW = 288  # blocks: a day
KERNEL_EVERY = 12  # blocks: an hour
WARM = 2 * DAY  # minutes before a drop from which a detector is fed


@dataclass(frozen=True, slots=True)
class Scale:
    """What a detector knows of the healthy past."""

    median: float
    sd: float
    learnt: Floats  # blocks of the seven days


Detector = Callable[
    [Floats, Scale], Iterable[int]
]  # values, one a block -> indexes at which it raises an alarm


def fixed(values: Floats, scale: Scale) -> Iterator[int]:
    """Three canaries in a row below 95 % of the median."""
    low = values < scale.median + np.log(0.95)
    run = 0
    for i, below in enumerate(low.tolist()):
        run = run + 1 if below else 0
        if run == 3:
            yield i
            run = 0


def streaming(
    make: Callable[[], Any], standard: bool, values: Floats, scale: Scale
) -> Iterator[int]:
    """A detector of river, fed value by value; anew after an alarm. `standard`: in standard
    deviations of the healthy past.
    """
    detector = make()
    data = (values - scale.median) / scale.sd if standard else np.exp(values - scale.median)
    for i, value in enumerate(data.tolist()):
        if np.isfinite(value):
            detector.update(value)
            if detector.drift_detected:
                yield i
                detector = make()


def ewma(weight: float, limit: float, values: Floats, scale: Scale) -> Iterator[int]:
    """Exponentially weighted mean below `limit` of its own standard deviations in the healthy past;
    values drawn in to 4 SD + 10 %.
    """

    def smoothed(data: Floats) -> Floats:
        out, mean = np.empty(len(data)), 0.0
        bound = 4 * scale.sd + 0.1
        for i, value in enumerate((data - scale.median).tolist()):
            if np.isfinite(value):
                mean += weight * (max(-bound, min(bound, value)) - mean)
            out[i] = mean
        return out

    sd = float(np.std(smoothed(scale.learnt)[50:]))
    rest = values
    begun = 0
    while len(rest):
        below = np.flatnonzero(smoothed(rest) < -limit * sd)
        if not len(below):
            return
        yield begun + int(below[0])
        begun += int(below[0]) + 1
        rest = values[begun:]


def kernel(penalty: float, values: Floats, scale: Scale) -> Iterator[int]:
    """ruptures.KernelCPD over the last day, once an hour: a new lower last segment is an alarm."""
    import ruptures  # noqa: PLC0415 - the other environment has none

    raised = -1
    data = np.where(np.isfinite(values), (values - scale.median) / scale.sd, 0.0)
    for end in range(KERNEL_WINDOW, len(data) + 1, KERNEL_EVERY):
        window = data[end - KERNEL_WINDOW : end]
        found = (
            ruptures.KernelCPD(kernel="linear", min_size=6)
            .fit(window.reshape(-1, 1))
            .predict(pen=penalty)
        )
        cuts = [0, *found]
        if len(cuts) > 2:
            at = end - KERNEL_WINDOW + cuts[-2]
            lower = window[cuts[-2] :].mean() < window[cuts[-3] : cuts[-2]].mean()
            if lower and at > raised + KERNEL_EVERY:
                raised = at
                yield end - 1


def otava(max_pvalue: float, min_magnitude: float, values: Floats, scale: Scale) -> Iterator[int]:
    """Apache Otava over the last 18 hours, with every new point: a new change to lower values is an
    alarm. (It fails on arrays.)
    """
    from otava.analysis import compute_change_points  # noqa: PLC0415 - the other environment has none

    raised = -1
    data = np.exp(np.where(np.isfinite(values), values, scale.median) - scale.median)
    for end in range(OTAVA_WINDOW, len(data) + 1):
        window = [float(v) for v in data[end - OTAVA_WINDOW : end]]
        points, _ = compute_change_points(
            window, max_pvalue=max_pvalue, min_magnitude=min_magnitude
        )
        for point in points:
            at = end - OTAVA_WINDOW + int(point.index)
            if at > raised + 2 and point.stats.mean_2 < point.stats.mean_1:
                raised = at
                yield end - 1


def river_detectors() -> dict[str, tuple[str, int, Detector]]:
    """Name: which series, minutes a value, the detector."""
    from river import drift  # noqa: PLC0415 - the other environment has none

    def hinkley() -> Any:
        return drift.PageHinkley()

    def tuned_hinkley() -> Any:
        return drift.PageHinkley(
            min_instances=1, delta=PH_DELTA, threshold=PH_THRESHOLD, alpha=1.0, mode="down"
        )

    def adwin() -> Any:
        return drift.ADWIN()

    def tuned_adwin() -> Any:
        return drift.ADWIN(delta=1e-12, clock=1)

    found: dict[str, tuple[str, int, Detector]] = {
        'fixed "3 samples < 95 % of the median"': ("raw", 1, fixed)
    }
    for name, make, standard in (
        ("river PageHinkley, default", hinkley, True),
        ("river PageHinkley, tuned", tuned_hinkley, True),
        ("river ADWIN, default", adwin, False),
        ("river ADWIN, tuned", tuned_adwin, False),
    ):
        for series in ("raw", "residual"):
            found[f"{name}, {series}"] = (series, BLOCK, partial(streaming, make, standard))
    for penalty in (25, 80):
        for series in ("raw", "residual"):
            found[f"ruptures KernelCPD, penalty {penalty}, {series}"] = (
                series,
                BLOCK,
                partial(kernel, penalty),
            )
    for weight, limit in ((0.1, 4.0), (0.2, 5.0)):
        for series in ("raw", "residual"):
            found[f"EWMA {weight:g}, L = {limit:g}, {series}"] = (
                series,
                BLOCK,
                partial(ewma, weight, limit),
            )
    return found


PH_DELTA, PH_THRESHOLD = 1.5, 25.0


def otava_detectors() -> dict[str, tuple[str, int, Detector]]:
    """Likewise."""
    return {
        "Otava, default, residual": ("residual", OTAVA_BLOCK, partial(otava, 0.001, 0.0)),
        "Otava, tuned (p 1e-6, 2 %), residual": (
            "residual",
            OTAVA_BLOCK,
            partial(otava, 1e-6, 0.02),
        ),
    }


WHICH: dict[str, Callable[[], dict[str, tuple[str, int, Detector]]]] = {
    "river": river_detectors,
    "otava": otava_detectors,
}


def blocks(minutes: Floats, size: int) -> Floats:
    """Medians of so many minutes; NaN where fewer than three fifths are known."""
    if size == 1:
        return minutes
    shaped = minutes[: len(minutes) // size * size].reshape(-1, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = np.nanmedian(shaped, axis=1)
    found[np.isfinite(shaped).sum(axis=1) < 0.6 * size] = np.nan
    return np.asarray(found)


def measure(detector: Detector, minutes: Floats, size: int, onsets: list[int]) -> dict[str, Any]:
    """Alarms in the healthy month, and the delay of each drop in minutes (None: not within a
    day).
    """
    learnt = blocks(minutes[:LEARN], size)
    known = learnt[np.isfinite(learnt)]
    centre = float(np.median(known))
    scale = Scale(centre, float(1.4826 * np.median(np.abs(known - centre))), learnt)
    alarms = len(list(detector(blocks(minutes[LEARN:], size), scale)))
    delays: dict[str, list[int | None]] = {}
    for name, (share, ramp_min) in SCENARIOS.items():
        delays[name] = []
        for onset in onsets:
            begin = (onset - WARM) // size * size
            piece = minutes[begin : onset + DAY].copy()
            piece[onset - begin :] += drop(DAY, share, ramp_min)[: len(piece) - (onset - begin)]
            ends = (begin + (i + 1) * size for i in detector(blocks(piece, size), scale))
            delays[name].append(next((end - onset for end in ends if end > onset), None))
    return {"alarms": alarms, "delays": delays}


def result_path(which: str, kept: Path, folder: Path) -> Path:
    """Where the results on one target lie."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update((folder / "series.npz").read_bytes())
    return kept / f"{which}-{digest.hexdigest()[:16]}.json"


def one(which: str, kept: Path, folder: Path) -> str:
    """Every detector on one target, unless it was done before."""
    out = result_path(which, kept, folder)
    if not out.exists():
        data = np.load(folder / "series.npz")
        onsets = [int(v) for v in data["onsets"]]
        found = {
            name: measure(d, data[s].astype(float), size, onsets)
            for name, (s, size, d) in WHICH[which]().items()
        }
        part = out.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(out)
    return str(folder)


def main() -> int:
    """One line for each target that is done."""
    parser = argparse.ArgumentParser(description="other detectors on prepared series")
    parser.add_argument("--which", choices=sorted(WHICH), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("folders", nargs="+", type=Path)
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(o.jobs) as pool:
        for done in pool.map(partial(one, o.which, o.out), o.folders):
            print(done, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
