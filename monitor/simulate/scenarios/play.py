"""A scenario in progress, in virtual time; the result does not depend on the size of the steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from monitor.simulate.scenarios.scenario import Scenario, ScenarioEvent
from monitor.simulate.scenarios.timeline import ScenarioError

# a ramp moves in this many steps, but none shorter or longer than this
RAMP_STEPS = 400
LEAST_STEP_S, MOST_STEP_S = 0.25, 10.0
ONE_SHOT = ("restart", "batch.requests")  # actions, not states


class SettingsTarget(Protocol):
    """What a scenario changes: the World."""

    def get(self, name: str, /) -> Any:
        """The present value of a setting."""

    def set(self, name: str, value: Any, /) -> None:
        """Changes a setting."""


@dataclass(slots=True)
class Play:
    """A scenario in progress; one of the world's sources. `base` is set at once, the time line
    begins at `begin_s`.
    """

    scenario: Scenario
    stage: SettingsTarget
    begin_s: float = 0.0
    speed: float = 1.0  # the time line runs this many times faster
    _done: int = 0
    _ramps: list[_Ramp] = field(default_factory=list)
    _before: dict[str, Any] = field(default_factory=dict)  # original values of what was changed
    _next_s: float | None = None  # None: must be computed again

    def __post_init__(self) -> None:
        """Sets the base."""
        for name, value in self.scenario.base.items():
            self._change(name, value)

    def next_s(self) -> float:
        """When something changes next; infinite when the scenario is over."""
        if self._next_s is None:
            coming = [
                self._at_s(event) for event in self.scenario.events[self._done : self._done + 1]
            ]
            self._next_s = min([*coming, *(ramp.next_s for ramp in self._ramps)], default=inf)
        return self._next_s

    def advance(self, now_s: float) -> None:
        """Makes every change that is due by now."""
        events, self._next_s = self.scenario.events, None
        while self._done < len(events) and self._at_s(events[self._done]) <= now_s:
            event = events[self._done]
            self._done += 1
            self._ramps = [ramp for ramp in self._ramps if ramp.name != event.name]
            if event.over_s:
                self._ramps.append(self._ramp(event))
            else:
                self._change(event.name, event.value)
        for ramp in self._ramps:
            self._change(ramp.name, ramp.at(now_s))
        self._ramps = [ramp for ramp in self._ramps if now_s < ramp.end_s]

    def revert(self) -> None:
        """Restores everything that was changed; a process that was started or killed stays so."""
        for name, value in self._before.items():
            self.stage.set(name, value)
        self._before, self._ramps, self._done, self._next_s = (
            {},
            [],
            len(self.scenario.events),
            None,
        )

    def _at_s(self, event: ScenarioEvent) -> float:
        return self.begin_s + event.at_s / self.speed

    def _change(self, name: str, value: Any) -> None:
        if name not in ONE_SHOT:
            self._before.setdefault(name, self.stage.get(name))
        self.stage.set(name, value)

    def _ramp(self, event: ScenarioEvent) -> _Ramp:
        start = self.stage.get(event.name)
        if start is None or isinstance(start, bool) or not isinstance(start, (int, float)):
            raise ScenarioError(
                f"{self.scenario.name}: {event.name} is {start!r} now, so nothing can be "
                "ramped from there; set it first"
            )
        begin_s, over_s = self._at_s(event), event.over_s / self.speed
        step_s = min(MOST_STEP_S, max(LEAST_STEP_S, over_s / RAMP_STEPS))
        return _Ramp(
            event.name, float(start), float(event.value), begin_s, begin_s + over_s, step_s
        )


@dataclass(slots=True)
class _Ramp:
    name: str
    start: float
    end: float
    begin_s: float
    end_s: float
    step_s: float
    next_s: float = 0.0

    def at(self, now_s: float) -> float:
        self.next_s = min(now_s + self.step_s, self.end_s) if now_s < self.end_s else inf
        share = min(1.0, max(0.0, (now_s - self.begin_s) / (self.end_s - self.begin_s)))
        return self.start + (self.end - self.start) * share
