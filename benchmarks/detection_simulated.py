"""The simulated months that detectors are measured on: what a canary's decode rate does on a
healthy server, and with a drop in it.

The assumptions (all in the natural logarithm of the rate; R is the number of other requests
running):

    -ln(1 + 0.05 R) + 0.4 % diurnal + slow noise (Ornstein-Uhlenbeck, tau 40 min, SD 0.6 % busy,
    0.4 % idle) + noise of Student's t with 5 degrees (scale 1.2 % sqrt(1 + R/4) busy, 0.3 % idle) +
    0.4 % of canaries 10 to 40 % slow

R is Poisson about a mean with a daily swing and a correlated log-intensity (busy: 0 to about 25;
idle: the canary is mostly alone). One canary a minute. Not modelled: weekly cycles, model swaps,
neighbours on the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAY = 1440  # minutes
LEARN = 7 * DAY
TAU_MIN = 40.0
Floats = NDArray[np.float64]
SCENARIOS = {
    "3 %": (0.03, 0.0),
    "5 %": (0.05, 0.0),
    "10 %": (0.10, 0.0),
    "ramp 5 % over 2 h": (0.05, 120.0),
}  # share, minutes to grow


@dataclass(frozen=True, slots=True)
class Kind:
    """What a server is like."""

    name: str
    mean_running: float
    swing: float  # of the mean over the day
    scatter: float  # of the log-intensity
    noise_sd: float
    noise: float
    noise_grows: bool


BUSY = Kind("busy", 9.0, 0.6, 0.35, 0.006, 0.012, True)
IDLE = Kind("idle", 0.08, 0.5, 0.5, 0.004, 0.003, False)
KINDS = {kind.name: kind for kind in (BUSY, IDLE)}


@dataclass(frozen=True, slots=True)
class Series:
    """Minute by minute: requests running, and the logarithm of the decode rate."""

    running: Floats
    log_rate: Floats


def series(kind: Kind, seed: int, days: int, per_minute: int = 1, probes: int = 1) -> Series:
    """So many days of one target. `per_minute` canaries a minute see the same load and noise."""
    rng = np.random.default_rng([seed, kind.name == "busy"])
    n = days * DAY
    t = np.arange(n)
    day = np.sin(2 * np.pi * (t / DAY - rng.random()))
    intensity = kind.mean_running * (1 + kind.swing * day) * np.exp(ou(rng, n, 30.0) * kind.scatter)
    running = np.minimum(rng.poisson(intensity), 40).astype(float)
    slow = 0.004 * day + kind.noise_sd * ou(rng, n, TAU_MIN)
    running, slow = np.repeat(running, per_minute * probes), np.repeat(slow, per_minute * probes)
    scale = kind.noise * (np.sqrt(1 + running / 4) if kind.noise_grows else 1.0)
    noise = scale * rng.standard_t(5, len(running))
    outlier = rng.random(len(running)) < 0.004
    noise = noise + np.where(outlier, np.log(1 - rng.uniform(0.1, 0.4, len(running))), 0.0)
    return Series(running, np.log(60.0) - np.log1p(0.05 * running) + slow + noise)


def ou(rng: np.random.Generator, n: int, tau: float) -> Floats:
    """Unit Ornstein-Uhlenbeck noise, one value a minute."""
    phi = float(np.exp(-1 / tau))
    steps = rng.standard_normal(n) * np.sqrt(1 - phi * phi)
    out = np.empty(n)
    value = float(rng.standard_normal())
    for i, step in enumerate(steps.tolist()):
        value = phi * value + step
        out[i] = value
    return out


def drop(minutes: int, size: float, ramp_min: float = 0.0) -> Floats:
    """A drop by a share that begins at once, or grows for so many minutes; logarithms to be
    added.
    """
    grown = (
        np.ones(minutes) if ramp_min <= 0 else np.minimum(1.0, np.arange(1, minutes + 1) / ramp_min)
    )
    return np.asarray(np.log(1 - size * grown))
