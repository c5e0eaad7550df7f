"""Other detectors on the series that detection.py has prepared; detection.py runs this program in
an environment of its own.

    python benchmarks/detection_peers.py --which river|otava --out FOLDER FOLDER [FOLDER …]

Each FOLDER holds one simulated target (series.npz): one canary a minute, raw and with the product's
load curve removed ("residual": learned in the first seven days, then fixed; NaN where the load was
unknown), and the minutes at which drops begin. The results go into --out, under a name made of the
series and of this program: for each detector the alarms of the healthy month and the delay of every
drop. They stay valid when a change of the product does not change the series.

Every detector gets the data that it would get in use: blocks of five minutes (median of at least
three canaries; Otava: fifteen minutes), scaled by the seven days of learning. It restarts after an
alarm. Rising values are not an alarm where a detector can distinguish them.
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
WARM = 2 * DAY  # minutes of data before a drop


@dataclass(frozen=True, slots=True)
class Scale:
    """The healthy past of a series."""

    median: float
    sd: float
    learned: Floats  # blocks of the seven days


#: From values, one a block, to the indexes of its alarms.
Detector = Callable[[Floats, Scale], Iterable[int]]
Setup = tuple[str, int, Detector]  # series, minutes per value, detector


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
    """A detector of river, recreated after an alarm. `standard`: the values are standard deviations
    of the healthy past.
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
    """An exponentially weighted mean, `limit` of its own healthy standard deviations below zero;
    values are limited to 4 SD + 10 %.
    """

    def smoothed(data: Floats) -> Floats:
        out, mean = np.empty(len(data)), 0.0
        bound = 4 * scale.sd + 0.1
        for i, value in enumerate((data - scale.median).tolist()):
            if np.isfinite(value):
                mean += weight * (max(-bound, min(bound, value)) - mean)
            out[i] = mean
        return out

    sd = float(np.std(smoothed(scale.learned)[50:]))
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
    import ruptures  # noqa: PLC0415 - not in Otava's environment

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
    """Apache Otava over the last 18 hours, at every new point: a new change to lower values is an
    alarm. It needs lists, since it fails on arrays.
    """
    from otava.analysis import compute_change_points  # noqa: PLC0415 - not in river's environment

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


def river_detectors() -> dict[str, Setup]:
    """The detectors of river and ruptures, and two simple rules."""
    found: dict[str, Setup] = {'fixed "3 samples < 95 % of the median"': ("raw", 1, fixed)}
    for name, detector in _on_both_series():
        for series in ("raw", "residual"):
            found[f"{name}, {series}"] = (series, BLOCK, detector)
    return found


def _on_both_series() -> Iterator[tuple[str, Detector]]:
    from river import drift  # noqa: PLC0415 - not in Otava's environment

    hinkley = partial(
        drift.PageHinkley,
        min_instances=1,
        delta=PH_DELTA,
        threshold=PH_THRESHOLD,
        alpha=1.0,
        mode="down",
    )
    yield "river PageHinkley, default", partial(streaming, drift.PageHinkley, True)
    yield "river PageHinkley, tuned", partial(streaming, hinkley, True)
    yield "river ADWIN, default", partial(streaming, drift.ADWIN, False)
    adwin = partial(drift.ADWIN, delta=1e-12, clock=1)
    yield "river ADWIN, tuned", partial(streaming, adwin, False)
    for penalty in (25, 80):
        yield f"ruptures KernelCPD, penalty {penalty}", partial(kernel, penalty)
    for weight, limit in ((0.1, 4.0), (0.2, 5.0)):
        yield f"EWMA {weight:g}, L = {limit:g}", partial(ewma, weight, limit)


PH_DELTA, PH_THRESHOLD = 1.5, 25.0


def otava_detectors() -> dict[str, Setup]:
    """Apache Otava with its defaults, and tuned."""
    tuned = partial(otava, 1e-6, 0.02)
    return {
        "Otava, default, residual": ("residual", OTAVA_BLOCK, partial(otava, 0.001, 0.0)),
        "Otava, tuned (p 1e-6, 2 %), residual": ("residual", OTAVA_BLOCK, tuned),
    }


WHICH: dict[str, Callable[[], dict[str, Setup]]] = {
    "river": river_detectors,
    "otava": otava_detectors,
}


def blocks(minutes: Floats, size: int) -> Floats:
    """Medians of blocks of `size` minutes; NaN where fewer than three fifths are known."""
    if size == 1:
        return minutes
    shaped = minutes[: len(minutes) // size * size].reshape(-1, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = np.nanmedian(shaped, axis=1)
    found[np.isfinite(shaped).sum(axis=1) < 0.6 * size] = np.nan
    return np.asarray(found)


def measure(detector: Detector, minutes: Floats, size: int, onsets: list[int]) -> dict[str, Any]:
    """Returns the alarms in the healthy month, and the delay of each drop in minutes (None: not
    within a day).
    """
    learned = blocks(minutes[:LEARN], size)
    known = learned[np.isfinite(learned)]
    centre = float(np.median(known))
    scale = Scale(centre, float(1.4826 * np.median(np.abs(known - centre))), learned)
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
    """The path of the results on one target."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update((folder / "series.npz").read_bytes())
    return kept / f"{which}-{digest.hexdigest()[:16]}.json"


def one(which: str, kept: Path, folder: Path) -> str:
    """Measures every detector on one target, unless its results are stored."""
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
    """Measures all targets; prints one line for each that is done."""
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
