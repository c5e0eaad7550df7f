"""The product on simulated months: false alarms, delays, and the series for the other detectors
(detection_peers.py).

Every canary goes through the product's own SpeedChannel, fed as in the daemon; the clock advances
with each. Seven days of learning are followed by thirty healthy days; an effect raised in them is
counted and closed, and detection starts again. At each onset the state is copied, a drop is applied
to the following day, and the minutes until an effect is raised are counted.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from detection_simulated import DAY, KINDS, LEARN, SCENARIOS, Floats, Series, drop, series

from monitor.judge.drift.settings import MINUTE_US, DriftSettings
from monitor.judge.drift.speed.channel import SpeedChannel
from monitor.judge.drift.speed.load import EngineLoad
from monitor.model import CanaryPoint, Severity

MONTH = 30 * DAY
ONSETS = 3  # drops of each size in each target-month
SETTINGS = DriftSettings()
ANSWER_US = 2_000_000
BOOST = 1 / 3  # suspicion from which the daemon sends four times as many canaries
RESTART_SD = 0.003
RESULT = "product.json"


@dataclass(slots=True)
class Result:
    """False alarms and delays of one target."""

    warnings: int = 0
    pages: int = 0
    masked: float = 0.0  # share of canaries at an unknown load
    delays: dict[str, list[int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cadence:
    """Probes a minute, and whether four times as many canaries are sent under suspicion."""

    probes: int = 1
    boost: bool = False

    @property
    def name(self) -> str:
        """The name of the folder for its results."""
        return f"{self.probes}-{'boost' if self.boost else 'steady'}"

    @property
    def per_minute(self) -> int:
        """Canaries that are drawn for each minute."""
        return self.probes * (4 if self.boost else 1)


def points(
    data: Series, cadence: Cadence, minutes: range, added: Floats | None = None
) -> Iterator[tuple[CanaryPoint, bool]]:
    """The canaries of these minutes, and whether each is sent only under suspicion."""
    n = cadence.per_minute
    logs = data.log_rate[minutes.start * n : minutes.stop * n]
    if added is not None:
        logs = logs + np.repeat(added, n)
    rates, running = (
        np.exp(logs).tolist(),
        data.running[minutes.start * n : minutes.stop * n].tolist(),
    )
    for i, (rate, r) in enumerate(zip(rates, running, strict=True)):
        minute, part = divmod(i, n)
        at = (minutes.start + minute) * MINUTE_US + part * (MINUTE_US // n)
        probe = f"p{part % cadence.probes}"
        point = CanaryPoint(
            at_us=at,
            known_us=at + ANSWER_US,
            probe=probe,
            traffic_class="batch",
            decode_tok_s=rate,
            completion_tokens=128.0,
            running=r,
            fingerprint="a",
        )
        yield point, part >= cadence.probes


def feed(
    channel: SpeedChannel,
    data: Series,
    cadence: Cadence,
    minutes: range,
    added: Floats | None = None,
) -> Iterator[int]:
    """Feeds these minutes; yields each minute in which an effect is open."""
    boosted = False
    for point, extra in points(data, cadence, minutes, added):
        if extra and not boosted:
            continue
        channel.canary(point, SETTINGS)
        if point.known_us >= channel.canaries.due_us:
            channel.advance(point.known_us, SETTINGS)
            boosted = cadence.boost and channel.suspicion(SETTINGS) > BOOST
            if channel.baselines[-1].decode.judge.effect is not None:
                yield point.known_us // MINUTE_US


def healthy(
    channel: SpeedChannel, data: Series, cadence: Cadence, minutes: range, result: Result
) -> None:
    """Count what is raised although nothing happened."""
    for _ in feed(channel, data, cadence, minutes):
        track = channel.baselines[-1].decode
        page = any(effect.severity is Severity.PAGE for effect in channel.effects(SETTINGS))
        result.pages += page
        result.warnings += not page
        track.judge.effect = None
        track.judge.drop_test.restart(0.0, RESTART_SD, track.model.noise)
        track.judge.cusum.total = 0.0


def onsets(seed: int) -> list[int]:
    """Minutes at which drops begin: one in each third of the month."""
    rng = np.random.default_rng([seed, 77])
    third = (MONTH - DAY) // ONSETS
    return [LEARN + 60 + i * third + int(rng.integers(0, third - 120)) for i in range(ONSETS)]


def residual(channel: SpeedChannel, data: Series) -> Floats:
    """What the load curve that was learnt in seven days leaves of each canary; NaN where the load
    is not known.
    """
    curve = channel.baselines[-1].decode.model.curve
    assert curve is not None
    levels = {
        r: curve.expected(0, EngineLoad(float(np.log1p(r)), None))
        for r in np.unique(data.running).tolist()
    }
    expected = np.array(
        [np.nan if (e := levels[r]) is None else e.value for r in data.running.tolist()]
    )
    return np.asarray(data.log_rate - expected)


def _store_series(folder: Path, data: Series, left: Floats, drops: list[int]) -> None:
    np.savez_compressed(
        folder / "series.npz",
        raw=data.log_rate.astype(np.float32),
        residual=left.astype(np.float32),
        onsets=np.array(drops),
    )


def run(kind: str, seed: int, cadence: Cadence, folder: Path) -> str:
    """Measures one target, unless its result is stored. With one canary a minute the series are
    stored for the other detectors.
    """
    out = folder / RESULT
    if out.exists():
        return str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = series(KINDS[kind], seed, 37, cadence.per_minute)
    channel, result, begun = SpeedChannel(), Result(), LEARN
    list(feed(channel, data, cadence, range(LEARN)))
    if cadence == Cadence():
        _store_series(folder, data, residual(channel, data), onsets(seed))
    for onset in onsets(seed):
        healthy(channel, data, cadence, range(begun, onset), result)
        begun, saved = onset, pickle.dumps(channel)
        for name, (share, ramp_min) in SCENARIOS.items():
            copy: SpeedChannel = pickle.loads(saved)  # written by this process
            raised = next(
                feed(copy, data, cadence, range(onset, onset + DAY), drop(DAY, share, ramp_min)),
                None,
            )
            result.delays.setdefault(name, []).append(None if raised is None else raised - onset)
    healthy(channel, data, cadence, range(begun, LEARN + MONTH), result)
    track = channel.baselines[-1].decode
    result.masked = track.model.outside / max(1, track.model.canaries)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(asdict(result)))
    part.rename(out)
    return str(folder)
