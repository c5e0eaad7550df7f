"""Scenarios: what goes wrong when, as YAML with a time line, and what a monitor must make of it.

    about: the heat sink clogs over an hour
    raises: {kind: thermal, cause: heat}
    base: {traffic.rate_per_s: 0.5}   # how it is before anything goes wrong; names: World.settable
    pace: heat                        # the time line goes as many times faster as heat does
    (thermal_speed)
    timeline:
      - at: 0s
        set: {batch.clients: 4}
      - at: 10m
        ramp: {card.cooling: 4.5}     # from what it is then, evenly, to this
        over: 60m

A file is played by `Play`, in virtual time; it does not matter how large the steps are.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from math import inf
from pathlib import Path
from typing import Any, Protocol

from monitor.simulate.kinds import CAUSES, KINDS
from monitor.simulate.settings import SettingError
from monitor.simulate.timeline import ScenarioError, Value, problem, read_scenario

RAMP_STEPS = 400  # a ramp moves so many times, but not faster or slower than this:
LEAST_STEP_S, MOST_STEP_S = 0.25, 10.0
ENTRY_KEYS = ("at", "set", "ramp", "over")
ONE_SHOT = ("restart", "batch.requests")  # acts, not states
FILE_KEYS = ("about", "raises", "base", "pace", "timeline")
Check = Callable[
    [str, Any], None
]  # of a name and a value: raises SettingError where it cannot be set so (World.check)


@dataclass(frozen=True, slots=True)
class Raises:
    """The kind and the cause, of the closed lists in monitor/model, that a monitor must report; ""
    for a kind that has no cause.
    """

    kind: str
    cause: str


@dataclass(frozen=True, slots=True)
class Event:
    """One setting that changes at `at_s` after the begin; with `over_s` it moves there evenly from
    what it is then.
    """

    at_s: float
    name: str
    value: Any
    over_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story. `raises` None: a monitor must stay silent. `base`: how it is before the time line
    begins.
    """

    name: str
    about: str
    raises: Raises | None
    base: Mapping[str, Any]
    events: tuple[Event, ...]
    paced_by_heat: bool = False

    @property
    def onset_s(self) -> float:
        """When the first thing changes, after the begin."""
        return min((event.at_s for event in self.events), default=0.0)

    @property
    def length_s(self) -> float:
        """When the last change is complete."""
        return max((event.at_s + event.over_s for event in self.events), default=0.0)


def names() -> list[str]:
    """The scenarios that come with the simulator."""
    folder = resources.files("monitor.simulate").joinpath("scenarios")
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def load(name_or_file: str, settable: Collection[str], check: Check | None = None) -> Scenario:
    """One that comes with the simulator, by name, or a file of the user's. `settable`: what a time
    line may name, `check`: with which values. Raises ScenarioError.
    """
    if name_or_file in names():
        file = f"{name_or_file}.yaml"
        text = (
            resources.files("monitor.simulate")
            .joinpath(f"scenarios/{file}")
            .read_text(encoding="utf-8")
        )
        return parse(text, file, name_or_file, settable, check)
    path = Path(name_or_file)
    if path.suffix not in {".yaml", ".yml"} and "/" not in name_or_file:
        close = difflib.get_close_matches(name_or_file, names(), n=1)
        hint = (
            f"did you mean {close[0]}?"
            if close
            else f"it is one of: {', '.join(names())}, or a .yaml file"
        )
        raise ScenarioError(f"there is no scenario {name_or_file!r}; {hint}")
    try:
        return parse(path.read_text(encoding="utf-8"), name_or_file, path.stem, settable, check)
    except (OSError, UnicodeDecodeError) as error:
        told = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "it is not text in UTF-8"
        )
        raise problem(name_or_file, None, f"cannot be read: {told}") from None


def parse(
    text: str, file: str, name: str, settable: Collection[str], check: Check | None = None
) -> Scenario:
    """A scenario from its text. Raises ScenarioError with file and line."""
    whole = read_scenario(text, file)
    block = whole.block(file, "a scenario")
    _refuse_unknown(block, FILE_KEYS, file)
    if "about" not in block:
        raise problem(file, whole.line, "about is missing: one sentence that tells the story")
    entries = block["timeline"].data if "timeline" in block else []
    if not isinstance(entries, list):
        raise problem(
            file,
            block["timeline"].line,
            "timeline must be a list of entries with `at` and `set` or `ramp`",
        )
    allowed = _Allowed(file, settable, check)
    events = [event for entry in entries for event in _events(entry, file, allowed)]
    ordered = tuple(sorted(events, key=lambda event: event.at_s))
    base = allowed.changes(block["base"], "set") if "base" in block else {}
    raises = _raises(block.get("raises"), file)
    return Scenario(
        name,
        block["about"].text(file, "about"),
        raises,
        base,
        ordered,
        _is_paced(block.get("pace"), file),
    )


def _is_paced(value: Value | None, file: str) -> bool:
    if value is not None and value.data != "heat":
        raise problem(
            file, value.line, f"pace is {value.plain()!r}; it can be heat, or be left out"
        )
    return value is not None


def _raises(value: Value | None, file: str) -> Raises | None:
    if value is None or value.data is None:
        return None
    block = value.block(file, "raises")
    _refuse_unknown(block, ("kind", "cause"), file)
    if "kind" not in block:
        raise problem(file, value.line, "raises needs a kind")
    kind = _word(block["kind"], "kind", KINDS, file)
    return Raises(kind, _word(block["cause"], "cause", CAUSES, file) if "cause" in block else "")


def _word(value: Value, what: str, known: Collection[str], file: str) -> str:
    """One of a closed list: no monitor could ever report another."""
    word = value.text(file, what)
    if word not in known:
        close = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it is one of: {', '.join(known)}"
        raise problem(file, value.line, f"{word} is no {what} that can be reported; {hint}")
    return word


def _events(entry: Value, file: str, allowed: _Allowed) -> list[Event]:
    block = entry.block(file, "an entry of timeline")
    _refuse_unknown(block, ENTRY_KEYS, file)
    if "at" not in block:
        raise problem(file, entry.line, "this entry says not when; give it `at: 10m`")
    if ("set" in block) == ("ramp" in block):
        raise problem(file, entry.line, "an entry has either `set` or `ramp`")
    if ("over" in block) != ("ramp" in block):
        raise problem(
            file, entry.line, "`ramp` and `over` belong together: ramp to what, over how long"
        )
    at_s = block["at"].seconds(file, "at")
    over_s = block["over"].seconds(file, "over") if "over" in block else 0.0
    what = "ramp" if "ramp" in block else "set"
    return [
        Event(at_s, name, value, over_s)
        for name, value in allowed.changes(block[what], what).items()
    ]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What a time line may name, and with which values."""

    file: str
    settable: Collection[str]
    check: Check | None

    def changes(self, value: Value, what: str) -> dict[str, Any]:
        """The names and values of `set`, `ramp` or `base`. Raises ScenarioError."""
        block = value.block(self.file, what)
        for name, wanted in block.items():
            self._must_fit(name, wanted, what)
        return {name: wanted.plain() for name, wanted in block.items()}

    def _must_fit(self, name: str, value: Value, what: str) -> None:
        if name not in self.settable:
            close = difflib.get_close_matches(name, list(self.settable), n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"known: {', '.join(sorted(self.settable))}"
            )
            raise problem(self.file, value.line, f"{name} is nothing that can be set; {hint}")
        plain = value.plain()
        if what == "ramp" and (isinstance(plain, bool) or not isinstance(plain, (int, float))):
            raise problem(
                self.file, value.line, f"{name} is {plain!r}; only a number can be a ramp's end"
            )
        try:
            if self.check is not None:
                self.check(
                    name, float(plain) if what == "ramp" else plain
                )  # on its way it takes every value between
        except SettingError as error:
            raise problem(self.file, value.line, str(error)) from None


def _refuse_unknown(block: Any, known: Collection[str], file: str) -> None:
    for key, value in block.items():
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
            raise problem(file, value.line, f"{key} is not a known key; {hint}")


class Stage(Protocol):
    """Where a scenario plays: the World."""

    def get(self, name: str, /) -> Any:
        """What a setting is now."""

    def set(self, name: str, value: Any, /) -> None:
        """Change it."""


@dataclass(slots=True)
class Play:
    """A scenario on its way; one of the world's sources. `base` holds at once, the time line begins
    at `begin_s` of the stage's time.
    """

    scenario: Scenario
    stage: Stage
    begin_s: float = 0.0
    speed: float = 1.0  # the time line goes so many times faster
    _done: int = 0
    _ramps: list[_Ramp] = field(default_factory=list)
    _before: dict[str, Any] = field(default_factory=dict)  # what was changed, as it was
    _next_s: float | None = None  # None: not worked out since something was done

    def __post_init__(self) -> None:
        """What the story begins with."""
        for name, value in self.scenario.base.items():
            self._change(name, value)

    def next_s(self) -> float:
        """When something changes next; infinite when the story is told."""
        if self._next_s is None:
            coming = [
                self._at_s(event) for event in self.scenario.events[self._done : self._done + 1]
            ]
            self._next_s = min([*coming, *(ramp.next_s for ramp in self._ramps)], default=inf)
        return self._next_s

    def advance(self, now_s: float) -> None:
        """Make every change that is due by now."""
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

    def take_back(self) -> None:
        """Everything that was changed is again as it was; a process that was started or ended is
        not.
        """
        for name, value in self._before.items():
            self.stage.set(name, value)
        self._before, self._ramps, self._done, self._next_s = (
            {},
            [],
            len(self.scenario.events),
            None,
        )

    def _at_s(self, event: Event) -> float:
        return self.begin_s + event.at_s / self.speed

    def _change(self, name: str, value: Any) -> None:
        if name not in ONE_SHOT:
            self._before.setdefault(name, self.stage.get(name))
        self.stage.set(name, value)

    def _ramp(self, event: Event) -> _Ramp:
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
