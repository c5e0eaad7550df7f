"""Scenarios: what goes wrong when, as YAML with a time line, and what a monitor must report.

about: the heat sink clogs over an hour
raises: {kind: thermal, cause: heat}
base: {traffic.rate_per_s: 0.5}   # the healthy state; names: World.settable
pace: heat                        # the time line runs faster with --thermal-speed, as heat does
timeline:
  - at: 0s
    set: {batch.clients: 4}
  - at: 10m
    ramp: {gpu.cooling: 4.5}     # linearly from the present value to this
    over: 60m
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from monitor.simulate.scenarios.timeline import ScenarioError, ScenarioValue, problem, read_scenario
from monitor.simulate.settings import SettingError, current_name

#: The closed lists of what a monitor can report (monitor/model/words.py; a test compares them).
KINDS = (
    "server_down",
    "hung",
    "no_samples",
    "unknown_lasting",
    "telemetry_blind",
    "gpu_fault",
    "driver_mismatch",
    "speed",
    "thermal",
    "power",
    "service_level",
    "quality",
    "near_ties",
    "config_change",
    "workload_shift",
    "pin_expired",
    "number_expired",
    "reserve",
    "slow_start",
    "monitor",
)
CAUSES = (
    "heat",
    "memory_heat",
    "power_cap",
    "power_brake",
    "hidden_limit",
    "queueing",
    "config_change",
    "kernel_fallback",
    "cache_lost",
    "uptime_decay",
    "speculation",
    "neighbour",
    "host_bound",
    "slow_state",
    "answers_changed",
    "server_fault",
    "unexplained",
)
ENTRY_KEYS = ("at", "set", "ramp", "over")
FILE_KEYS = ("about", "raises", "base", "pace", "timeline")
# name and value; raises SettingError where the setting does not accept it (World.check)
Check = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class Raises:
    """The kind and cause that a monitor must report; "" for a kind without cause."""

    kind: str
    cause: str


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """One setting that changes `at_s` after the start; with `over_s` it moves there linearly
    from its present value.
    """

    at_s: float
    name: str
    value: Any
    over_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. `raises` None: a monitor must stay silent. `base`: the settings before the
    time line begins.
    """

    name: str
    about: str
    raises: Raises | None
    base: Mapping[str, Any]
    events: tuple[ScenarioEvent, ...]
    paced_by_heat: bool = False

    @property
    def length_s(self) -> float:
        """When the last change is complete."""
        return max((event.at_s + event.over_s for event in self.events), default=0.0)


def names() -> list[str]:
    """The names of the shipped scenarios."""
    folder = resources.files("monitor.simulate").joinpath("scenarios")
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def load(name_or_file: str, settable: Collection[str], check: Check | None = None) -> Scenario:
    """Loads a shipped scenario by name, or a user's file. `settable`: the settings that a time
    line may name, `check`: checks their values. Raises ScenarioError.
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
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "it is not text in UTF-8"
        )
        raise problem(name_or_file, None, f"cannot be read: {why}") from None


def parse(
    text: str, file: str, name: str, settable: Collection[str], check: Check | None = None
) -> Scenario:
    """Parses a scenario. Raises ScenarioError with file and line."""
    whole = read_scenario(text, file)
    block = whole.block(file, "a scenario")
    _refuse_unknown(block, FILE_KEYS, file)
    if "about" not in block:
        raise problem(file, whole.line, "about is missing: one sentence that says what happens")
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


def _is_paced(value: ScenarioValue | None, file: str) -> bool:
    if value is not None and value.data != "heat":
        raise problem(
            file, value.line, f"pace is {value.plain()!r}; it can be heat, or be left out"
        )
    return value is not None


def _raises(value: ScenarioValue | None, file: str) -> Raises | None:
    if value is None or value.data is None:
        return None
    block = value.block(file, "raises")
    _refuse_unknown(block, ("kind", "cause"), file)
    if "kind" not in block:
        raise problem(file, value.line, "raises needs a kind")
    kind = _word(block["kind"], "kind", KINDS, file)
    return Raises(kind, _word(block["cause"], "cause", CAUSES, file) if "cause" in block else "")


def _word(value: ScenarioValue, what: str, known: Collection[str], file: str) -> str:
    """One word of a closed list: a monitor can report no other."""
    word = value.text(file, what)
    if word not in known:
        close = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it is one of: {', '.join(known)}"
        raise problem(file, value.line, f"{word} is no {what} that can be reported; {hint}")
    return word


def _events(entry: ScenarioValue, file: str, allowed: _Allowed) -> list[ScenarioEvent]:
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
        ScenarioEvent(at_s, name, value, over_s)
        for name, value in allowed.changes(block[what], what).items()
    ]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The settings that a time line may name, and their values."""

    file: str
    settable: Collection[str]
    check: Check | None

    def changes(self, value: ScenarioValue, what: str) -> dict[str, Any]:
        """The names and values of `set`, `ramp` or `base`. Raises ScenarioError."""
        block = value.block(self.file, what)
        for name, wanted in block.items():
            self._must_fit(name, wanted, what)
        return {name: wanted.plain() for name, wanted in block.items()}

    def _must_fit(self, name: str, value: ScenarioValue, what: str) -> None:
        if current_name(name) not in self.settable:
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
                # a ramp passes through every value in between
                self.check(name, float(plain) if what == "ramp" else plain)
        except SettingError as error:
            raise problem(self.file, value.line, str(error)) from None


def _refuse_unknown(block: Any, known: Collection[str], file: str) -> None:
    for key, value in block.items():
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
            raise problem(file, value.line, f"{key} is not a known key; {hint}")
