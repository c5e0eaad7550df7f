"""Simulated months for the measurement of detectors: the decode rate of canaries on a healthy
server, and the drops applied to it.

The assumptions, in the natural logarithm of the rate (R: number of other running requests):

    -ln(1 + 0.05 R) + 0.4 % diurnal + slow noise (Ornstein-Uhlenbeck, tau 40 min, SD 0.6 % busy,
    0.4 % idle) + Student's t noise with 5 degrees of freedom (scale 1.2 % sqrt(1 + R/4) busy, 0.3 %
    idle) + 0.4 % of canaries 10 to 40 % slow

R is Poisson with a daily cycle and an autocorrelated log-intensity (busy: 0 to about 25; idle: the
canary is mostly alone). One canary a minute. Not modelled: weekly cycles, model changes, other
processes on the GPU.
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
}  # share, minutes of the ramp


@dataclass(frozen=True, slots=True)
class Kind:
    """The load and the noise of one kind of server."""

    name: str
    mean_running: float
    swing: float  # daily cycle, as a share of the mean
    scatter: float  # SD of the log-intensity
    noise_sd: float  # of the slow noise
    noise: float  # scale of the noise of each canary
    noise_grows: bool  # with the load


BUSY = Kind(
    name="busy",
    mean_running=9.0,
    swing=0.6,
    scatter=0.35,
    noise_sd=0.006,
    noise=0.012,
    noise_grows=True,
)
IDLE = Kind(
    name="idle",
    mean_running=0.08,
    swing=0.5,
    scatter=0.5,
    noise_sd=0.004,
    noise=0.003,
    noise_grows=False,
)
KINDS = {kind.name: kind for kind in (BUSY, IDLE)}


@dataclass(frozen=True, slots=True)
class Series:
    """Running requests and the logarithm of the decode rate, one value per canary."""

    running: Floats
    log_rate: Floats


def series(kind: Kind, seed: int, days: int, per_minute: int = 1, probes: int = 1) -> Series:
    """Simulates one target; the canaries of one minute have the same load and slow noise."""
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
    """A drop of the rate by a share, at once or as a ramp; as logarithms to be added."""
    grown = (
        np.ones(minutes) if ramp_min <= 0 else np.minimum(1.0, np.arange(1, minutes + 1) / ramp_min)
    )
    return np.asarray(np.log(1 - size * grown))
