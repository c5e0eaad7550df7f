"""The product on simulated months: false alarms, delays, and the series that other detectors are
measured on (detection_peers.py).

Every canary goes through the product's own SpeedChannel, as the daemon feeds it; the clock advances
with each. After seven days of learning come thirty healthy days; an effect that is raised is
counted, closed by hand, and detection starts again. At each onset the state of that moment is
copied, a drop is put on what follows, and the minutes until the effect stands are counted.
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
from monitor.judge.drift.speed.load import Load
from monitor.model import CanaryPoint, Severity

MONTH = 30 * DAY
ONSETS = 3  # drops of each size in each target-month
SETTINGS = DriftSettings()
ANSWER_US = 2_000_000
BOOST = 1 / 3  # suspicion from which the daemon asks four times as often
RESTART_SD = 0.003


@dataclass(slots=True)
class Result:
    """Of one target."""

    warnings: int = 0
    pages: int = 0
    masked: float = 0.0  # share of canaries that met a load that was not known
    delays: dict[str, list[int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Way:
    """How canaries are sent: probes a minute, and whether four times as often under suspicion."""

    probes: int = 1
    boost: bool = False

    @property
    def per_minute(self) -> int:
        """Canaries that are drawn for each minute."""
        return self.probes * (4 if self.boost else 1)


def points(
    data: Series, way: Way, minutes: range, added: Floats | None = None
) -> Iterator[tuple[CanaryPoint, bool]]:
    """The canaries of these minutes, and whether each is sent only under suspicion."""
    n = way.per_minute
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
        probe = f"p{part % way.probes}"
        point = CanaryPoint(
            at,
            at + ANSWER_US,
            probe,
            "batch",
            decode_tok_s=rate,
            completion_tokens=128.0,
            running=r,
            fingerprint="a",
        )
        yield point, part >= way.probes


def feed(
    channel: SpeedChannel, data: Series, way: Way, minutes: range, added: Floats | None = None
) -> Iterator[int]:
    """Feed these minutes; each minute in which an effect stands is handed out."""
    boosted = False
    for point, extra in points(data, way, minutes, added):
        if extra and not boosted:
            continue
        channel.canary(point, SETTINGS)
        if point.known_us >= channel.canaries.due_us:
            channel.advance(point.known_us, SETTINGS)
            boosted = way.boost and channel.suspicion(SETTINGS) > BOOST
            if channel.references[-1].decode.effect is not None:
                yield point.known_us // MINUTE_US


def healthy(channel: SpeedChannel, data: Series, way: Way, minutes: range, result: Result) -> None:
    """Count what is raised although nothing happened."""
    for _ in feed(channel, data, way, minutes):
        track = channel.references[-1].decode
        page = any(effect.severity is Severity.PAGE for effect in channel.effects(SETTINGS))
        result.pages += page
        result.warnings += not page
        track.effect = None
        track.watch.restart(0.0, RESTART_SD, track.model)
        track.creep.total = 0.0


def onsets(seed: int) -> list[int]:
    """Minutes at which drops are put in: one in each third of the month."""
    rng = np.random.default_rng([seed, 77])
    third = (MONTH - DAY) // ONSETS
    return [LEARN + 60 + i * third + int(rng.integers(0, third - 120)) for i in range(ONSETS)]


def residual(channel: SpeedChannel, data: Series) -> Floats:
    """What the load curve that was learnt in seven days leaves of each canary; NaN where the load
    is not known.
    """
    curve = channel.references[-1].decode.curve
    assert curve is not None
    levels = {
        r: curve.expected(0, Load(float(np.log1p(r)), None))
        for r in np.unique(data.running).tolist()
    }
    expected = np.array(
        [np.nan if (e := levels[r]) is None else e.value for r in data.running.tolist()]
    )
    return np.asarray(data.log_rate - expected)


def run(kind: str, seed: int, way: Way, folder: Path) -> str:
    """One target, unless it was done before. With one canary a minute the series are kept for the
    others.
    """
    out = folder / "ours.json"
    if out.exists():
        return str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = series(KINDS[kind], seed, 37, way.per_minute)
    channel, result, begun = SpeedChannel(), Result(), LEARN
    list(feed(channel, data, way, range(LEARN)))
    if way == Way():
        kept = {
            "raw": data.log_rate,
            "residual": residual(channel, data),
            "onsets": np.array(onsets(seed)),
        }
        np.savez_compressed(
            folder / "series.npz",
            **{
                name: v if v.dtype.kind == "i" else v.astype(np.float32) for name, v in kept.items()
            },
        )
    for onset in onsets(seed):
        healthy(channel, data, way, range(begun, onset), result)
        begun, saved = onset, pickle.dumps(channel)
        for name, (share, ramp_min) in SCENARIOS.items():
            copy: SpeedChannel = pickle.loads(saved)  # our own bytes of a moment ago
            raised = next(
                feed(copy, data, way, range(onset, onset + DAY), drop(DAY, share, ramp_min)), None
            )
            result.delays.setdefault(name, []).append(None if raised is None else raised - onset)
    healthy(channel, data, way, range(begun, LEARN + MONTH), result)
    track = channel.references[-1].decode
    result.masked = track.outside / max(1, track.canaries)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(asdict(result)))
    part.rename(out)
    return str(folder)
